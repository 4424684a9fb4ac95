from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import units
from ..costs.resident import fits
from ..device.cluster import Cluster, worst
from ..device.memory import memory
from ..device.runtime import Runtime, runtime_of
from ..device.settings import Settings
from ..layouts.asked import Asked
from ..optional import included
from ..sources.hardware import COMMON_HARDWARE, load_hardware
from ..views.cluster import report as cluster_report
from ..views.memory import report
from .device_options import CublasWorkspace, takes_settings
from .hardware import accelerators, complete_name
from .layout_options import takes_layout
from .options import (
    AllowUnknown,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    TableOption,
    Target,
    WithMtp,
    WithTowers,
    about,
    load_one,
    show,
)

HARDWARE_HELP = (
    "Does it fit on this accelerator? A name (h100, m4-max-64gb), a memory size (24GiB) or a .toml file; repeatable; "
    "common ones if not given; exit code 1 if it fits on none of those given."
)

ASSUMED = "H100"
"""The accelerator whose runtime is taken where none is named."""


@takes_settings
@takes_layout
def command(
    target: Target,
    settings: Settings,
    asked: Asked,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    hardware: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=HARDWARE_HELP, autocompletion=complete_name, show_default=False),
    ] = None,
    cublas_workspace: CublasWorkspace = None,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Memory of a device: what fills it, and when.
    Weights, cache, gradients, optimizer states and activations, and the accelerators that hold them; of many devices,
    every rank that differs.
    """
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    named = accelerators(hardware)
    expandable = settings.allocator == "expandable"
    runtimes = [runtime_of(one, cublas_workspace, expandable) for one in named]
    with about(preset):
        found = memory(
            preset.model,
            settings,
            preset.dtype,
            included(with_mtp, with_towers),
            preset.config,
            runtimes[0] if runtimes else runtime_of(None, cublas_workspace, expandable),
        )
        cluster = Cluster(found, asked.layout(), asked.kernels(), asked.framework_version or "")

        def needed(runtime: Runtime) -> int:
            if asked.anything:
                return worst(cluster.on(runtime)).device.device_bytes
            return found.on(runtime).device_bytes

        if named:
            fitting = [
                fit for one, runtime in zip(named, runtimes, strict=True) for fit in fits(needed(runtime), [one])
            ]
        else:
            fitting = fits(needed(found.runtime), map(load_hardware, COMMON_HARDWARE))
        assumed = "" if named else ASSUMED
        if asked.anything:
            answer = cluster_report(preset, cluster, fitting, assumed)
        else:
            answer = report(preset, found, fitting, assumed)
    show(answer, fmt, output, notes, table)
    for fit in fitting if named else ():
        if fit.verdict == "tight":
            memory_of = "nominal" if fit.nominal else "usable"
            print(
                f"warning: {fit.hardware.name}: tight: {units.percent(fit.share)} of its {memory_of} memory, and free "
                "blocks and the CUDA context are estimates",
                file=sys.stderr,
            )
    if named and all(fit.verdict == "no" for fit in fitting):
        raise typer.Exit(1)

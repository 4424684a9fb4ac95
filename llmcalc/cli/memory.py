from __future__ import annotations

from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import units
from ..accelerator import fits
from ..costs.context_length import usual_sequence
from ..device_memory.cuda_runtime import Runtime, runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import Settings
from ..errors import InputError
from ..frameworks.launch.read import launch_files, read_launch
from ..frameworks.launch.record import Launch
from ..frameworks.ranks import Cluster, largest_need
from ..frameworks.registry import framework, framework_of, layout_of
from ..optional import included
from ..parallel.layout_request import ANY, Asked, dated
from ..parallel.nearest import with_nearest
from ..reports.cluster import report as cluster_report
from ..reports.memory import report
from ..sources.hardware import COMMON_HARDWARE, load_hardware
from ..sources.preset import Preset
from ..workload.setting import option
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
    TargetOrNone,
    WithMtp,
    WithTowers,
    about,
    is_given,
    load_one,
    show,
)
from .output import remark
from .run_options import CublasWorkspace, takes_settings

HARDWARE_HELP = (
    "Accelerators on which it should fit. A name (h100, m4-max-64gb), a memory size (24GiB) or a .toml file; "
    "repeatable. By default common ones are listed. Exit code 1 if it fits on none of those given."
)

ASSUMED = "H100"
"""The accelerator whose runtime is taken where none is named."""


def launched_settings(launched: Launch, settings: Settings, asked: Asked) -> tuple[Settings, Asked]:
    """The settings that a file says, with those that options add where it names no model.

    Raises `InputError` for an option that says again what the file says.
    """
    added: dict[str, Any] = {}
    for given, usual, but in ((settings, Settings(), ("phase",)), (asked, Asked(), ("devices", "framework_version"))):
        for field in fields(given):
            name = field.name
            if name in but or getattr(given, name) == getattr(usual, name):
                continue
            if given is asked or launched.spec is not None or name in launched.settings:
                raise InputError(f"{option(name)}: {launched.where} says how it is run; expected no such option")
            added[name] = getattr(given, name)
    return Settings(**{"phase": "training", **launched.settings, **added}), asked


def said_again(launched: Launch, **options: object) -> None:
    """Raises `InputError` for an option of the model, which the file says."""
    for name, value in options.items():
        if value:
            raise InputError(f"{option(name)}: {launched.where} says which model it trains; expected no such option")


def version_date(asked: Asked) -> date | None:
    """The date of the framework's version; None for the newest."""
    return dated(asked.framework_version or "")


@takes_settings
@takes_layout
def command(
    context: typer.Context,
    settings: Settings,
    asked: Asked,
    target: TargetOrNone = None,
    launch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The file that starts a run. {launch_files().capitalize()}. It says the model, or how TARGET is "
            "trained.",
            rich_help_panel="What runs",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=HARDWARE_HELP,
            autocompletion=complete_name,
            show_default=False,
            rich_help_panel="What runs",
        ),
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
    named = accelerators(hardware)
    launched = None
    if launch is not None:
        gpu = named[0].name.upper() if named else ASSUMED
        launched = read_launch(launch, asked.devices, allow_unknown, date=version_date(asked), gpu=gpu)
        if is_given(context, "phase") and settings.phase != "training":
            raise InputError(f"--phase: {launched.where} is a run of training; expected no such option")
        if launched.spec is not None:
            said_again(launched, set=overrides, head=head, with_mtp=with_mtp, with_towers=with_towers)
        settings, asked = launched_settings(launched, settings, asked)
    if launched is not None and launched.spec is not None:
        if target is not None:
            raise InputError(f"TARGET {target}: {launch} says which model it trains; expected no TARGET")
        preset = Preset(name=str(launch), model=launched.spec)
    else:
        if target is None and launched is not None and launched.target.startswith(("$", "`")):
            raise InputError(
                f"{launch}: the model, '{launched.target[:80]}', is known only when the script runs; expected TARGET, "
                "the model's name"
            )
        target = target or (launched.target if launched is not None else "")
        if not target:
            raise InputError(
                "missing argument TARGET, or --launch FILE with a model in it (llmcalc memory --help explains)"
            )
        preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    expandable = settings.allocator == "expandable"
    runtimes = [runtime_of(one, cublas_workspace, expandable) for one in named]
    tokens = usual_sequence(preset.model) if settings.seq is None else settings.seq
    with about(preset), with_nearest(preset.model, asked if launched is None else ANY, tokens):
        found = memory(
            preset.model,
            settings,
            preset.dtype,
            included(with_mtp, with_towers),
            preset.checkpoint,
            runtimes[0] if runtimes else runtime_of(None, cublas_workspace, expandable),
        )
        version = asked.framework_version or ""
        if launched is not None:
            cluster = Cluster.of(found, launched.layout, framework(launched.framework), version, launched.own)
        else:
            cluster = Cluster.of(found, layout_of(asked), framework_of(asked), version)
        spread = launched is not None or asked.anything

        def needed(runtime: Runtime) -> int:
            if spread:
                return largest_need(cluster.on(runtime)).device.device_bytes
            return found.on(runtime).device_bytes

        if named:
            fitting = [
                fit for one, runtime in zip(named, runtimes, strict=True) for fit in fits(needed(runtime), [one])
            ]
        else:
            fitting = fits(needed(found.runtime), map(load_hardware, COMMON_HARDWARE))
        assumed = "" if named else ASSUMED
        if spread:
            answer = cluster_report(preset, cluster, fitting, assumed, launched)
        else:
            answer = report(preset, found, fitting, assumed)
    show(answer, fmt, output, notes, table)
    for fit in fitting if named else ():
        if fit.verdict == "tight":
            memory_of = "nominal" if fit.nominal else "usable"
            remark(
                f"warning: {fit.hardware.name}: tight: {units.percent(fit.share)} of its {memory_of} memory, and free "
                "blocks and the CUDA context are estimates"
            )
    if named and all(fit.verdict == "no" for fit in fitting):
        raise typer.Exit(1)

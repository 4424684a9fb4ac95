from __future__ import annotations

from typing import Annotated

import typer

from ..costs.context_length import usual_sequence
from ..device_memory.cuda_runtime import runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import Settings
from ..errors import InputError
from ..optional import included
from ..parallel.layout_request import Asked
from ..parallel.nearest import with_nearest
from ..reports.fit import devices_report, report, serving_report
from ..sources.hardware import find_hardware
from ..studies.fit import fit
from ..studies.fit_devices import fit_devices
from ..studies.fit_serving import fit_serving
from .hardware import OneAccelerator
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
    is_given,
    load_one,
    show,
    size,
)
from .run_options import CublasWorkspace, takes_settings


@takes_settings
@takes_layout
def command(
    context: typer.Context,
    target: Target,
    hardware: OneAccelerator,
    settings: Settings,
    asked: Asked,
    global_batch: Annotated[
        int | None, size("--global-batch", text="With --devices: sequences of a step of all; a micro-batch of each.")
    ] = None,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    cublas_workspace: CublasWorkspace = None,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Whether a run fits, and what would make it fit.
    With --devices, with some layout over them, and how many it needs: training, or with --phase or --users inference.
    Exit code 1 if it does not fit.
    """
    if asked.anything and asked.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators that the layout is over")
    if global_batch is not None and asked.devices is None:
        raise InputError("--global-batch: is of many devices; expected --devices too")
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    accelerator = find_hardware(hardware)
    runtime = runtime_of(accelerator, cublas_workspace, settings.allocator == "expandable")
    if asked.devices is not None:
        if not is_given(context, "users") and not is_given(context, "phase"):
            settings = settings.with_(phase="training")
        if settings.phase != "training" and global_batch is not None:
            raise InputError("--global-batch: is of training; expected --users, of each replica")
    tokens = usual_sequence(preset.model) if settings.seq is None else settings.seq
    with about(preset), with_nearest(preset.model, asked, tokens):
        one = memory(preset.model, settings, preset.dtype, included(with_mtp, with_towers), preset.checkpoint, runtime)
        if asked.devices is None:
            alone = fit(one, accelerator)
            answer, verdict = report(preset, alone), alone.fit.verdict
        elif settings.phase != "training":
            served = fit_serving(one, accelerator, asked)
            answer, verdict = serving_report(preset, served), served.best.fit.verdict
        else:
            spread = fit_devices(one, accelerator, asked, global_batch)
            answer, verdict = devices_report(preset, spread), spread.fit.verdict
    show(answer, fmt, output, notes, table)
    if verdict == "no":
        raise typer.Exit(1)

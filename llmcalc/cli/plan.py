from __future__ import annotations

from typing import Annotated

import typer

from ..device_memory.cuda_runtime import runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import Settings
from ..errors import InputError
from ..optional import included
from ..parallel.layout_request import Asked
from ..parallel.nearest import nearest_text
from ..reports.plan import report
from ..sources.hardware import find_hardware
from ..studies.plan import plan_of
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
        int | None, size("--global-batch", text="Sequences of a step of all devices; a micro-batch of each.")
    ] = None,
    rows: Annotated[
        int, size("--rows", text="The best layouts, which are replayed on the allocator and shown; 10.")
    ] = 10,
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
    """Layouts over many devices that fit, the best first.
    Of training; sizes of groups that are given hold for all. Exit code 1 if none fits.
    """
    if asked.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators")
    if not is_given(context, "phase"):
        settings = settings.with_(phase="training")
    if settings.phase != "training":
        raise InputError(
            f"--phase {settings.phase}: plans are of training; expected training (llmcalc fit --devices has layouts of "
            "inference)"
        )
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    accelerator = find_hardware(hardware)
    runtime = runtime_of(accelerator, cublas_workspace, settings.allocator == "expandable")
    with about(preset):
        one = memory(preset.model, settings, preset.dtype, included(with_mtp, with_towers), preset.checkpoint, runtime)
        found = plan_of(one, accelerator, asked, global_batch, rows)
        none = not found.plan.feasible and found.plan.nearest is None
        answer = report(preset, found, nearest_text(preset.model, asked, one.states.workload.seq) if none else "")
    show(answer, fmt, output, notes, table)
    if not found.plan.feasible:
        raise typer.Exit(1)

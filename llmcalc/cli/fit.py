from __future__ import annotations

from typing import Annotated

import typer

from ..device_memory.settings import Settings
from ..optional import included
from ..parallel.layout_request import Asked
from ..questions import RunQuestion, ask_fit
from ..sources.hardware import find_hardware
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
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    trains = asked.devices is not None and not is_given(context, "users") and not is_given(context, "phase")
    settings = settings.with_(phase="training") if trains else settings
    question = RunQuestion(
        preset, settings, asked, included(with_mtp, with_towers), find_hardware(hardware), cublas_workspace
    )
    with about(preset):
        answer = ask_fit(question, global_batch)
        report = answer.report()
    show(report, fmt, output, notes, table)
    if answer.verdict == "no":
        raise typer.Exit(1)

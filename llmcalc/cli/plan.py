from __future__ import annotations

from typing import Annotated

import typer

from ..device_memory.settings import Settings
from ..optional import included
from ..parallel.layout_request import Asked
from ..questions import RunQuestion, ask_plan
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
    settings = settings if is_given(context, "phase") else settings.with_(phase="training")
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    question = RunQuestion(
        preset, settings, asked, included(with_mtp, with_towers), find_hardware(hardware), cublas_workspace
    )
    with about(preset):
        answer = ask_plan(question, global_batch, rows)
        report = answer.report()
    show(report, fmt, output, notes, table)
    if answer.verdict == "no":
        raise typer.Exit(1)

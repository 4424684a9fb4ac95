from __future__ import annotations

from typing import Annotated

import typer

from ..device.memory import memory
from ..device.runtime import runtime_of
from ..device.settings import Settings
from ..errors import InputError
from ..optional import included
from ..sources.hardware import find_hardware
from ..studies.fit import fit
from ..views.fit import report
from .device_options import CublasWorkspace, takes_settings
from .hardware import complete_name
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
    size,
)


@takes_settings
def command(
    target: Target,
    hardware: Annotated[
        str,
        typer.Option(
            "--hardware",
            metavar="NAME",
            help="The accelerator: a name (h100, m4-max-64gb), a memory size (24GiB) or a .toml file.",
            autocompletion=complete_name,
            show_default=False,
        ),
    ],
    settings: Settings,
    users: Annotated[
        int | None, size("--users", text="Inference: users at once, each with a sequence of --seq tokens; 1.")
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
    Exit code 1 if it does not fit.
    """
    if users is not None:
        if settings.phase == "training":
            raise InputError("--users: training has no users; expected --batch")
        if settings.batch is not None:
            raise InputError("--users: it is another name of --batch; expected one of the two")
        settings = settings.with_(batch=users)
    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    accelerator = find_hardware(hardware)
    runtime = runtime_of(accelerator, cublas_workspace, settings.allocator == "expandable")
    with about(preset):
        found = fit(
            memory(preset.model, settings, preset.dtype, included(with_mtp, with_towers), preset.config, runtime),
            accelerator,
        )
        answer = report(preset, found)
    show(answer, fmt, output, notes, table)
    if found.fit.verdict == "no":
        raise typer.Exit(1)

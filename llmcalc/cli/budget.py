from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..reports.budget import junit, report
from ..sources.budgets import read_budget
from ..studies.budget import broken, check_budget
from .options import FormatOption, JunitOption, NotesOption, OfflineOption, Output, show
from .output import writable, written


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The budget: a TOML file with a table [[model]] for each model."),
    ] = Path("llmcalc.toml"),
    junit_file: JunitOption = None,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Check bounds on what models cost, for CI.
    On parameters, FLOPs, KV cache, memory; exit code 1 if a bound is broken.
    """
    if junit_file is not None:
        writable(junit_file, "--junit")
    checks = check_budget(read_budget(file), file.parent)
    if junit_file is not None:
        with written(junit_file, "--junit") as out:
            out.write(junit(file.name, checks))
    show(report(file.name, checks), fmt, output, notes)
    if broken(checks):
        raise typer.Exit(1)

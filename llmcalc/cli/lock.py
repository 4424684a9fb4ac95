from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from ..errors import InputError
from ..questions.locks import LOCK_FILE
from .shared_options import (
    AllowUnknownOption,
    NotesOption,
    OfflineOption,
    OutputOption,
    format_of_file,
    open_output,
    value_option,
)
from .target_options import OutputOptions, TargetOptions

LockFormat: TypeAlias = Literal["table", "json", "csv", "markdown", "cyclonedx"]


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help=f"Models, as of params. With --check: a lock file, {LOCK_FILE} if not given.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Count the models of a lock file again; exit code 1 for any difference.")
    ] = False,
    allow_unknown: AllowUnknownOption = False,
    offline: OfflineOption = False,
    notes: NotesOption = False,
    fmt: Annotated[
        LockFormat | None,
        value_option(
            "--format",
            "FORMAT",
            "json, cyclonedx (a bill of materials), table, csv or markdown; if not given, json, and table with "
            "--check.",
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Write down what models cost, and check it in CI.
    Revision, digest of the config, counts, cache, bytes by format, and how each part is known.
    """
    from ..questions.locks import ask_lock, ask_lock_check

    target_options = TargetOptions(allow_unknown=allow_unknown)
    chosen_targets = targets or []
    if check:
        if len(chosen_targets) > 1:
            raise InputError(f"--check: checks one lock file; expected {chosen_targets[0]} alone")
        if fmt == "cyclonedx":
            raise InputError("--format cyclonedx: lists models; expected no --check")
        lock_answer = ask_lock_check(Path(chosen_targets[0] if chosen_targets else LOCK_FILE), target_options.load)
        OutputOptions(notes, fmt or format_of_file(output), output).show_answer(lock_answer)
        return
    if not chosen_targets:
        raise InputError("missing argument TARGET, or --check (llmcalc lock --help explains)")
    lock_answer = ask_lock(chosen_targets, target_options.load)
    if fmt != "cyclonedx":
        OutputOptions(notes, fmt or format_of_file(output, "json"), output).show_answer(lock_answer)
        return
    from ..reports.cyclonedx import bill_of_materials

    with open_output(output) as output_stream:
        output_stream.write(json.dumps(bill_of_materials(lock_answer.result), indent=2) + "\n")

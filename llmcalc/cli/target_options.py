"""Options for reading and selecting models, and for writing answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..components.head_kind import HeadKind
from ..optional import OPTIONAL_PARTS
from ..reports.document import Report, report_in_encoding
from ..reports.formats import WRITERS, Format
from ..studies.model_selection import ModelFilter
from .output import store_remark
from .setting_options import CommandFunction, CommandOption, replace_parameter_by_options
from .shared_options import (
    AllowUnknownOption,
    AttentionKindOption,
    ExpertsOption,
    FormatOption,
    HeadOption,
    KindOption,
    LeastParamsOption,
    MostParamsOption,
    NotesOption,
    OfflineOption,
    OutputFileOption,
    OutputOption,
    OverridesOption,
    format_of_file,
    open_output,
)

if TYPE_CHECKING:
    from ..reports.answer import ReportedAnswer
    from ..sources.preset import Preset


class TargetOptions(NamedTuple):
    """The command-line options that determine how a TARGET (model name, file or hub id) is read.

    overrides: `path=value` of `--set`.
    head: the head that replaces the config's; default None.
    allow_unknown: whether misspelt fields and unknown sizes are ignored.
    """

    overrides: list[str] | None = None
    head: HeadKind | None = None
    allow_unknown: bool = False

    @property
    def changes_model(self) -> bool:
        """Whether the options change fields of the model."""
        return bool(self.overrides or self.head)

    def load(self, target: str, included_parts: frozenset[str] = frozenset()) -> Preset:
        """Reads a model; prints to stderr its notes, and the components of `--include` that the model lacks."""
        from ..sources.target import load

        preset = load(target, tuple(self.overrides or ()), self.head, self.allow_unknown)
        absent_parts = [
            OPTIONAL_PARTS[part_name] for part_name in sorted(included_parts) if not getattr(preset.model, part_name)
        ]
        missing_part_notes = (
            f"{part_name.option} changes nothing: the counted model has no {part_name.title}"
            for part_name in absent_parts
        )
        for model_note in (*preset.notes, *missing_part_notes):
            store_remark(f"note: {preset.name}: {model_note}")
        return preset

    def load_draft(self, target: str | None) -> Preset | None:
        """Reads a draft model without the options that change the TARGET; None without a draft model."""
        return None if target is None else TargetOptions(allow_unknown=self.allow_unknown).load(target)


class OutputOptions(NamedTuple):
    """The options that determine how an answer is written.

    notes: whether all rows and notes are printed.
    fmt: the format.
    output: the file; None (default) for stdout.
    """

    notes: bool = False
    fmt: Format = "table"
    output: Path | None = None

    @property
    def is_for_screen(self) -> bool:
        """Whether the answer is a table in short form, with only the rows and notes that fit a screen."""
        return self.fmt == "table" and not self.notes

    def show_answer(
        self,
        command_answer: ReportedAnswer,
        table_name: str | None = None,
        preset: Preset | None = None,
        **display_options: bool,
    ) -> None:
        """Writes the report of an answer. Exit code 1 if a check fails or nothing fits.

        preset: the model that errors of the report name; default none.
        display_options: `notes` and `listing`, as of `show`.
        """
        from ..sources.preset import target_in_errors

        with nullcontext() if preset is None else target_in_errors(preset):
            report = command_answer.report()
        self.show(report, table_name, **display_options)
        if not command_answer.ok:
            raise typer.Exit(1)

    def show(self, report: Report, table_name: str | None = None, notes: bool = False, listing: bool = False) -> None:
        """Writes the answer to the file or to stdout. Warnings go to stderr if the format has no notes.

        table_name: name of the table to write; default all.
        notes: whether all rows and notes are printed without the option too.
        listing: whether the answer is a list, of which all rows are printed.
        """
        format_writer = WRITERS[self.fmt]
        if table_name is not None:
            report = report.with_only_table(table_name)
        is_brief = not (notes or self.notes)
        if is_brief and self.fmt == "table" and not listing and table_name is None:
            from ..reports.screen import trim_to_screen

            report = trim_to_screen(report)
        if is_brief and self.fmt in ("table", "markdown"):
            report = report.with_limited_notes()
        for warning in report.warnings if format_writer.warns_on_stderr else ():
            store_remark(f"note: {warning}")
        with open_output(self.output) as output_stream:
            encoding = "ascii" if format_writer.is_ascii_only else getattr(output_stream, "encoding", None) or "utf-8"
            format_writer.write(
                report if encoding.lower().startswith("utf") else report_in_encoding(report, encoding), output_stream
            )


def _output_options(prints_notes: bool, fmt: Format | None, output: Path | None) -> OutputOptions:
    return OutputOptions(prints_notes, fmt or format_of_file(output), output)


OPTIONS_BY_PARAMETER: dict[str, tuple[dict[str, CommandOption], Callable[[dict[str, Any]], Any]]] = {
    "target_options": (
        {
            "overrides": CommandOption(OverridesOption, None),
            "head": CommandOption(HeadOption, None),
            "allow_unknown": CommandOption(AllowUnknownOption, False),
            "offline": CommandOption(OfflineOption, False),
        },
        lambda chosen: TargetOptions(*(chosen[name] for name in TargetOptions._fields)),
    ),
    "model_filter": (
        {
            "kind": CommandOption(KindOption, None),
            "attention": CommandOption(AttentionKindOption, None),
            "moe": CommandOption(ExpertsOption, None),
            "min_params": CommandOption(LeastParamsOption, None),
            "max_params": CommandOption(MostParamsOption, None),
        },
        lambda chosen: ModelFilter(**chosen),
    ),
    "output_options": (
        {
            "notes": CommandOption(NotesOption, False),
            "fmt": CommandOption(FormatOption, None),
            "output": CommandOption(OutputOption, None),
        },
        lambda chosen: _output_options(*chosen.values()),
    ),
    "writing_file": (
        {
            "notes": CommandOption(NotesOption, False),
            "fmt": CommandOption(FormatOption, None),
            "output_file": CommandOption(OutputFileOption, None),
        },
        lambda chosen: _output_options(*chosen.values()),
    ),
}
"""Parameter of a command → (options that replace the parameter, function that combines the options' values).

`writing_file` is of commands whose option `--output` is a number of tokens.
"""


def add_target_options(command: CommandFunction) -> CommandFunction:
    """Replaces a command's parameters `target_options`, `model_filter` and `output_options` by typer options."""
    for parameter in inspect.signature(command).parameters:
        if parameter in OPTIONS_BY_PARAMETER:
            command = replace_parameter_by_options(parameter, *OPTIONS_BY_PARAMETER[parameter])(command)
    return command

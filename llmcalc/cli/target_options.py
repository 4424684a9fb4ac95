"""The two ends of a command: options by which its models are read or selected, and by which its answer is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..components.head_kind import HeadKind
from ..optional import OPTIONAL_PARTS
from ..reports.document import Report, fitted_to
from ..reports.formats import WRITERS, Format
from ..studies.selection import Selection
from .options import (
    AllowUnknown,
    AttentionKind,
    Experts,
    FormatOption,
    HeadOption,
    Kind,
    LeastParams,
    MostParams,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    opened,
)
from .output import remark
from .setting_options import CommandFunction, OptionOfCommand, takes

if TYPE_CHECKING:
    from ..sources.preset import Preset


class Reading(NamedTuple):
    """How a TARGET is read.

    overrides: `path=value` of `--set`. head: the head that replaces the config's. allow_unknown: whether to ignore
    misspelt fields and unknown sizes.
    """

    overrides: list[str] | None = None
    head: HeadKind | None = None
    allow_unknown: bool = False

    @property
    def changes(self) -> bool:
        """Whether the model is changed."""
        return bool(self.overrides or self.head)

    def load(self, target: str, include: frozenset[str] = frozenset()) -> Preset:
        """The model of a TARGET. What its reader remarks goes to stderr after the answer, and so does an optional part
        of `include` that the model does not have.
        """
        from ..sources.target import load

        preset = load(target, tuple(self.overrides or ()), self.head, self.allow_unknown)
        absent = [OPTIONAL_PARTS[part] for part in sorted(include) if not getattr(preset.model, part)]
        missing = (f"{part.option} changes nothing: the model has no {part.title}" for part in absent)
        for note in (*preset.notes, *missing):
            remark(f"note: {preset.name}: {note}")
        return preset


class Writing(NamedTuple):
    """How an answer is written. notes: all notes, not the first alone. output: the file; None for stdout."""

    notes: bool = False
    fmt: Format = "table"
    output: Path | None = None

    def show(self, report: Report, table: str | None = None, notes: bool = False, listing: bool = False) -> None:
        """Writes the answer to the file, whole or not at all, or to stdout. Warnings go to stderr where the format has
        no room for notes.

        table: the one to write, of several. notes: whether to print all rows and notes, whatever the option says.
        listing: whether the answer is a list, of which all rows are printed.
        """
        writer = WRITERS[self.fmt]
        if table is not None:
            report = report.only(table)
        brief = not (notes or self.notes)
        if brief and self.fmt == "table" and not listing and table is None:
            from ..reports.screen import on_a_screen

            report = on_a_screen(report)
        if brief and self.fmt in ("table", "markdown"):
            report = report.brief()
        for text in report.warnings if writer.warns_apart else ():
            remark(f"note: {text}")
        with opened(self.output) as out:
            encoding = "ascii" if writer.ascii else getattr(out, "encoding", None) or "utf-8"
            writer.write(report if encoding.lower().startswith("utf") else fitted_to(report, encoding), out)


OPTIONS: dict[str, tuple[dict[str, OptionOfCommand], Callable[[dict[str, Any]], Any]]] = {
    "reading": (
        {
            "overrides": OptionOfCommand(Overrides, None),
            "head": OptionOfCommand(HeadOption, None),
            "allow_unknown": OptionOfCommand(AllowUnknown, False),
            "offline": OptionOfCommand(OfflineOption, False),
        },
        lambda chosen: Reading(*(chosen[name] for name in Reading._fields)),
    ),
    "selection": (
        {
            "kind": OptionOfCommand(Kind, None),
            "attention": OptionOfCommand(AttentionKind, None),
            "moe": OptionOfCommand(Experts, None),
            "least": OptionOfCommand(LeastParams, None),
            "most": OptionOfCommand(MostParams, None),
        },
        lambda chosen: Selection(**chosen),
    ),
    "writing": (
        {
            "notes": OptionOfCommand(NotesOption, False),
            "fmt": OptionOfCommand(FormatOption, "table"),
            "output": OptionOfCommand(Output, None),
        },
        lambda chosen: Writing(**chosen),
    ),
}
"""Parameter of a command → the options in its place, and what it gets of their values."""


def takes_target(command: CommandFunction) -> CommandFunction:
    """Gives a command the options of reading TARGETs in the place of its parameter `reading`, those of selecting
    presets in the place of `selection`, and those of writing the answer in the place of `writing`. It may lack some.
    """
    for parameter in inspect.signature(command).parameters:
        if parameter in OPTIONS:
            command = takes(parameter, *OPTIONS[parameter])(command)
    return command

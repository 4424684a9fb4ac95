"""What a command answers, before any format is chosen: data for programs, tables for people.

A cell holds the raw value; how it is written is its column's business. So CSV has raw numbers, text has rounded ones,
and nothing is computed twice. Named tuples: a data class takes four times as long to be made, at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..characters import fitted, printable
from ..errors import InputError

SCHEMA_VERSION = 2

Justify = Literal["left", "right"]


MOST_NOTES = 2
"""Notes below a target's tables where not all were asked for; warnings are always there."""

COLOURS = {
    "fits": "green",
    "equal": "green",
    "=": "green",
    "ok": "green",
    "tight": "yellow",
    "±": "yellow",
    "no": "red",
    "≠": "red",
}
"""First word of a verdict → its colour on a terminal, which says nothing that the word does not."""


class Column(NamedTuple):
    """A column of a table.

    key: its name in CSV, with the unit.
    title: its heading in text.
    write: how a raw value is written as text.
    wrap: whether it may break lines.
    verdict: whether its values are verdicts, which have a colour on a terminal.
    brief: how a value that is text already is shortened for people.
    bar: whether its values are bars, which only people read, and only where the width allows.
    marks: regular expression → the colour on a terminal of what it matches.
    """

    key: str
    title: str
    write: Callable[[Any], str] = str
    justify: Justify = "right"
    wrap: bool = False
    verdict: bool = False
    brief: Callable[[str], str] = str
    bar: bool = False
    marks: Mapping[str, str] = MappingProxyType({})

    def colour(self, text: str, value: Any) -> str:
        """The colour of a cell; empty for none."""
        if self.bar and value is not None:
            return str(value.colour)
        return COLOURS.get(text.split(" ", maxsplit=1)[0].rstrip(",:"), "") if self.verdict and text else ""


class Shown(NamedTuple):
    """A raw value, and how people read it where the cells of a column have several units."""

    value: Any
    text: str


class Linked(str):
    """A note with addresses that a reader may follow, because they are from llmcalc's own presets. In every other
    text Markdown makes no link.
    """

    __slots__ = ()


def text_of(cell: Shown) -> str:
    """How a column writes such cells."""
    return cell.text


class Row(NamedTuple):
    """One value a column; None leaves the cell empty. depth: how far the first cell is indented in text."""

    cells: Sequence[Any]
    depth: int = 0
    strong: bool = False


class Table(NamedTuple):
    """title: the subject. answer: what the command found, in a few words. aside: of what, beside or below them. notes:
    conventions and remarks, below. name: what `--table` calls it. target: the TARGET that it answers, as it was asked
    for; empty where the rows name theirs in a column `target`. sooner: whether a screen gives it room before the tables
    above it. centre: the row around which rows are kept where there is no room for all; by default the first. left_out:
    what a screen has no room for, in words.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    aside: str = ""
    notes: Sequence[str] = ()
    answer: str = ""
    name: str = ""
    target: str = ""
    sooner: bool = False
    centre: int = 0
    left_out: str = ""

    @property
    def heading(self) -> str:
        """`Llama 3 8B: 8.03 B parameters`."""
        return f"{self.title}: {self.answer}" if self.answer else self.title

    def without_bars(self) -> Table:
        """The same for programs."""
        kept = [i for i, column in enumerate(self.columns) if not column.bar]
        if len(kept) == len(self.columns):
            return self
        rows = [row._replace(cells=[row.cells[i] for i in kept]) for row in self.rows]
        return self._replace(columns=[self.columns[i] for i in kept], rows=rows)


class Report(NamedTuple):
    """data: the JSON document without its version (a list of documents for several targets). tables: the same for
    people.

    text: what a terminal gets as it is, in place of tables (LaTeX). warnings: those of the notes that must not pass in
    silence where a format has no room for notes (CSV), each with the name of its model.
    """

    data: dict[str, Any] | list[dict[str, Any]]
    tables: Sequence[Table] = ()
    text: str = ""
    warnings: Sequence[str] = ()

    def of(self, target: str) -> Report:
        """The same, every table answering that TARGET."""
        return self._replace(tables=[table._replace(target=target) for table in self.tables])

    def only(self, name: str) -> Report:
        """The tables of that name alone.

        Raises `InputError` where there is none.
        """
        names = list(dict.fromkeys(table.name for table in self.tables if table.name))
        if name not in names:
            known = (
                f"expected one of {', '.join(names)}" if names else "expected no --table, since the answer is one table"
            )
            raise InputError(f"--table: there is no table '{name}'; {known}")
        return self._replace(tables=[table for table in self.tables if table.name == name])

    def document(self) -> dict[str, Any] | list[dict[str, Any]]:
        """What `--format json` prints: every document carries `schema_version`, and all notes of its tables."""
        data = self.with_notes()
        if isinstance(data, list):
            return [{"schema_version": SCHEMA_VERSION, **one} for one in data]
        return {"schema_version": SCHEMA_VERSION, **data}

    def with_notes(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The data, with the notes of all tables where they are one document's and it has none of its own."""
        if isinstance(self.data, list):
            return self.data
        return {"notes": said(note for table in self.tables for note in table.notes)} | self.data

    def brief(self) -> Report:
        """The same with its warnings and at most `MOST_NOTES` other notes for each target, and how much there is
        besides.
        """
        tables: list[Table] = []
        room, hidden = MOST_NOTES, 0
        for table in [*self.tables, None]:
            more = [tables[-1].left_out] if tables and tables[-1].left_out else []
            more += [f"{hidden} more note{'s' * (hidden > 1)}"] if hidden else []
            if more and (table is None or table.answer):
                notes = [*tables[-1].notes, f"{', '.join(more)}: --notes"]
                tables[-1], hidden = tables[-1]._replace(notes=notes), 0
            if table is None:
                break
            room = MOST_NOTES if table.answer else room
            kept: list[str] = []
            for note in table.notes:
                warning = any(one.endswith(note) for one in self.warnings)
                if warning or room:
                    kept.append(note)
                    room -= not warning
            hidden += len(table.notes) - len(kept)
            tables.append(table._replace(notes=kept))
        return self._replace(tables=tables)


def readable(report: Report) -> Report:
    """The report as people get it: each of its texts on one line and printable, since names in it come from files that
    others wrote (`characters.printable`). Every format but JSON, whose own escapes do the same, writes this report.
    """
    return _with_texts(report, printable)


def fitted_to(report: Report, encoding: str) -> Report:
    """The readable report with every text of its tables as the encoding can hold it; data stay as they are."""
    return _with_texts(report, lambda text: fitted(printable(text), encoding))


def _with_texts(report: Report, change: Callable[[str], str]) -> Report:
    """The report with every text of its tables changed, and every line of its own text."""

    def changing(write: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda value: change(write(value))

    def cell(value: Any) -> Any:
        if isinstance(value, Shown):
            return Shown(cell(value.value), change(value.text))
        return change(value) if isinstance(value, str) else value

    def note(text: str) -> str:
        return Linked(change(text)) if isinstance(text, Linked) else change(text)

    tables = [
        table._replace(
            title=change(table.title),
            answer=change(table.answer),
            aside=change(table.aside),
            notes=[note(text) for text in table.notes],
            columns=[
                column._replace(title=change(column.title), write=changing(column.write)) for column in table.columns
            ],
            rows=[row._replace(cells=[cell(value) for value in row.cells]) for row in table.rows],
            target=printable(table.target),  # as it was asked for, in any encoding
        )
        for table in report.tables
    ]
    text = "\n".join(change(line) for line in report.text.split("\n"))
    return report._replace(tables=tables, text=text, warnings=[change(one) for one in report.warnings])


def cell_text(column: Column, value: Any) -> str:
    """A cell as a person reads it."""
    if value is None:
        return ""
    return column.brief(value) if isinstance(value, str) else column.write(value)


def one_or_list(documents: Sequence[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
    """One target's document as it is, several targets' as a list in the order given."""
    return documents[0] if len(documents) == 1 else list(documents)


def joined(reports: Sequence[Report]) -> Report:
    """Several targets' answers as one:
    their documents, their tables one after the other, whatever text they have, and their warnings.
    """
    told = [r.with_notes() for r in reports]
    documents = [one for data in told for one in (data if isinstance(data, list) else [data])]
    tables, warnings = [t for r in reports for t in r.tables], [w for r in reports for w in r.warnings]
    return Report(one_or_list(documents), tables, "".join(r.text for r in reports), warnings)


def said(notes: Iterable[str]) -> list[str]:
    """The notes that say something, each once: a note with nothing to say is empty text."""
    return list(dict.fromkeys(note for note in notes if note))


def noted(tables: Sequence[Table], notes: Iterable[str]) -> list[Table]:
    """The tables, with the notes that govern all of them below the last one."""
    *above, last = tables
    return [*above, last._replace(notes=said(notes))]

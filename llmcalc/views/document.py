"""What a command answers, before any format is chosen: data for programs, tables for people.

A cell holds the raw value; how it is written is its column's business. So CSV has raw numbers, text has rounded ones,
and nothing is computed twice. Named tuples: a data class takes four times as long to be made, at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ..characters import fitted

SCHEMA_VERSION = 2

Justify = Literal["left", "right"]


class Column(NamedTuple):
    """key: its name in CSV, with the unit. title: its heading in text. write: a raw value as text.
    wrap: it may break lines.
    """

    key: str
    title: str
    write: Callable[[Any], str] = str
    justify: Justify = "right"
    wrap: bool = False


class Row(NamedTuple):
    """One value a column; None leaves the cell empty. depth: how far the first cell is indented in text."""

    cells: Sequence[Any]
    depth: int = 0
    strong: bool = False


class Table(NamedTuple):
    """title: the subject. answer: what the command found, in a few words. aside: of what, beside or below them. notes:
    conventions and remarks, below.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    aside: str = ""
    notes: Sequence[str] = ()
    answer: str = ""

    @property
    def heading(self) -> str:
        """`Llama 3 8B: 8.03 B parameters`."""
        return f"{self.title}: {self.answer}" if self.answer else self.title


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

    def document(self) -> dict[str, Any] | list[dict[str, Any]]:
        """What `--format json` prints: every document carries `schema_version`."""
        if isinstance(self.data, list):
            return [{"schema_version": SCHEMA_VERSION, **one} for one in self.data]
        return {"schema_version": SCHEMA_VERSION, **self.data}


def fitted_to(report: Report, encoding: str) -> Report:
    """The report with every text of its tables as the encoding can hold it; data stay as they are."""

    def fit(text: str) -> str:
        return fitted(text, encoding)

    def fitting(write: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda value: fit(write(value))

    def columns(table: Table) -> list[Column]:
        return [column._replace(title=fit(column.title), write=fitting(column.write)) for column in table.columns]

    def rows(table: Table) -> list[Row]:
        return [row._replace(cells=[fit(c) if isinstance(c, str) else c for c in row.cells]) for row in table.rows]

    tables = [
        table._replace(
            title=fit(table.title),
            answer=fit(table.answer),
            aside=fit(table.aside),
            notes=[fit(note) for note in table.notes],
            columns=columns(table),
            rows=rows(table),
        )
        for table in report.tables
    ]
    return report._replace(tables=tables, text=fit(report.text), warnings=[fit(one) for one in report.warnings])


def cell_text(column: Column, value: Any) -> str:
    """A cell as a person reads it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else column.write(value)


def one_or_list(documents: Sequence[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
    """One target's document as it is, several targets' as a list in the order given."""
    return documents[0] if len(documents) == 1 else list(documents)


def joined(reports: Sequence[Report]) -> Report:
    """Several targets' answers as one:
    their documents, their tables one after the other, whatever text they have, and their warnings.
    """
    documents = [one for r in reports for one in (r.data if isinstance(r.data, list) else [r.data])]
    tables, warnings = [t for r in reports for t in r.tables], [w for r in reports for w in r.warnings]
    return Report(one_or_list(documents), tables, "".join(r.text for r in reports), warnings)


def said(notes: Iterable[str]) -> list[str]:
    """The notes that say something, each once: a note with nothing to say is empty text."""
    return list(dict.fromkeys(note for note in notes if note))


def noted(tables: Sequence[Table], notes: Iterable[str]) -> list[Table]:
    """The tables, with the notes that govern all of them below the last one."""
    *above, last = tables
    return [*above, last._replace(notes=said(notes))]

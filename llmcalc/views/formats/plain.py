"""The formats for programs and for documents: JSON with raw integers, CSV with raw values, Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from ..document import Report, Shown, Table, cell_text

TARGET = "target"
"""The first column of every CSV: what was asked for."""

WITHIN = " / "
"""Between the name of a part and those of the parts in it: in CSV no indentation tells what a row is a part of."""


def json(report: Report, out: IO[str]) -> None:
    """One document, or a list of them for several targets; in ASCII, other characters escaped."""
    out.write(f"{json_text(report, indent=2)}\n")


def json_text(report: Report, indent: int | None = None) -> str:
    """The same as text; on one line without `indent`."""
    import json as library

    return library.dumps(report.document(), indent=indent, default=_listed)


def _listed(value: Any) -> Any:
    """A set as a sorted list, and anything else that JSON has not as text."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def csv(report: Report, out: IO[str]) -> None:
    """Raw values of one kind of table, that of the first, for every target: one heading line, `target` first."""
    import csv as library

    writer = library.writer(out, lineterminator="\n")
    tables = [table.without_bars() for table in report.tables]
    keys = [column.key for column in tables[0].columns]
    named = keys[0] == TARGET
    writer.writerow(keys if named else [TARGET, *keys])
    for table in tables:
        if table.name == tables[0].name and [column.key for column in table.columns] == keys:
            writer.writerows(cells if named else [table.target, *cells] for cells in _cells(table))


def records(table: Table) -> list[dict[str, Any]]:
    """The rows as dicts of raw values, None where a cell is empty; `target` first, as in CSV."""
    table = table.without_bars()
    keys = [column.key for column in table.columns]
    found = [dict(zip(keys, cells, strict=True)) for cells in _cells(table)]
    empty = [{key: None if value == "" else value for key, value in row.items()} for row in found]
    return empty if keys[0] == TARGET else [{TARGET: table.target, **row} for row in empty]


def _cells(table: Table) -> Iterator[list[Any]]:
    """The rows, the first cell of each after those that it stands below: `layers / mlp`."""
    above: list[str] = []
    for row in table.rows:
        first, *rest = (_raw(value) for value in row.cells)
        above[row.depth :] = [str(first)]
        yield [WITHIN.join(above) if row.depth else first, *rest]


def _raw(value: Any) -> Any:
    """A value as CSV has it: nothing for none, and a whole number without a decimal point."""
    if isinstance(value, Shown):
        value = value.value
    if value is None:
        return ""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def markdown(report: Report, out: IO[str]) -> None:
    """GitHub-flavoured tables, numbers to the right."""
    for i, table in enumerate(report.tables):
        if i:
            out.write("\n")
        _markdown_table(table.without_bars(), out)


def _markdown_table(table: Table, out: IO[str]) -> None:
    if table.title:
        out.write(f"**{table.heading}**" + (f" {table.aside}" if table.aside else "") + "\n\n")
    if table.rows:
        out.write("| " + " | ".join(_escaped(c.title) for c in table.columns) + " |\n")
        out.write("|" + "|".join("---:" if c.justify == "right" else ":---" for c in table.columns) + "|\n")
    for row in table.rows:
        texts = [_escaped(cell_text(c, v)) for c, v in zip(table.columns, row.cells, strict=True)]
        texts[0] = "&nbsp;" * 2 * row.depth + texts[0]
        out.write("| " + " | ".join(texts) + " |\n")
    for note in table.notes:
        out.write(f"\n{note}\n")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

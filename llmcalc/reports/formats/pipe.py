"""Tables for a pipe or a file, as plain text without colour.

The text is the same as that of `table`, which a test checks. It is written without rich, whose import takes longer than
counting.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import IO

from ..bars import LENGTHS, Bar
from ..document import Report, Row, Table, cell_text, printable_report

INDENT = "  "
GAP = "  "


def can_render(report: Report, stream: IO[str]) -> bool:
    """Whether this module can write the tables: rich would use no colour, and break no line of a cell."""
    terminal = stream.isatty() or os.environ.get("FORCE_COLOR", "") or os.environ.get("TTY_COMPATIBLE") == "1"
    return not terminal and not _breaks_cells(report, width_of_terminal())


def _breaks_cells(report: Report, width: int) -> bool:
    """Whether a table with columns that may be broken is wider than `width`."""
    return any(
        any(column.wrap for column in table.columns)
        and len(INDENT) + sum(_column_widths(_cell_texts(table))) + len(GAP) * (len(table.columns) - 1) > width
        for table in with_fitting_bars(printable_report(report).tables, width)
        if table.rows
    )


def width_of_terminal() -> int:
    """Returns the terminal's width as rich does: COLUMNS, else a standard stream's width, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and (terminal_columns := os.get_terminal_size(stream.fileno()).columns):
                return terminal_columns
        except (AttributeError, ValueError, OSError):
            continue
    return 80


def render(report: Report, stream: IO[str], width: int | None = None) -> None:
    """Writes every table of the report. width: columns at which notes wrap; default the terminal's."""
    width = width_of_terminal() if width is None else width
    report = printable_report(report)
    stream.write(report.text)
    for i, table in enumerate(with_fitting_bars(report.tables, width)):
        if i:
            stream.write("\n")
        for line in _table_lines(table, width):
            stream.write(line.rstrip() + "\n")


def with_fitting_bars(tables: Sequence[Table], width: int) -> list[Table]:
    """Returns the tables with bars of the largest common scale that fits, or without bars if none fits."""
    lengths = [_bar_length(table, width) for table in tables]
    length = min((bar_length for bar_length in lengths if bar_length), default=0)
    return [
        _with_bars(table, length) if bar_length else table.without_bars()
        for table, bar_length in zip(tables, lengths, strict=True)
    ]


def _bar_length(table: Table, width: int) -> int:
    """Returns the length of a full bar that fits beside the other columns; 0 without room or bars."""
    bar_parts = [cell.part for row in table.rows for cell in row.cells if isinstance(cell, Bar)]
    if not bar_parts:
        return 0
    free_width = (
        width
        - len(INDENT)
        - sum(len(GAP) + column_width for column_width in _column_widths(_cell_texts(table.without_bars())))
    )
    return next((bar_length for bar_length in LENGTHS if round(max(bar_parts) * bar_length) <= free_width), 0)


def _with_bars(table: Table, length: int) -> Table:
    def row_with_bars(row: Row) -> Row:
        return row._replace(
            cells=[column._replace(length=length) if isinstance(column, Bar) else column for column in row.cells]
        )

    return table._replace(rows=[row_with_bars(row) for row in table.rows])


def _table_lines(table: Table, width: int) -> Iterator[str]:
    title, subtitle = table.heading, table.aside
    if title:
        fits_on_line = len(title) + 3 + len(subtitle) <= width
        yield from _wrapped_lines(f"{title}   {subtitle}" if subtitle and fits_on_line else title, width)
        if subtitle and not fits_on_line:
            yield from indented_lines(subtitle, width)
    if table.rows:
        yield from _grid_lines(table)
        if table.notes:
            yield ""
    for note in table.notes:
        yield from indented_lines(note, width, hanging_indent=INDENT)


def line_count(table: Table, width: int) -> int:
    """Returns the number of lines of a table without its notes. Rows that are too wide take several lines."""
    table = table.without_bars()._replace(notes=())
    heading = len(list(_table_lines(table._replace(rows=()), width)))
    if not table.rows:
        return heading
    cell_texts = _cell_texts(table)
    other_width = sum(
        column_width + len(GAP)
        for column_width, cell_column in zip(_column_widths(cell_texts), table.columns, strict=True)
        if not cell_column.wrap
    ) + len(INDENT)
    wrapped_columns = max(1, sum(column.wrap for column in table.columns))
    wrapped_width = max(1, (width - other_width) // wrapped_columns - len(GAP))
    rows = sum(
        max(
            -(-len(cell_text) // wrapped_width) if cell_column.wrap else 1
            for cell_text, cell_column in zip(cells, table.columns, strict=True)
        )
        or 1
        for cells in cell_texts
    )
    return heading + 1 + rows


def _cell_texts(table: Table) -> list[list[str]]:
    """Returns the cells of the heading and of every row, as text."""
    rows = [
        [cell_text(cell_column, cell) for cell_column, cell in zip(table.columns, row.cells, strict=True)]
        for row in table.rows
    ]
    for row, cells in zip(table.rows, rows, strict=True):
        cells[0] = INDENT * row.depth + cells[0]
    return [[column.title for column in table.columns], *rows]


def _column_widths(texts: list[list[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*texts, strict=True)]


def _grid_lines(table: Table) -> Iterator[str]:
    cell_texts = _cell_texts(table)
    widths = _column_widths(cell_texts)
    for i, cells in enumerate(cell_texts):
        if i == 1:
            yield INDENT + "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
        padded_cells = [
            cell_text.rjust(column_width) if column.justify == "right" else cell_text.ljust(column_width)
            for cell_text, column_width, column in zip(cells, widths, table.columns, strict=True)
        ]
        yield INDENT + GAP.join(padded_cells)


def indented_lines(text: str, width: int, hanging_indent: str = "") -> Iterator[str]:
    """Yields the lines of a text above or below a table. hanging_indent: indent of all lines after the first."""
    for line in _wrapped_lines(text, width - len(INDENT), hanging_indent):
        yield INDENT + line


def _wrapped_lines(text: str, width: int, hanging_indent: str = "") -> Iterator[str]:
    """Yields lines of at most `width`, broken between words. A longer word (a link) gets a separate line.

    A percent sign stays beside its number.

    hanging_indent: indent of the lines after the first.
    """
    line = ""
    for word in re.findall(r"\s*\S+(?: %\S*)?\s*", text):
        if line.strip() and len(line) + len(word.rstrip()) > width:
            yield line.rstrip()
            line = hanging_indent
        line += word
    if line:
        yield line.rstrip()

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

from ..bars import BAR_LENGTHS, TextBar
from ..document import Report, Row, Table, cell_text, printable_report

INDENT = "  "
COLUMN_GAP = "  "


def can_render(report: Report, output_stream: IO[str]) -> bool:
    """Whether plain text output equals rich's output: not to a terminal, and without colours and wrapped cells."""
    is_terminal = output_stream.isatty() or os.environ.get("FORCE_COLOR", "") or os.environ.get("TTY_COMPATIBLE") == "1"
    return not is_terminal and not _needs_wrapping(report, width_of_terminal())


def _needs_wrapping(report: Report, line_width: int) -> bool:
    """Whether a table with columns that may be broken is wider than `line_width`."""
    return any(
        any(column.may_wrap for column in table.columns)
        and len(INDENT) + sum(_column_widths(_cell_texts(table))) + len(COLUMN_GAP) * (len(table.columns) - 1)
        > line_width
        for table in with_fitting_bars(printable_report(report).tables, line_width)
        if table.rows
    )


def width_of_terminal() -> int:
    """Returns the terminal's width as rich does: COLUMNS, else a standard stream's width, else 80."""
    columns_setting = os.environ.get("COLUMNS", "")
    if columns_setting.isdigit() and int(columns_setting):
        return int(columns_setting)
    for standard_stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            if standard_stream is not None and (
                terminal_columns := os.get_terminal_size(standard_stream.fileno()).columns
            ):
                return terminal_columns
        except (AttributeError, ValueError, OSError):
            continue
    return 80


def render(report: Report, output_stream: IO[str], width: int | None = None) -> None:
    """Writes every table of the report. width: columns at which notes wrap; default the terminal's."""
    width = width_of_terminal() if width is None else width
    report = printable_report(report)
    output_stream.write(report.text)
    for table_index, table in enumerate(with_fitting_bars(report.tables, width)):
        if table_index:
            output_stream.write("\n")
        for line in _table_lines(table, width):
            output_stream.write(line.rstrip() + "\n")


def with_fitting_bars(tables: Sequence[Table], line_width: int) -> list[Table]:
    """Returns the tables with bars of the largest common scale that fits, or without bars if none fits."""
    bar_lengths = [_bar_length(table, line_width) for table in tables]
    shortest_bar = min((bar_length for bar_length in bar_lengths if bar_length), default=0)
    return [
        _table_with_bars(table, shortest_bar) if bar_length else table.without_bars()
        for table, bar_length in zip(tables, bar_lengths, strict=True)
    ]


def _bar_length(table: Table, line_width: int) -> int:
    """Returns the length of a full bar that fits next to the other columns; 0 without room or bars."""
    bar_fractions = [cell.fraction for row in table.rows for cell in row.cells if isinstance(cell, TextBar)]
    if not bar_fractions:
        return 0
    column_widths = _column_widths(_cell_texts(table.without_bars()))
    bar_width = line_width - len(INDENT) - sum(len(COLUMN_GAP) + column_width for column_width in column_widths)
    return next((bar_length for bar_length in BAR_LENGTHS if round(max(bar_fractions) * bar_length) <= bar_width), 0)


def _table_with_bars(table: Table, bar_length: int) -> Table:
    def row_with_bars(row: Row) -> Row:
        cells_with_bars = [
            cell._replace(length=bar_length) if isinstance(cell, TextBar) else cell for cell in row.cells
        ]
        return row._replace(cells=cells_with_bars)

    return table._replace(rows=[row_with_bars(row) for row in table.rows])


def _table_lines(table: Table, line_width: int) -> Iterator[str]:
    heading, subtitle = table.heading, table.subtitle
    if heading:
        fits_on_line = len(heading) + 3 + len(subtitle) <= line_width
        yield from _wrapped_lines(f"{heading}   {subtitle}" if subtitle and fits_on_line else heading, line_width)
        if subtitle and not fits_on_line:
            yield from indented_lines(subtitle, line_width)
    if table.rows:
        yield from _grid_lines(table)
        if table.notes:
            yield ""
    for note in table.notes:
        yield from indented_lines(note, line_width, hanging_indent=INDENT)


def line_count(table: Table, line_width: int) -> int:
    """Returns the number of lines of a table without its notes. Rows that are too wide take several lines."""
    table = table.without_bars()._replace(notes=())
    heading_line_count = len(list(_table_lines(table._replace(rows=()), line_width)))
    if not table.rows:
        return heading_line_count
    cell_texts = _cell_texts(table)
    fixed_width = sum(
        column_width + len(COLUMN_GAP)
        for column_width, cell_column in zip(_column_widths(cell_texts), table.columns, strict=True)
        if not cell_column.may_wrap
    ) + len(INDENT)
    wrapped_column_count = max(1, sum(column.may_wrap for column in table.columns))
    wrapped_width = max(1, (line_width - fixed_width + len(COLUMN_GAP)) // wrapped_column_count - len(COLUMN_GAP))
    row_line_count = sum(
        max(
            -(-len(cell_text) // wrapped_width) if cell_column.may_wrap else 1
            for cell_text, cell_column in zip(row_cells, table.columns, strict=True)
        )
        or 1
        for row_cells in cell_texts
    )
    return heading_line_count + 1 + row_line_count


def _cell_texts(table: Table) -> list[list[str]]:
    """Returns the cells of the heading and of every row, as text."""
    row_texts = [
        [cell_text(column, cell) for column, cell in zip(table.columns, row.cells, strict=True)] for row in table.rows
    ]
    for row, row_cells in zip(table.rows, row_texts, strict=True):
        row_cells[0] = INDENT * row.depth + row_cells[0]
    return [[column.title for column in table.columns], *row_texts]


def _column_widths(cell_texts: list[list[str]]) -> list[int]:
    return [max(map(len, row_cells)) for row_cells in zip(*cell_texts, strict=True)]


def _grid_lines(table: Table) -> Iterator[str]:
    cell_texts = _cell_texts(table)
    column_widths = _column_widths(cell_texts)
    for line_index, row_cells in enumerate(cell_texts):
        if line_index == 1:
            yield INDENT + "─" * (sum(column_widths) + len(COLUMN_GAP) * (len(column_widths) - 1))
        padded_cells = [
            cell_text.rjust(column_width) if column.justify == "right" else cell_text.ljust(column_width)
            for cell_text, column_width, column in zip(row_cells, column_widths, table.columns, strict=True)
        ]
        yield INDENT + COLUMN_GAP.join(padded_cells)


def indented_lines(note_text: str, line_width: int, hanging_indent: str = "") -> Iterator[str]:
    """Yields the lines of a text above or below a table. hanging_indent: indent of all lines after the first."""
    for wrapped_line in _wrapped_lines(note_text, line_width - len(INDENT), hanging_indent):
        yield INDENT + wrapped_line


def _wrapped_lines(note_text: str, line_width: int, hanging_indent: str = "") -> Iterator[str]:
    """Yields lines of at most `line_width`, broken between words. A longer word (a link) gets a separate line.

    A percent sign stays beside its number.

    hanging_indent: indent of the lines after the first.
    """
    current_line = ""
    for word_with_spaces in re.findall(r"\s*\S+(?: %\S*)?\s*", note_text):
        if current_line.strip() and len(current_line) + len(word_with_spaces.rstrip()) > line_width:
            yield current_line.rstrip()
            current_line = hanging_indent
        current_line += word_with_spaces
    if current_line:
        yield current_line.rstrip()

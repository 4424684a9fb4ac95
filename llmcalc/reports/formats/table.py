"""Tables for a terminal, written with rich.

Every text is passed to rich as a `Text`, because rich interprets markup (`[red]`, `[link=…]`) and emoji in a `str`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from ..document import Report, Table, cell_text, printable_report
from . import pipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table as RichTable
    from rich.text import Text


def render(report: Report, output_stream: IO[str], width: int | None = None) -> None:
    """Writes every table of the report. width: characters; default the terminal's width or COLUMNS."""
    if width is None and pipe.can_render(report, output_stream):
        pipe.render(report, output_stream)
        return
    from rich.console import Console

    report = printable_report(report)
    output_stream.write(report.text)
    console = Console(file=output_stream, width=width, highlight=False)
    for table_index, table in enumerate(pipe.with_fitting_bars(report.tables, console.width)):
        if table_index:
            console.print()
        _print_heading(console, table)
        if table.rows:
            _print_table_rows(console, table)
        if table.notes and table.rows:
            console.print()
        for note in table.notes:
            _print_indented(console, note, hanging_indent=pipe.INDENT)


def _print_heading(console: Console, table: Table) -> None:
    """Prints the heading, with the aside on the same line if it fits."""
    from rich.text import Text

    if not table.title:
        return
    fits_on_line = len(table.heading) + 3 + len(table.subtitle) <= console.width
    heading = Text(table.heading, style="bold")
    if table.subtitle and fits_on_line:
        heading.append("   " + table.subtitle, style="not bold dim")
    for line in heading.wrap(console, console.width):
        line.rstrip()
        console.print(line, soft_wrap=True)
    if table.subtitle and not fits_on_line:
        _print_indented(console, table.subtitle)


def _print_indented(console: Console, note_text: str, hanging_indent: str = "") -> None:
    from rich.text import Text

    for line in pipe.indented_lines(note_text, console.width, hanging_indent):
        console.print(Text(line, style="dim"), soft_wrap=True)  # the terminal breaks longer lines: a link stays whole


def _print_table_rows(console: Console, table: Table) -> None:
    from rich.padding import Padding

    table_grid = Padding(_table_grid(table), (0, 0, 0, 2), expand=False)
    line_width = console.width
    needed_width = console.measure(table_grid, options=console.options.update(max_width=10_000)).minimum
    console.width = max(line_width, needed_width)  # rich would cut numbers at the edge; the terminal breaks the line
    for line_segments in console.render_lines(table_grid, pad=False):
        console.print(_without_trailing_spaces(line_segments), soft_wrap=True)
    console.width = line_width


def _without_trailing_spaces(line_segments: Iterable[Segment]) -> Text:
    """Returns a table's line without the spaces with which rich pads it to the table's width."""
    from rich.text import Text

    line = Text.assemble(*((segment.text, segment.style or "") for segment in line_segments))
    line.rstrip()
    return line


def _table_grid(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table_grid = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold", collapse_padding=True
    )
    cell_texts = [
        [cell_text(cell_column, cell_value) for cell_column, cell_value in zip(table.columns, row.cells, strict=True)]
        for row in table.rows
    ]
    for row, row_cells in zip(table.rows, cell_texts, strict=True):
        row_cells[0] = "  " * row.depth + row_cells[0]
    for column_index, column in enumerate(table.columns):
        column_width = max(len(column.title), *(len(row_cells[column_index]) for row_cells in cell_texts))
        table_grid.add_column(
            Text(column.title),
            justify=column.justify,
            no_wrap=not column.may_wrap,
            min_width=None if column.may_wrap else column_width,
            overflow="fold",
        )
    for row, row_cells in zip(table.rows, cell_texts, strict=True):
        coloured_cells = [
            Text(padded_text, style=column.colour(padded_text, raw_value))
            for column, padded_text, raw_value in zip(table.columns, row_cells, row.cells, strict=True)
        ]
        for column, coloured_text in zip(table.columns, coloured_cells, strict=True):
            for mark_pattern, colour in column.mark_colours.items():
                coloured_text.highlight_regex(mark_pattern, colour)
        table_grid.add_row(*coloured_cells, style="bold" if row.is_bold else None)
    return table_grid

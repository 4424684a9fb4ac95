"""HTML tables for notebooks, with inline styles and the colours of the page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..document import Report, Row, Table, cell_text, printable_report

CELL_STYLE = "padding:1px 10px;border:none;background:none"


def tables_html(report: Report) -> str:
    """Returns the HTML of all tables of a report."""
    return "\n".join(line for table in printable_report(report).tables for line in _table_html(table))


def _table_html(table: Table) -> Iterator[str]:
    yield '<div style="margin-bottom:1em">'
    if table.title:
        yield f"<div><strong>{escape(table.heading)}</strong></div>"
    if table.subtitle:
        yield f'<div style="opacity:0.75">{escape(table.subtitle)}</div>'
    if table.rows:
        yield '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
        heading_cells = "".join(
            f'<th scope="col" style="{CELL_STYLE};text-align:{column.justify}">{escape(column.title)}</th>'
            for column in table.columns
        )
        yield f'<thead style="border-bottom:1px solid currentColor"><tr>{heading_cells}</tr></thead>'
        yield "<tbody>"
        yield from (_row_html(table, row) for row in table.rows)
        yield "</tbody></table>"
    for note in table.notes:
        yield f'<div style="opacity:0.75;font-size:90%">{escape(note)}</div>'
    yield "</div>"


def _row_html(table: Table, row: Row) -> str:
    row_cells = []
    for column_index, (column, cell_value) in enumerate(zip(table.columns, row.cells, strict=True)):
        padding_style = f";padding-left:{10 + 16 * row.depth}px" if column_index == 0 and row.depth else ""
        colour_style = f";color:{cell_value.colour}" if column.is_bar and cell_value and cell_value.colour else ""
        cell_html = escape(cell_text(column, cell_value))
        row_cells.append(
            f'<td style="{CELL_STYLE};text-align:{column.justify}{padding_style}{colour_style}">{cell_html}</td>'
        )
    bold_style = ' style="font-weight:bold"' if row.is_bold else ""
    return f"<tr{bold_style}>{''.join(row_cells)}</tr>"

"""Shortens a report to fit a screen of 80 columns: at most 24 lines.

The first table of a target is placed first. The innermost rows of a nested table are left out first. From other tables
the last rows are left out, or those farthest from the centre. A table with fewer than three rows left is not shown. A
note says how much is left out, and that `--notes` prints all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .document import MAX_NOTES, Report, Table
from .formats.pipe import INDENT, indented_lines, line_count

SCREEN_LINES = 24
SCREEN_COLUMNS = 80
FEWEST_ROWS = 3

RESERVED_LINES = 3
"""Number of lines other than tables and notes: empty lines before them, and the line on omitted rows."""


def trim_to_screen(report: Report) -> Report:
    """Returns the report with only the tables and rows that fit a screen."""
    table_groups: list[list[Table]] = []
    for table in report.tables:
        is_answer_start = (
            table.answer and any(grouped_table.answer for grouped_table in table_groups[-1]) if table_groups else True
        )
        if is_answer_start and not (table_groups and table.target and table.target == table_groups[-1][-1].target):
            table_groups.append([])
        table_groups[-1].append(table)
    if report.counts_note_lines:
        table_groups = [_trim_tables_and_notes(table_group, report.warnings) for table_group in table_groups]
    return report._replace(
        tables=[table for table_group in table_groups for table in _trim_tables_of_model(table_group)]
    )


def _trim_tables_and_notes(tables: list[Table], warnings: Sequence[str]) -> list[Table]:
    """Shortens the longest table of a model, row by row, until tables and notes fit a screen.

    warnings: those of the report, which are shown beside the other notes.
    """
    notes = [note for table in tables for note in table.notes]
    shown_warnings = [note for note in notes if any(warning.endswith(note) for warning in warnings)]
    shown_notes = [*shown_warnings, *[note for note in notes if note not in shown_warnings][:MAX_NOTES]]
    note_line_count = sum(
        len(list(indented_lines(note, SCREEN_COLUMNS, hanging_indent=INDENT))) for note in shown_notes
    )
    free_lines = SCREEN_LINES - note_line_count - RESERVED_LINES
    omitted_rows = 0
    shorter_tables = list(tables)

    def is_too_long() -> bool:
        return sum(line_count(table, SCREEN_COLUMNS) + 1 for table in shorter_tables) - 1 > free_lines

    while is_too_long() and len(shorter_tables) > 1 and shorter_tables[-1].is_optional:
        shorter_tables.pop()
    left_out_table_count = len(tables) - len(shorter_tables)
    while is_too_long():
        longest_index = max(range(len(shorter_tables)), key=lambda index: (len(shorter_tables[index].rows), index))
        table = shorter_tables[longest_index]
        removable_rows = [row_index for row_index, row in enumerate(table.rows) if not row.is_bold]
        if not removable_rows or len(table.rows) <= FEWEST_ROWS:
            break
        shown_rows = [row for row_index, row in enumerate(table.rows) if row_index != removable_rows[-1]]
        shorter_tables[longest_index] = table._replace(rows=shown_rows)
        omitted_rows += 1
    if omitted_rows or left_out_table_count:
        omission_text = _omission_text(left_out_table_count, omitted_rows)
        shorter_tables[-1] = shorter_tables[-1]._replace(omission_text=omission_text)
    return shorter_tables


def _omission_text(table_count: int, row_count: int) -> str:
    """Returns text on what a short screen leaves out: `1 more table, 2 more rows`."""
    omitted_counts = ((table_count, "table"), (row_count, "row"))
    return ", ".join(
        f"{omitted_count} more {omitted_noun}{'s' * (omitted_count > 1)}"
        for omitted_count, omitted_noun in omitted_counts
        if omitted_count
    )


def _trim_tables_of_model(tables: Sequence[Table]) -> list[Table]:
    """Returns the tables of one model that fit, with the notes of omitted tables below the last one."""
    free_lines = SCREEN_LINES
    placed_table_by_index: dict[int, Table] = {}
    for table_index in sorted(
        range(len(tables)),
        key=lambda placed_index: (placed_index > 0, not tables[placed_index].has_priority, placed_index),
    ):
        line_limit = free_lines - bool(placed_table_by_index)
        shorter_table = _trim_table(tables[table_index], line_limit, is_required=not placed_table_by_index)
        if shorter_table is not None:
            placed_table_by_index[table_index] = shorter_table
            free_lines -= line_count(shorter_table, SCREEN_COLUMNS) + (len(placed_table_by_index) > 1)
    omitted_row_count = sum(
        len(tables[placed_index].rows) - len(table.rows) for placed_index, table in placed_table_by_index.items()
    )
    omitted_table_count = len(tables) - len(placed_table_by_index)
    shown_tables = [placed_table_by_index[table_index] for table_index in sorted(placed_table_by_index)]
    if omitted_row_count or omitted_table_count:
        omitted_text = _omission_text(omitted_table_count, omitted_row_count)
        notes = [
            *shown_tables[-1].notes,
            *(
                note
                for placed_index, table in enumerate(tables)
                if placed_index not in placed_table_by_index
                for note in table.notes
            ),
        ]
        shown_tables[-1] = shown_tables[-1]._replace(omission_text=omitted_text, notes=list(dict.fromkeys(notes)))
    return shown_tables


def _trim_table(table: Table, line_limit: int, is_required: bool = False) -> Table | None:
    """Shortens a table to a number of lines, but keeps its rows of totals.

    Returns None if too few rows would be left, unless `is_required`.
    """
    while line_count(table, SCREEN_COLUMNS) > line_limit:
        deepest_level = max((row.depth for row in table.rows), default=0)
        plain_rows = [row_index for row_index, row in enumerate(table.rows) if not row.is_bold]
        if deepest_level:
            table = table._replace(rows=[row for row in table.rows if row.depth < deepest_level])
        elif plain_rows and len(table.rows) > FEWEST_ROWS:
            farthest_row = max(plain_rows, key=lambda row_index: (abs(row_index - table.central_row), row_index))
            shown_rows = [row for row_index, row in enumerate(table.rows) if row_index != farthest_row]
            table = table._replace(rows=shown_rows, central_row=table.central_row - (farthest_row < table.central_row))
        else:
            return table if is_required else None
    return table

"""A screen: at most 24 lines of an answer before its notes, at 80 columns.

The first table of a target has room first. Of a table with parts of parts the innermost rows are left out first, of any
other the last rows, or those that are farthest from its centre; a table of which fewer than three rows would be left is
not shown. A note says how much is left out, and that `--notes` prints all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .document import Report, Table
from .formats.pipe import line_count

MOST_LINES = 24
COLUMNS = 80
FEWEST_ROWS = 3


def on_a_screen(report: Report) -> Report:
    """The report with as much of its tables as a screen has room for."""
    groups: list[list[Table]] = []
    for table in report.tables:
        begins = table.answer and any(other.answer for other in groups[-1]) if groups else True
        if begins and not (groups and table.target and table.target == groups[-1][-1].target):
            groups.append([])
        groups[-1].append(table)
    return report._replace(tables=[table for group in groups for table in _group_on_a_screen(group)])


def _group_on_a_screen(tables: Sequence[Table]) -> list[Table]:
    """The tables of one target that have room. The notes of the others stand below the last."""
    room = MOST_LINES
    kept: dict[int, Table] = {}
    for i in sorted(range(len(tables)), key=lambda i: (i > 0, not tables[i].sooner, i)):
        shorter = _within(tables[i], room - bool(kept), always=not kept)
        if shorter is not None:
            kept[i] = shorter
            room -= line_count(shorter, COLUMNS) + (len(kept) > 1)
    rows = sum(len(tables[i].rows) - len(table.rows) for i, table in kept.items())
    absent = len(tables) - len(kept)
    shown = [kept[i] for i in sorted(kept)]
    if rows or absent:
        counted = ((absent, "table"), (rows, "row"))
        left_out = ", ".join(f"{many} more {what}{'s' * (many > 1)}" for many, what in counted if many)
        notes = [*shown[-1].notes, *(note for i, table in enumerate(tables) if i not in kept for note in table.notes)]
        shown[-1] = shown[-1]._replace(left_out=left_out, notes=list(dict.fromkeys(notes)))
    return shown


def _within(table: Table, room: int, always: bool = False) -> Table | None:
    """The table in so many lines; None where too few rows would be left, unless it is shown always. Totals stay."""
    while line_count(table, COLUMNS) > room:
        deepest = max((row.depth for row in table.rows), default=0)
        others = [i for i, row in enumerate(table.rows) if not row.strong]
        if deepest:
            table = table._replace(rows=[row for row in table.rows if row.depth < deepest])
        elif others and len(table.rows) > FEWEST_ROWS:
            farthest = max(others, key=lambda i: (abs(i - table.centre), i))
            rows = [row for i, row in enumerate(table.rows) if i != farthest]
            table = table._replace(rows=rows, centre=table.centre - (farthest < table.centre))
        else:
            return table if always else None
    return table

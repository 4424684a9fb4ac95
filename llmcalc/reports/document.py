"""The answer of a command before formatting: a JSON document for programs, tables for people.

A cell holds the raw value, and its column writes it. So CSV has raw numbers and text has rounded ones. The classes are
named tuples because a data class takes four times as long to create, at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..characters import printable, text_in_encoding
from ..errors import InputError

SCHEMA_VERSION = 2

Justify = Literal["left", "right"]


MAX_NOTES = 2
"""Largest number of notes below a target's tables without `--notes`; warnings are always shown."""

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
"""First word of a verdict → its colour on a terminal."""


class Column(NamedTuple):
    """A column of a report table: its name, heading and cell format.

    key: name in CSV, with the unit.
    title: heading in text.
    write: function that writes a raw value as text.
    justify: side to which cells are aligned.
    may_wrap: whether cells may be broken into several lines.
    is_verdict: whether cells are verdicts, which have a colour on a terminal.
    shorten: function that shortens a text value for people.
    is_bar: whether cells are bars, which are shown only where the width allows.
    mark_colours: regular expression → colour of its matches on a terminal.
    """

    key: str
    title: str
    write: Callable[[Any], str] = str
    justify: Justify = "right"
    may_wrap: bool = False
    is_verdict: bool = False
    shorten: Callable[[str], str] = str
    is_bar: bool = False
    mark_colours: Mapping[str, str] = MappingProxyType({})

    def colour(self, text: str, cell_value: Any) -> str:
        """Returns the terminal colour of a cell; empty for no colour."""
        if self.is_bar and cell_value is not None:
            return str(cell_value.colour)
        return COLOURS.get(text.split(" ", maxsplit=1)[0].rstrip(",:*"), "") if self.is_verdict and text else ""


class DisplayedValue(NamedTuple):
    """A raw value with a displayed text, for columns with different units."""

    value: Any
    text: str


class LinkedNote(str):
    """A note from a preset of llmcalc, whose web addresses become links in Markdown."""

    __slots__ = ()


def displayed_text(cell: DisplayedValue) -> str:
    """Returns the displayed text of a `DisplayedValue` cell. Columns use it as their `write` function."""
    return cell.text


class Row(NamedTuple):
    """A row of a table: cells, indentation, bold type, and whether the row is a sum.

    cells: one value per column; None for an empty cell.
    depth: levels by which the first cell is indented in text.
    is_bold: whether the row is bold.
    is_sum: whether the row is the sum of other rows, or a part of it.
    """

    cells: Sequence[Any]
    depth: int = 0
    is_bold: bool = False
    is_sum: bool = False


def row(*cells: Any, depth: int = 0, is_bold: bool = False, is_sum: bool = False) -> Row:
    """Returns a row of these cells. depth, is_bold, is_sum: as in `Row`."""
    return Row(list(cells), depth, is_bold, is_sum)


class Table(NamedTuple):
    """A table of a report: heading, columns, rows and notes.

    title: the subject.
    subtitle: text beside or below the heading.
    notes: conventions and remarks below the table.
    answer: the result in a few words, in the heading.
    name: name of the table for `--table`.
    target: the TARGET as the user typed it; empty if the rows have a column `target`.
    is_optional: whether a short screen leaves the table out before rows of others; default false.
    has_priority: whether a short screen shows it before the tables above it.
    central_row: index of the row around which rows are kept on a short screen; default the first.
    omission_text: the tables and rows that a short screen leaves out, in words.
    second_list: the name and the first column of a list of its own, which screens show beside the first list; None
        (default) for a table of one list.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    subtitle: str = ""
    notes: Sequence[str] = ()
    answer: str = ""
    name: str = ""
    target: str = ""
    is_optional: bool = False
    has_priority: bool = False
    central_row: int = 0
    omission_text: str = ""
    second_list: tuple[str, int] | None = None

    @property
    def heading(self) -> str:
        """The heading of the table, such as `Llama 3 8B: 8.03 B parameters`."""
        return f"{self.title}: {self.answer}" if self.answer else self.title

    def without_bars(self) -> Table:
        """Returns the table without columns of bars, for output that programs read."""
        shown_columns = [column_index for column_index, column in enumerate(self.columns) if not column.is_bar]
        if len(shown_columns) == len(self.columns):
            return self
        shown_rows = [
            row._replace(cells=[row.cells[shown_index] for shown_index in shown_columns]) for row in self.rows
        ]
        return self._replace(columns=[self.columns[column_index] for column_index in shown_columns], rows=shown_rows)

    def tables_of_lists(self) -> list[Table]:
        """Returns the table as several tables, one per list, for formats whose rows cannot hold two lists."""
        if self.second_list is None:
            return [self]
        list_name, first_column = self.second_list
        tables = [
            self._replace(columns=self.columns[:first_column], rows=_rows_with_columns(self.rows, 0, first_column)),
            Table("", self.columns[first_column:], _rows_with_columns(self.rows, first_column), name=list_name),
        ]
        return [table._replace(second_list=None, target=self.target) for table in tables]


def _rows_with_columns(table_rows: Sequence[Row], first_column: int, end_column: int | None = None) -> list[Row]:
    """Returns the rows with the cells of some columns, without rows whose cells are all empty."""
    table_rows = [row._replace(cells=row.cells[first_column:end_column]) for row in table_rows]
    return [row for row in table_rows if any(cell is not None for cell in row.cells)]


class Report(NamedTuple):
    """The answer of a command: the JSON document, tables, unchanged text and warnings.

    data: the JSON document without its version; a list of documents for several targets.
    tables: the same for people.
    text: text that is printed unchanged in place of tables (LaTeX); default empty.
    warnings: notes that are also printed for formats without notes (CSV), each with the name of its model.
    deferred_values: entry of the document → its value, computed when the document is written; default none.
    counts_note_lines: whether the lines of its shown notes are among those of a short screen; default false.
    """

    data: dict[str, Any] | list[dict[str, Any]]
    tables: Sequence[Table] = ()
    text: str = ""
    warnings: Sequence[str] = ()
    deferred_values: Mapping[str, Callable[[], Any]] = {}
    counts_note_lines: bool = False

    def with_target(self, target: str) -> Report:
        """Returns the report with a column that names the model (TARGET) in every table."""
        return self._replace(tables=[table._replace(target=target) for table in self.tables])

    def with_split_lists(self) -> Report:
        """Returns the report with every table split by `Table.tables_of_lists`, one table per list."""
        return self._replace(tables=[list_table for table in self.tables for list_table in table.tables_of_lists()])

    def with_only_table(self, table_or_list: str) -> Report:
        """Returns the report with only the tables or lists of one name (`--table`).

        Raises `InputError` if none has it.
        """
        tables = self.tables
        tables_and_lists = [*tables, *(second_list for table in tables for second_list in table.tables_of_lists()[1:])]
        table_names = list(dict.fromkeys(table.name for table in tables_and_lists if table.name))
        if table_or_list not in table_names:
            expected_text = "expected no --table, since the answer is one table"
            if table_names:
                expected_text = f"expected one of {', '.join(table_names)}"
            raise InputError(f"--table: there is no table '{table_or_list}'; {expected_text}")
        return self._replace(tables=[table for table in tables_and_lists if table.name == table_or_list])

    def with_document_entry(self, entry_name: str, document_entry: Any, note: str) -> Report:
        """Returns the report with an entry added to its JSON document, and a note at the head of its first table."""
        assert isinstance(self.data, dict)  # a report of one target
        first_table, *other_tables = self.tables
        extended_data = {**self.data, entry_name: document_entry}
        if "notes" in extended_data:
            extended_data["notes"] = [note, *extended_data["notes"]]
        tables = [first_table._replace(notes=[note, *first_table.notes]), *other_tables]
        return self._replace(data=extended_data, tables=tables)

    def document(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Returns the JSON document, with `schema_version` and all notes of the tables."""
        notes_and_data = self.data_with_notes()
        if isinstance(notes_and_data, list):
            return [{"schema_version": SCHEMA_VERSION, **json_document} for json_document in notes_and_data]
        return {"schema_version": SCHEMA_VERSION, **notes_and_data}

    def data_with_notes(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Returns the data with the notes of all tables, unless the data has notes or is a list of documents."""
        if isinstance(self.data, list):
            return self.data
        document_data = self.data | {
            entry_name: compute_entry_value() for entry_name, compute_entry_value in self.deferred_values.items()
        }
        return {
            "notes": without_repetitions(table_note for table in self.tables for table_note in table.notes)
        } | document_data

    def with_limited_notes(self, omission_text: str = "--notes") -> Report:
        """Returns the report with its warnings and at most `MAX_NOTES` other notes per target.

        A last note says how many notes, tables and rows are left out.

        omission_text: the option that prints them; default `--notes`.
        """
        tables: list[Table] = []
        remaining_note_count, hidden_note_count = MAX_NOTES, 0
        for table in [*self.tables, None]:
            omission_parts = [tables[-1].omission_text] if tables and tables[-1].omission_text else []
            omission_parts += (
                [f"{hidden_note_count} more note{'s' * (hidden_note_count > 1)}"] if hidden_note_count else []
            )
            if omission_parts and (table is None or table.answer):
                notes = [*tables[-1].notes, f"{', '.join(omission_parts)}: {omission_text}"]
                tables[-1], hidden_note_count = tables[-1]._replace(notes=notes), 0
            if table is None:
                break
            remaining_note_count = MAX_NOTES if table.answer else remaining_note_count
            shown_notes: list[str] = []
            for note in table.notes:
                is_warning = any(warning_text.endswith(note) for warning_text in self.warnings)
                if is_warning or remaining_note_count:
                    shown_notes.append(note)
                    remaining_note_count -= not is_warning
            hidden_note_count += len(table.notes) - len(shown_notes)
            tables.append(table._replace(notes=shown_notes))
        return self._replace(tables=tables)


def printable_report(report: Report) -> Report:
    """Returns the report with every text printable and on one line (`characters.printable`).

    Names in a report come from files that others wrote. Every format but JSON writes this report; JSON escapes the
    same characters.
    """
    return _report_with_changed_texts(report, printable)


def report_in_encoding(report: Report, encoding: str) -> Report:
    """Returns the report with every text reduced to characters that an encoding can write."""
    return _report_with_changed_texts(report, lambda text: text_in_encoding(printable(text), encoding))


def _report_with_changed_texts(report: Report, change_text: Callable[[str], str]) -> Report:
    """Returns the report after a function `change_text` is applied to every text."""

    def writer_of_changed_text(format_value: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda cell_value: change_text(format_value(cell_value))

    def change_cell(cell_value: Any) -> Any:
        if isinstance(cell_value, DisplayedValue):
            return DisplayedValue(change_cell(cell_value.value), change_text(cell_value.text))
        return change_text(cell_value) if isinstance(cell_value, str) else cell_value

    def change_note(note: str) -> str:
        return LinkedNote(change_text(note)) if isinstance(note, LinkedNote) else change_text(note)

    tables = [
        table._replace(
            title=change_text(table.title),
            answer=change_text(table.answer),
            subtitle=change_text(table.subtitle),
            notes=[change_note(note) for note in table.notes],
            columns=[
                column._replace(title=change_text(column.title), write=writer_of_changed_text(column.write))
                for column in table.columns
            ],
            rows=[row._replace(cells=[change_cell(cell_value) for cell_value in row.cells]) for row in table.rows],
            target=printable(table.target),  # as the user typed it, in any encoding
        )
        for table in report.tables
    ]
    report_text = "\n".join(change_text(text_line) for text_line in report.text.split("\n"))
    warnings = [change_text(warning) for warning in report.warnings]
    return report._replace(tables=tables, text=report_text, warnings=warnings)


def cell_text(column: Column, cell_value: Any) -> str:
    """Returns the displayed text of a cell."""
    if cell_value is None:
        return ""
    return column.shorten(cell_value) if isinstance(cell_value, str) else column.write(cell_value)


def single_document_or_list(json_documents: Sequence[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
    """Returns the JSON document of a single target, or the list of documents of several targets."""
    return json_documents[0] if len(json_documents) == 1 else list(json_documents)


def join_reports(reports: Sequence[Report]) -> Report:
    """Joins the reports of several targets: documents, tables, texts and warnings, in order."""
    report_data = [report.data_with_notes() for report in reports]
    json_documents = [
        document
        for document_data in report_data
        for document in (document_data if isinstance(document_data, list) else [document_data])
    ]
    tables = [table for report in reports for table in report.tables]
    warnings = [warning for report in reports for warning in report.warnings]
    return Report(single_document_or_list(json_documents), tables, "".join(report.text for report in reports), warnings)


def without_repetitions(notes: Iterable[str]) -> list[str]:
    """Returns the notes in order, without empty and repeated notes."""
    return list(dict.fromkeys(note for note in notes if note))


def with_notes_below(tables: Sequence[Table], notes: Iterable[str]) -> list[Table]:
    """Returns the tables, with the common notes below the last table."""
    *other_tables, last_table = tables
    return [*other_tables, last_table._replace(notes=without_repetitions(notes))]

"""Writers of JSON with raw integers, CSV with raw values, and Markdown tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ...characters import printable
from ..document import DisplayedValue, LinkedNote, Report, Row, Table, cell_text, printable_report

TARGET_COLUMN = "target"
"""The first column of every CSV file: the TARGET of the row."""

NAME_SEPARATOR = " / "
"""Separator of nested names in CSV, such as `layers / mlp`, where text has an indent."""


def write_json(report: Report, output_stream: IO[str]) -> None:
    """Writes one document or a list of documents as ASCII JSON."""
    output_stream.write(f"{json_text(report, indent=2)}\n")


def json_text(report: Report, indent: int | None = None) -> str:
    """Returns the document as JSON text, on one line without `indent`."""
    import json as library

    return library.dumps(report.document(), indent=indent, default=_json_value)


def _json_value(raw_value: Any) -> Any:
    """Converts a value that JSON does not support: a set to a sorted list, any other value to text."""
    return sorted(raw_value) if isinstance(raw_value, set | frozenset) else str(raw_value)


def write_csv(report: Report, output_stream: IO[str]) -> None:
    """Writes the raw values of the tables with the first table's name and columns as CSV.

    The first column is `target`. A text that a spreadsheet would compute gets an apostrophe before it.
    """
    import csv as library

    csv_writer = library.writer(output_stream, lineterminator="\n")
    tables = [table.without_bars() for table in printable_report(report).with_split_lists().tables]
    column_keys = [column.key for column in tables[0].columns]
    has_targets = column_keys[0] == TARGET_COLUMN
    csv_writer.writerow(
        [
            _escape_spreadsheet_formula(column_key)
            for column_key in (column_keys if has_targets else [TARGET_COLUMN, *column_keys])
        ]
    )
    for table in tables:
        if table.name == tables[0].name and [column.key for column in table.columns] == column_keys:
            for row_cells in _rows_with_parents(table):
                cells_with_target = row_cells if has_targets else [table.target, *row_cells]
                csv_writer.writerow([_escape_spreadsheet_formula(cell) for cell in cells_with_target])


FORMULA_CHARACTERS = tuple("=+-@＝＋－＠")
"""Characters that begin a formula in a spreadsheet."""

HARMLESS_CELL = re.compile(
    r"[=+-]"  # a sign alone: a verdict of `verify`, a value that is left out
    r"|[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?( ?%)?"  # a number
    r"|--[a-z][a-z-]*( -{0,2}[\w][\w.,:/=-]*)*"  # options and their values, `--tp 2 --lora 16`: names alone, no call
)
"""Texts that begin like a formula but are not computed by a spreadsheet."""


def _escape_spreadsheet_formula(raw_value: Any) -> Any:
    """Escapes a cell that a spreadsheet would run as a formula (https://owasp.org/www-community/attacks/CSV_Injection)."""
    if isinstance(raw_value, int | float):
        return raw_value
    cell_text = printable(str(raw_value))
    if cell_text.startswith(FORMULA_CHARACTERS) and not HARMLESS_CELL.fullmatch(cell_text):
        return f"'{cell_text}"
    return cell_text


def table_records(table: Table, leaves_only: bool = False) -> list[dict[str, Any]]:
    """Returns the rows as dicts of raw values, None for an empty cell. `target` is the first key.

    leaves_only: whether only parts are given, as `leaf_rows_of` does; default false.
    A column that has a fraction in any row has floats in all, so that tables of several models have the same types.
    """
    table = table.without_bars()
    column_keys = [column.key for column in table.columns]
    if leaves_only:
        table = table._replace(rows=leaf_rows_of(table.rows))
    fractional_columns = {
        column_number
        for row in table.rows
        for column_number, cell in enumerate(row.cells)
        if isinstance(_raw_value(cell), float)
    }
    raw_rows = [
        {
            column_key: float(raw_value)
            if column_index in fractional_columns and isinstance(raw_value, int)
            else raw_value
            for column_index, (column_key, raw_value) in enumerate(zip(column_keys, row_cells, strict=True))
        }
        for row_cells in _rows_with_parents(table)
    ]
    cleaned_rows = [
        {column_key: None if raw_value == "" else raw_value for column_key, raw_value in row.items()}
        for row in raw_rows
    ]
    if column_keys[0] == TARGET_COLUMN:
        return cleaned_rows
    return [{TARGET_COLUMN: table.target, **row} for row in cleaned_rows]


REMAINDER_NAME = "rest"
"""Name of the row for the part of a row's number that its listed parts do not cover."""


def leaf_rows_of(nested_rows: Sequence[Row]) -> list[Row]:
    """Returns a table's rows at the lowest level, without sums; each name begins with the names of its parents.

    What the parts of a row leave of its numbers is a row `parent / rest`. So each column of amounts can be summed.
    """
    leaf_rows, row_names = [], list[str]()
    for row_index, row in enumerate(nested_rows):
        row_names[row.depth :] = [str(_raw_value(row.cells[0]))]
        if row.is_sum:
            continue
        rows_below = itertools.takewhile(
            lambda other_row, row=row: other_row.depth > row.depth,  # type: ignore[misc]
            nested_rows[row_index + 1 :],
        )
        child_rows = [child_row for child_row in rows_below if child_row.depth == row.depth + 1]
        full_name, row_cells = NAME_SEPARATOR.join(row_names), row.cells[1:]
        if child_rows:
            row_cells = [
                _remainder_after_parts(cell_value, [child_row.cells[column_index] for child_row in child_rows])
                for column_index, cell_value in enumerate(row.cells[1:], 1)
            ]
            cell_numbers = [cell_value for cell_value in row_cells if isinstance(cell_value, int | float)]
            if min(cell_numbers, default=0) < -1e-9 or not any(
                isinstance(cell_number, int) and cell_number for cell_number in cell_numbers
            ):
                continue  # nothing is left, or the parts have a column that is not added up, such as repeats
            full_name = f"{full_name}{NAME_SEPARATOR}{REMAINDER_NAME}"
        leaf_rows.append(row._replace(cells=[full_name, *row_cells], depth=0))
    return leaf_rows


def _remainder_after_parts(cell_value: Any, child_cells: Sequence[Any]) -> Any:
    """Returns a cell's number minus the numbers in the cells of its child rows; text cells stay unchanged."""
    child_numbers = [_raw_value(child_cell) for child_cell in child_cells]
    raw_value = _raw_value(cell_value)
    if not isinstance(raw_value, int | float) or isinstance(raw_value, bool):
        return cell_value
    return raw_value - sum(child_number for child_number in child_numbers if isinstance(child_number, int | float))


def _rows_with_parents(table: Table) -> Iterator[list[Any]]:
    """Yields the rows. A nested row's first cell begins with the parents' names: `layers / mlp`."""
    parent_names: list[str] = []
    for row in table.rows:
        first_cell, *other_cells = (_csv_value(raw_value) for raw_value in row.cells)
        parent_names[row.depth :] = [str(first_cell)]
        yield [NAME_SEPARATOR.join(parent_names) if row.depth else first_cell, *other_cells]


def _raw_value(cell_value: Any) -> Any:
    """Returns the raw value of a `DisplayedValue` cell; other values unchanged."""
    return cell_value.value if isinstance(cell_value, DisplayedValue) else cell_value


def _csv_value(raw_value: Any) -> Any:
    """Returns a value for CSV: empty text for None, and a whole number without a decimal point."""
    raw_value = _raw_value(raw_value)
    if raw_value is None:
        return ""
    if isinstance(raw_value, float) and raw_value.is_integer() and abs(raw_value) < 2**53:
        return int(raw_value)
    return raw_value


def write_markdown(report: Report, output_stream: IO[str]) -> None:
    """Writes GitHub-flavoured Markdown tables. Every text is escaped (`escape_markdown`)."""
    for table_index, table in enumerate(printable_report(report).with_split_lists().tables):
        if table_index:
            output_stream.write("\n")
        _markdown_table(table.without_bars(), output_stream)


def _markdown_table(table: Table, output_stream: IO[str]) -> None:
    if table.title:
        heading_text = escape_markdown(table.heading.strip())  # bold text neither begins nor ends with a space
        output_stream.write(
            f"**{heading_text}**" + (f" {escape_markdown(table.subtitle)}" if table.subtitle else "") + "\n\n"
        )
    if table.rows:
        output_stream.write("| " + " | ".join(escape_markdown(column.title) for column in table.columns) + " |\n")
        output_stream.write(
            "|" + "|".join("---:" if column.justify == "right" else ":---" for column in table.columns) + "|\n"
        )
    for row in table.rows:
        cell_texts = [
            escape_markdown(cell_text(column, cell)) for column, cell in zip(table.columns, row.cells, strict=True)
        ]
        cell_texts[0] = "&nbsp;" * 2 * row.depth + cell_texts[0]
        output_stream.write("| " + " | ".join(cell_texts) + " |\n")
    for note in table.notes:
        output_stream.write(f"\n{_note_paragraph(note)}\n")


ZERO_WIDTH_SPACE = "&#8203;"
"""Zero-width space. Inside a mention or an address it prevents a link, which a backslash does not on GitHub."""

MARKDOWN_MARKUP = re.compile(
    r"(?P<mark>[\\`*~\[|]|(?<!\w)_++|_++(?!\w))"  # code, links, columns, emphasis (`_` is none within a word)
    r"|(?P<entity>&(?=#?\w+;)|<(?=[a-z/!?])|\$)"  # HTML, formulas
    r"|(?P<reference>@|#(?=\d)|gh-(?=\d)|/(?=/)|www(?=\.)|:(?=[\w+-]+:))",  # mentions, issues, addresses, emoji
    re.IGNORECASE,
)
"""Characters with a meaning in Markdown or in a comment on GitHub."""

HTML_ENTITIES = {"&": "&amp;", "<": "&lt;", "$": "&#36;"}


def escape_markdown(markdown_text: str) -> str:
    """Escapes the characters of a text that have a meaning in Markdown.

    The text has no HTML, links, images, code, emphasis, formulas, mentions or references to issues, and adds no column
    to a table.
    """

    def escape(markup_match: re.Match[str]) -> str:
        match markup_match.lastgroup:
            case "mark":
                return "".join(f"\\{character}" for character in markup_match[0])
            case "entity":
                return HTML_ENTITIES[markup_match[0]]
        return markup_match[0] + ZERO_WIDTH_SPACE

    return MARKDOWN_MARKUP.sub(escape, markdown_text)


MARKDOWN_BLOCK_START = re.compile(r"\d+(?=[.)](\s|$))|(?=#+(\s|$)|>|[+-](\s|$)|-[-\s]*$|=+$)")
"""Beginning of a heading, a quotation, a rule or a list in Markdown. A backslash after it makes a plain paragraph."""

WEB_ADDRESS = re.compile(r"(https?://[\w.~:/?#@!&+,;=%-]+)")
"""A web address without characters that could end a link or begin another."""


def _note_paragraph(note: str) -> str:
    """Returns a note as a paragraph. Only addresses in a `LinkedNote` note stay links."""
    note_segments = WEB_ADDRESS.split(note.lstrip()) if isinstance(note, LinkedNote) else [note.lstrip()]
    paragraph = "".join(
        segment if segment_index % 2 else escape_markdown(segment)
        for segment_index, segment in enumerate(note_segments)
    )
    block_marker = MARKDOWN_BLOCK_START.match(paragraph)
    return paragraph if block_marker is None else f"{block_marker[0]}\\{paragraph[block_marker.end() :]}"

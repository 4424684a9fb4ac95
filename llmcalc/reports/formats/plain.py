"""The formats for programs and for documents: JSON with raw integers, CSV with raw values, Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any

from ...characters import printable
from ..document import Linked, Report, Shown, Table, cell_text, readable

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
    """Raw values of one kind of table, that of the first, for every target: one heading line, `target` first.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    import csv as library

    writer = library.writer(out, lineterminator="\n")
    tables = [table.without_bars() for table in readable(report).tables]
    keys = [column.key for column in tables[0].columns]
    named = keys[0] == TARGET
    writer.writerow([_no_formula(key) for key in (keys if named else [TARGET, *keys])])
    for table in tables:
        if table.name == tables[0].name and [column.key for column in table.columns] == keys:
            for cells in _cells(table):
                writer.writerow([_no_formula(cell) for cell in (cells if named else [table.target, *cells])])


FORMULA = tuple("=+-@＝＋－＠")
"""Characters that begin a formula in a spreadsheet."""

NO_FORMULA = re.compile(
    r"[=+-]"  # a sign alone: a verdict of `verify`, a value that is left out
    r"|[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?( ?%)?"  # a number
    r"|--[a-z][a-z-]*( -{0,2}[\w][\w.,:/=-]*)*"  # options and their values, `--tp 2 --lora 16`: names alone, no call
)
"""Texts that begin like a formula, and that no spreadsheet computes anything from."""


def _no_formula(value: Any) -> Any:
    """A cell of a CSV file as a spreadsheet takes it for text (https://owasp.org/www-community/attacks/CSV_Injection)."""
    if isinstance(value, int | float):
        return value
    text = printable(str(value))
    return f"'{text}" if text.startswith(FORMULA) and not NO_FORMULA.fullmatch(text) else text


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
    """GitHub-flavoured tables, numbers to the right. Every text is escaped (`escaped`), so that Markdown shows it as it
    is.
    """
    for i, table in enumerate(readable(report).tables):
        if i:
            out.write("\n")
        _markdown_table(table.without_bars(), out)


def _markdown_table(table: Table, out: IO[str]) -> None:
    if table.title:
        heading = escaped(table.heading.strip())  # bold text neither begins nor ends with a space
        out.write(f"**{heading}**" + (f" {escaped(table.aside)}" if table.aside else "") + "\n\n")
    if table.rows:
        out.write("| " + " | ".join(escaped(c.title) for c in table.columns) + " |\n")
        out.write("|" + "|".join("---:" if c.justify == "right" else ":---" for c in table.columns) + "|\n")
    for row in table.rows:
        texts = [escaped(cell_text(c, v)) for c, v in zip(table.columns, row.cells, strict=True)]
        texts[0] = "&nbsp;" * 2 * row.depth + texts[0]
        out.write("| " + " | ".join(texts) + " |\n")
    for note in table.notes:
        out.write(f"\n{_paragraph(note)}\n")


APART = "&#8203;"
"""A space without width. Between the characters of a mention or of an address it leaves their look and takes their
meaning, on GitHub and elsewhere, where a backslash does not.
"""

MARKUP = re.compile(
    r"(?P<mark>[\\`*~\[|]|(?<!\w)_++|_++(?!\w))"  # code, links, columns, emphasis (`_` is none within a word)
    r"|(?P<entity>&(?=#?\w+;)|<(?=[a-z/!?])|\$)"  # HTML, formulas
    r"|(?P<reference>@|#(?=\d)|gh-(?=\d)|/(?=/)|www(?=\.)|:(?=[\w+-]+:))",  # mentions, issues, addresses, emoji
    re.IGNORECASE,
)
"""What Markdown, or GitHub in a comment, gives a meaning."""

ENTITIES = {"&": "&amp;", "<": "&lt;", "$": "&#36;"}


def escaped(text: str) -> str:
    """A text that Markdown shows as it is: without HTML, links, images, code, emphasis, formulas, mentions, references
    to issues, and without another column in a table.
    """

    def instead(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "mark":
                return "".join(f"\\{character}" for character in found[0])
            case "entity":
                return ENTITIES[found[0]]
        return found[0] + APART

    return MARKUP.sub(instead, text)


BLOCK = re.compile(r"\d+(?=[.)](\s|$))|(?=#+(\s|$)|>|[+-](\s|$)|-[-\s]*$|=+$)")
"""The beginning of a paragraph that Markdown would make a heading, a quotation, a rule or a list of. A backslash after
it prevents that.
"""

ADDRESS = re.compile(r"(https?://[\w.~:/?#@!&+,;=%-]+)")
"""An address without characters that could end a link or begin another one."""


def _paragraph(note: str) -> str:
    """A note as a paragraph. Addresses stay links where the note says that they are (`Linked`)."""
    pieces = ADDRESS.split(note.lstrip()) if isinstance(note, Linked) else [note.lstrip()]
    text = "".join(piece if i % 2 else escaped(piece) for i, piece in enumerate(pieces))
    start = BLOCK.match(text)
    return text if start is None else f"{start[0]}\\{text[start.end() :]}"

"""The formats in which an answer is written: one writer per name, whose file is imported when it writes.

A writer may be changed without reading the reports: it is given a `Report` and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Literal, NamedTuple, TypeAlias

from ..document import Report

Format: TypeAlias = Literal["table", "json", "csv", "markdown"]


def _write_table(report: Report, out: IO[str]) -> None:
    from .table import render

    render(report, out)


def _write_json(report: Report, out: IO[str]) -> None:
    from .plain import json

    json(report, out)


def _write_csv(report: Report, out: IO[str]) -> None:
    from .plain import csv

    csv(report, out)


def _write_markdown(report: Report, out: IO[str]) -> None:
    from .plain import markdown

    markdown(report, out)


class Writer(NamedTuple):
    """The writer of a format.

    write: function that writes a report to a stream.
    warns_apart: whether warnings are printed to standard error, because the format has no notes.
    ascii: whether the format is written in ASCII only.
    """

    write: Callable[[Report, IO[str]], None]
    warns_apart: bool = False
    ascii: bool = False


WRITERS: dict[Format, Writer] = {
    "table": Writer(_write_table),
    "json": Writer(_write_json),
    "csv": Writer(_write_csv, warns_apart=True, ascii=True),
    "markdown": Writer(_write_markdown),
}

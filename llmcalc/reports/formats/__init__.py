"""The formats of a written answer, with one writer per name, which is imported on use.

A writer may be changed without reading the reports: it is given a `Report` and computes nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import IO, Literal, NamedTuple, TypeAlias

from ..document import Report

Format: TypeAlias = Literal["table", "json", "csv", "markdown"]


class ReportWriter(NamedTuple):
    """The writer of a format: the function that writes reports in the format, and the format's properties.

    writer_path: the function that writes a report to a stream, as `module:function` of this room.
    warns_on_stderr: whether warnings are printed to standard error, because the format has no notes.
    is_ascii_only: whether the format is written in ASCII only.
    """

    writer_path: str
    warns_on_stderr: bool = False
    is_ascii_only: bool = False

    def write(self, report: Report, output_stream: IO[str]) -> None:
        """Writes a report to a stream, in this format."""
        module_name, _, function_name = self.writer_path.partition(":")
        getattr(import_module(f".{module_name}", __package__), function_name)(report, output_stream)


WRITERS: dict[Format, ReportWriter] = {
    "table": ReportWriter("table:render"),
    "json": ReportWriter("plain:write_json"),
    "csv": ReportWriter("plain:write_csv", warns_on_stderr=True, is_ascii_only=True),
    "markdown": ReportWriter("plain:write_markdown"),
}

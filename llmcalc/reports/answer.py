"""What every answer of the Python API has beside its numbers: the command's document, its tables, one line of text."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from ..characters import printable
from ..errors import InputError
from ..sources.preset import Preset

if TYPE_CHECKING:
    from .document import Report, Table


class Answer(ABC):
    """What a function of the Python API returns, as the command of its name reports it."""

    @abstractmethod
    def report(self) -> Report:
        """The answer as data and tables, as the command line has it."""

    @property
    def document(self) -> Any:
        """The document that the command prints with `--format json`; a list of documents for several models."""
        from .formats.plain import json_text

        return json.loads(json_text(self.report()))

    def records(self, table: str = "") -> list[dict[str, Any]]:
        """The rows of a table as dicts of raw values, which pandas, polars and DuckDB take.

        table: its name, as `--table` takes it; by default the first. Raises `InputError` for another name.
        """
        from .formats.plain import records

        report = self.report()
        return records((report.only(table) if table else report).tables[0])

    def __repr__(self) -> str:
        try:
            return printable(f"<{_heading(self.report().tables)}>")
        except InputError as error:
            return printable(f"<{type(self).__name__}: {error}>")

    def _repr_html_(self) -> str:
        from .formats.html import html

        return html(self.report().brief())

    @classmethod
    def made(cls, found: Any, **asked: Any) -> Self:
        """The same result with what was asked. asked: the fields that the answer has beside those of the result."""
        given: dict[str, Any] = {one.name: getattr(found, one.name) for one in fields(found) if one.init}
        return cls(**given, **asked)


@dataclass(frozen=True, repr=False)
class ReportedAnswer(Answer):
    """An answer of which the document is the natural form.

    result: what was found, with fields of its own. make_report: makes the report.
    ok: whether what was asked for holds; False where the command exits with status 1.
    """

    result: Any
    make_report: Callable[[], Report]
    ok: bool = True

    def report(self) -> Report:
        return self.make_report()


def _heading(tables: Any) -> str:
    table: Table = next((one for one in tables if one.answer), tables[0])
    return table.heading


OF_A_MODEL: Any = field(default_factory=lambda: Preset.model_construct(name="model"), repr=False, compare=False)
"""The field of a count that says which model it is of."""

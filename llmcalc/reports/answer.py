"""What all counts of the Python API can do beside counting: print as one line, show as tables in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Self

from ..characters import printable
from ..errors import InputError
from ..sources.preset import Preset

if TYPE_CHECKING:
    from .document import Report, Table


class Answer(ABC):
    """A count of one model, as the command of its name reports it."""

    preset: Preset

    @abstractmethod
    def report(self) -> Report:
        """The answer as data and tables, as the command line has it."""

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
            return printable(f"<{type(self).__name__} of {self.preset.display}: {error}>")

    def _repr_html_(self) -> str:
        from .formats.html import html

        return html(self.report().brief())

    @classmethod
    def made(cls, found: Any, preset: Preset) -> Self:
        """The same count, with the model that it is of."""
        given: dict[str, Any] = {one.name: getattr(found, one.name) for one in fields(found) if one.init}
        return cls(**given, preset=preset)  # type: ignore[call-arg]


def _heading(tables: Any) -> str:
    table: Table = next(one for one in tables if one.answer)
    return table.heading


OF_A_MODEL: Any = field(default_factory=lambda: Preset.model_construct(name="model"), repr=False, compare=False)
"""The field of a count that says which model it is of."""

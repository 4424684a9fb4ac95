"""Base classes of the Python API's answers: numbers, with the JSON document, the tables and a one-line text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Self

from ..characters import printable
from ..errors import InputError, suggest
from ..frozen import frozen
from ..sources.preset import Preset

if TYPE_CHECKING:
    from ..parallel.rank_model import SelectedRank
    from ..studies.draft import DraftCosts
    from .document import Report, Table


MODEL_FIELD: Any = field(default_factory=lambda: Preset.model_construct(name="model"), repr=False, compare=False)
"""Field `preset` of an answer, by default a preset named `model` without figures."""


MAX_SHOWN_MODELS = 3
"""Largest number of models that an answer's one-line text names."""


CONSTRUCTION_ATTRIBUTES = ("make_report", "of_result")
"""Attributes for the construction of answers, which error messages do not suggest."""


class Answer(ABC):
    """The answer of a Python API function, printed by the command of the same name."""

    @abstractmethod
    def report(self) -> Report:
        """Returns the answer as data and tables for the command line."""

    @property
    def document(self) -> Any:
        """The document that the command prints with `--format json`, or a list of documents for several models."""
        import json

        from .formats.plain import json_text

        return json.loads(json_text(self.report()))

    def records(self, table_name: str = "", *, leaves_only: bool = False) -> list[dict[str, Any]]:
        """Returns the rows of a table as dicts of raw values, which pandas, polars and DuckDB read.

        table_name: as `--table` takes it; by default the first table. Raises `InputError` for another name.
        leaves_only: whether totals are left out, and rows with their parts below them, so that the rest can be summed;
            default false.
        """
        from .formats.plain import table_records

        report = self.report()
        table = (report.with_only_table(table_name) if table_name else report).with_split_lists().tables[0]
        return table_records(table, leaves_only)

    if not TYPE_CHECKING:  # a type checker knows the attributes

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"'{type(self).__name__}' object has no attribute '{name}'{self._unknown_attribute_advice(name)}"
            )

    def _unknown_attribute_advice(self, attribute_name: str) -> str:
        """Returns the end of an error about an unknown attribute: the attribute to use; empty for a private name."""
        if attribute_name.startswith("_"):
            return ""
        result = self.__dict__.get("result")
        if hasattr(type(result), attribute_name) or attribute_name in getattr(result, "__dict__", ()):
            return f"; expected .result.{attribute_name}"
        public_names = [
            public_name
            for public_name in dir(self)
            if not public_name.startswith("_") and public_name not in CONSTRUCTION_ATTRIBUTES
        ]
        return f".{suggest(attribute_name, public_names)} The keys of .document are those of --format json"

    def __repr__(self) -> str:
        try:
            return printable(f"<{_heading_of_answer(self.report())}>")
        except InputError as error:
            return printable(f"<{type(self).__name__}: {error}>")

    def _repr_html_(self) -> str:
        from .formats.html import tables_html

        return tables_html(self.report().with_limited_notes(omission_text=".document"))

    @classmethod
    def of_result(cls, result: Any, **other_fields: Any) -> Self:
        """Builds the answer from a result. other_fields: additional fields, such as the report and the model."""
        field_values: dict[str, Any] = {
            result_field.name: getattr(result, result_field.name)
            for result_field in fields(result)
            if result_field.init
        }
        return cls(**field_values, **other_fields)


@frozen(repr=False)
class CountedAnswer(Answer):
    """An answer with counts of parameters, FLOPs or bytes of one model.

    preset: the model.
    share: the rank that is counted; None (default) for the whole model.
    draft: a draft beside the model; None (default) without one.
    """

    preset: Preset = MODEL_FIELD
    share: SelectedRank | None = field(default=None, repr=False, compare=False)
    draft: DraftCosts | None = field(default=None, repr=False, compare=False)


@frozen(repr=False)
class ReportedAnswer(Answer):
    """An answer of the Python API whose main content is its JSON document.

    result: the values, a data class of the question.
    make_report: function that builds the report.
    ok: whether the command exits with status 0; False where a check fails or nothing fits.
    """

    result: Any
    make_report: Callable[[], Report]
    ok: bool = True

    def report(self) -> Report:
        return self.make_report()


def _heading_of_answer(report: Report) -> str:
    """Returns the heading of an answer's main table; without a heading, the names of the compared models."""
    tables: Any = report.tables
    answer_table: Table = next((table for table in tables if table.answer), tables[0])
    if answer_table.heading:
        return answer_table.heading
    json_documents = report.data if isinstance(report.data, list) else [report.data]
    model_entries = [json_document["model"] for json_document in json_documents if "model" in json_document]
    model_names = [model_entry.get("title") or model_entry["name"] for model_entry in model_entries]
    further_models_text = (
        f" and {len(model_names) - MAX_SHOWN_MODELS} more" if len(model_names) > MAX_SHOWN_MODELS else ""
    )
    return f"{', '.join(model_names[:MAX_SHOWN_MODELS])}{further_models_text}" or type(report).__name__

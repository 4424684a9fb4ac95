"""The base class of everything read from a file: validated, immutable, and with stated sources.

Annotations are not strings here: pydantic would compile those of a base class once for each of its subclasses.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
"""Names of the config sections that describe the text model of a multimodal model."""

ABSENT_VALUE = "none"
"""The text in a file that stands for an absent optional field."""


class Record(BaseModel):
    """An immutable table of a file that rejects unknown fields.

    renamed_fields: old name of a field → what to write instead (class attribute).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )

    renamed_fields: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_none_for_text(cls, table: Any) -> Any:
        """Replaces `"none"` by None (TOML has no null), except in a text or a `type`, where it is a name.

        Raises `ValueError` for a renamed field, with its new name.
        """
        if not isinstance(table, dict):
            return table
        for old_name, new_name in cls.renamed_fields.items():
            if old_name in table:
                raise ValueError(f"{old_name}: this field was renamed; expected {new_name}")
        fields_with_none = [
            field_name
            for field_name, field_value in table.items()
            if isinstance(field_value, str)
            and field_value == ABSENT_VALUE
            and field_name != "type"
            and getattr(cls.model_fields.get(field_name), "annotation", None) is not str
        ]
        return table | dict.fromkeys(fields_with_none) if fields_with_none else table

    @model_validator(mode="after")
    def _with_checked_fields(self) -> Self:
        self.check_fields()
        return self

    def check_fields(self) -> None:
        """Checks the fields against each other. Raises `ValueError` with the field and what was expected."""


class FigureSource(Record):
    """The source of published figures, such as a paper, a datasheet or a config.

    gives: the kind of facts (`config`, `paper`, `weights`).
    url: the page or the file.
    checked: the date on which it was read; None if only a copy of it was read.
    revision: the commit; None without one.
    """

    url: str = Field(pattern=r"^https?://\S+$")
    gives: str
    checked: date | None = None
    revision: str | None = None

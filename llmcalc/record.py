"""The base class of everything read from a file: validated, immutable, and with stated sources."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

NONE = "none"
"""The value of an optional field that is absent."""


class Record(BaseModel):
    """An immutable table of a spec that rejects unknown fields.

    renamed: old name of a field → what to write instead (class attribute).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )

    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_new_fields(cls, data: Any) -> Any:
        """Raises `ValueError` for a renamed field, with its new name."""
        for old, new in cls.renamed.items():
            if isinstance(data, dict) and old in data:
                raise ValueError(f"{old}: this field was renamed; expected {new}")
        return data

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        """Replaces `"none"` by None, because TOML has no null. As a `type`, `"none"` names a part and is kept."""
        if isinstance(data, dict) and any(
            value == NONE and key != "type" for key, value in data.items() if isinstance(value, str)
        ):
            return {key: None if value == NONE and key != "type" else value for key, value in data.items()}
        return data


class Source(Record):
    """The source of facts.

    gives: the kind of facts (`config`, `paper`, `weights`).
    url: the page or the file.
    checked: the date on which it was read; None if only a copy of it was read.
    revision: the commit; None without one.
    """

    url: str = Field(pattern=r"^https?://\S+$")
    gives: str
    checked: date | None = None
    revision: str | None = None

"""What every description that is read from a file shares: it is checked, it cannot be changed, and it says where its
facts are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

NONE = "none"
"""What a description gives for an optional field that is not there."""


class Record(BaseModel):
    """A table of a description: immutable, and refusing any field it does not know.

    renamed: of the class: fields that it had under another name, and what to write in their place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_new_fields(cls, data: Any) -> Any:
        """Raises `ValueError`, which says what to write, for a field under the name that it had before."""
        for old, new in cls.renamed.items():
            if isinstance(data, dict) and old in data:
                raise ValueError(f"{old}: this field was renamed; expected {new}")
        return data

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        """`"none"` says that an optional field is not there: TOML knows no null. (As a `type` it is a part of its
        own.)
        """
        if isinstance(data, dict) and any(
            value == NONE and key != "type" for key, value in data.items() if isinstance(value, str)
        ):
            return {key: None if value == NONE and key != "type" else value for key, value in data.items()}
        return data


class Source(Record):
    """Where facts are from.

    gives: which facts these are (`config`, `paper`, `weights`).
    url: the page or the file.
    checked: the day on which it was read; none where only a copy of it was.
    revision: a commit, where there is one.
    """

    url: str = Field(pattern=r"^https?://\S+$")
    gives: str
    checked: date | None = None
    revision: str | None = None

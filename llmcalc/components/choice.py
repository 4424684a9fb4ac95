"""A field that holds one of several parts, told apart by `type`; the file of a part is imported when one is first met.

Counting a Llama imports no state-space model: a description pays for the parts that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .base import Part


class PartError(ValueError):
    """What is wrong inside a part. cls: the part's. error: pydantic's findings, located from the part on."""

    def __init__(self, cls: type[BaseModel], error: ValidationError) -> None:
        super().__init__(str(error))
        self.cls, self.error = cls, error


class PartChoice:
    """homes: `type` → where its part is, `file:Class` in this package. default: the type of a table that names none."""

    def __init__(self, default: str, homes: Mapping[str, str]) -> None:
        self.default, self.homes = default, dict(homes)

    def load(self, kind: str) -> type[Part]:
        """The part of that type."""
        module, _, name = self.homes[kind].partition(":")
        cls: type[Part] = getattr(import_module(f".{module}", __package__), name)
        return cls

    def classes(self) -> list[type[Part]]:
        """Every part, imported."""
        return [self.load(kind) for kind in self.homes]

    def validate(self, value: Any) -> Part:
        """A part as it is, or a table as the part that its `type` names.

        Raises `PartError` for what is wrong inside it, and pydantic's own errors for what is no part of these.
        """
        if isinstance(value, Part):
            kind = self._kind_of(value)
            if kind in self.homes and isinstance(value, self.load(kind)):
                return value
            raise PydanticCustomError(
                "union_tag_invalid", "not one of these parts", {"tag": str(kind), "expected_tags": self._expected()}
            )
        if not isinstance(value, dict):
            raise PydanticCustomError("model_type", "not a table")
        kind = value.get("type", self.default) if len(self.homes) > 1 else self.default  # one kind checks its own type
        if not isinstance(kind, str):
            raise PydanticCustomError("union_tag_not_found", "no type")
        if kind not in self.homes:
            raise PydanticCustomError(
                "union_tag_invalid", "not one of these parts", {"tag": kind, "expected_tags": self._expected()}
            )
        cls = self.load(kind)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise PartError(cls, error) from None

    def _kind_of(self, part: Part) -> str:
        return str(getattr(part, "type", self.default)) if len(self.homes) > 1 else self.default

    def _expected(self) -> str:
        return ", ".join(f"'{kind}'" for kind in self.homes)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        dumped = core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump())
        return core_schema.no_info_plain_validator_function(self.validate, serialization=dumped)


def only(home: str) -> Any:
    """A field that holds one kind of part, `file:Class`, whose file is imported when a description has it."""
    return Annotated[Part, PartChoice("only", {"only": home})]

"""Fields that accept several component classes; `type` in the input selects the class, which is imported on use.

So counting a Llama imports no state-space model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .base import Part

PART_NAMES_KEY = "x-parts"
"""The key of a field in a JSON Schema that lists the component classes which the field accepts."""


class PartError(ValueError):
    """A validation error of a field inside a component.

    cls: the class of the part.
    error: pydantic's error, with locations relative to the part.
    """

    def __init__(self, cls: type[BaseModel], error: ValidationError) -> None:
        super().__init__(str(error))
        self.cls: type[BaseModel] = cls
        self.error: ValidationError = error


class PartChoice:
    """The component classes that a field accepts, keyed by `type`.

    class_paths: `type` → location of the class, `file:Class` in this package.
    default: the type of a table without `type`.
    """

    def __init__(self, default: str, class_paths: Mapping[str, str]) -> None:
        self.default: str = default
        self.class_paths: dict[str, str] = dict(class_paths)

    def load_component(self, type_name: str) -> type[Part]:
        """Imports and returns the component class of a `type`."""
        return _import_component(self.class_paths[type_name])

    def load_component_classes(self) -> list[type[Part]]:
        """Imports and returns the classes of all components that the field accepts."""
        return [self.load_component(type_name) for type_name in self.class_paths]

    def validate(self, component_or_dict: Any) -> Part:
        """Returns a component unchanged, or builds a component from a dict whose `type` names the class.

        Raises `PartError` for an error inside the part, and pydantic's own errors for any other value.
        """
        if isinstance(component_or_dict, Part):
            type_name = (
                str(getattr(component_or_dict, "type", self.default)) if len(self.class_paths) > 1 else self.default
            )
            if type_name in self.class_paths and isinstance(component_or_dict, self.load_component(type_name)):
                return component_or_dict
            raise PydanticCustomError(
                "union_tag_invalid",
                "not one of these parts",
                {"tag": str(type_name), "expected_tags": self._expected_types()},
            )
        if not isinstance(component_or_dict, dict):
            raise PydanticCustomError("model_type", "not a table")
        # one kind checks its own type
        type_name = component_or_dict.get("type", self.default) if len(self.class_paths) > 1 else self.default
        if not isinstance(type_name, str):
            raise PydanticCustomError("union_tag_not_found", "no type")
        if type_name not in self.class_paths:
            raise PydanticCustomError(
                "union_tag_invalid",
                "not one of these parts",
                {"tag": type_name, "expected_tags": self._expected_types()},
            )
        cls = self.load_component(type_name)
        try:
            return cls.model_validate(component_or_dict)
        except ValidationError as error:
            raise PartError(cls, error) from None

    def _expected_types(self) -> str:
        return ", ".join(f"'{type_name}'" for type_name in self.class_paths)

    def __get_pydantic_core_schema__(self, source_type: Any, handler: Any) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump())
        return core_schema.no_info_plain_validator_function(self.validate, serialization=serialization)

    def __get_pydantic_json_schema__(self, source_type: Any, handler: Any) -> dict[str, Any]:
        """Returns a schema with the class names under a key, which `sources.json_schema` turns into references."""
        return {PART_NAMES_KEY: [cls.__name__ for cls in self.load_component_classes()]}


@cache
def _import_component(class_path: str) -> type[Part]:
    file_name, _, class_name = class_path.partition(":")
    return getattr(import_module(f".{file_name}", __package__), class_name)


def component_type(class_path: str) -> Any:
    """Returns a field type that accepts a single component class, `file:Class`, which is imported on first use."""
    return Annotated[Part, PartChoice("only", {"only": class_path})]

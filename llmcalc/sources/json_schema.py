"""The JSON Schema of native descriptions (draft 2020-12), by which editors check and complete TOML.

The classes of the spec are the definitions. A variant of a layer has only the fields that differ from its block, so
every class below a layer stands there a second time, with no field required.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ..components.part_choice import PART_NAMES_KEY
from ..components.stack import Stack
from ..record import ABSENT_VALUE
from .description_fields import models_of_field, reachable_models
from .preset import LOADED_FIELDS, Preset

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

SCHEMA_URL = "https://llmcalc.github.io/llmcalc/description.schema.json"
"""Address of the schema: the documentation's site has it."""

FIELD_LINE = re.compile(r"(\w+(?:, \w+)*): (.*)")
"""A line of a docstring that describes fields: their names and the beginning of the text."""

PARTIAL_ENDING = "Partial"
"""The name suffix of a schema definition in which no field is required."""


def description_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a description, which is a preset's TOML file."""
    member_classes = (
        part_class
        for field_name in ("block", "variants")
        for part_class in models_of_field(Stack.model_fields[field_name])
    )
    layer_class_names = {
        member_class.__name__ for part_class in member_classes for member_class in reachable_models(part_class)
    }
    class_schemas = {member_class.__name__: _class_schema(member_class) for member_class in reachable_models(Preset)}
    schema = class_schemas["Stack"]["properties"]["block"]
    class_schemas["Stack"]["properties"]["variants"]["additionalProperties"] = _partial_schema(schema)
    for class_name in sorted(layer_class_names):
        class_definition = class_schemas[class_name]
        class_schemas[class_name + PARTIAL_ENDING] = {
            key: _partial_schema(value) for key, value in class_definition.items() if key != "required"
        }
    root_schema = class_schemas.pop("Preset")
    root_schema["properties"] = {
        key: value for key, value in root_schema["properties"].items() if key not in LOADED_FIELDS
    }
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": SCHEMA_URL,
        "title": "llmcalc description",
        **_without_keys(root_schema, "title"),
        "$defs": class_schemas,
    }


def _class_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """Returns the schema of a pydantic class, with references to nested classes."""
    schema = cls.model_json_schema(ref_template="#/$defs/{model}")
    class_definition: dict[str, Any] = _with_references(schema.get("$defs", {}).get(cls.__name__, schema))
    text_by_field = _field_texts(cls)
    for field_name, schema in class_definition.get("properties", {}).items():
        schema["description"] = (
            text_by_field[field_name] if field_name != "type" else f"Kind of this table ({cls.__name__})."
        )
    return _without_keys(class_definition, "$defs", "$ref")


def _field_texts(cls: type[BaseModel]) -> dict[str, str]:
    """Returns each field's description: that in the docstring of the class, or of the nearest base class with one."""
    text_by_field: dict[str, str] = {}
    for base_class in cls.__mro__:
        field_texts: dict[str, str] = {}
        paragraph_fields: list[str] = []
        for docstring_line in inspect.cleandoc(base_class.__dict__.get("__doc__") or "").splitlines():
            field_match = FIELD_LINE.match(docstring_line)
            if field_match is not None:
                paragraph_fields = field_match[1].split(", ")
                field_texts |= dict.fromkeys(paragraph_fields, field_match[2][:1].upper() + field_match[2][1:])
            elif docstring_line.startswith(" "):
                field_texts |= {name: f"{field_texts[name]} {docstring_line.strip()}" for name in paragraph_fields}
            else:
                paragraph_fields = []
        text_by_field = field_texts | text_by_field
    return text_by_field


def _with_references(schema: Any) -> Any:
    """Returns a schema with references in place of class names, and with TOML's word `none` for null."""
    if isinstance(schema, list):
        return [_with_references(schema_element) for schema_element in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "null":
        return {"const": ABSENT_VALUE}
    schema_with_references = {
        key: _with_references(value) for key, value in schema.items() if key not in (PART_NAMES_KEY, "default")
    }
    if PART_NAMES_KEY in schema:
        class_references = [{"$ref": f"#/$defs/{class_name}"} for class_name in schema[PART_NAMES_KEY]]
        return {
            **schema_with_references,
            **(class_references[0] if len(class_references) == 1 else {"anyOf": class_references}),
        }
    if isinstance(default := schema.get("default"), str | int | float | bool):
        schema_with_references["default"] = default
    return schema_with_references


def _partial_schema(schema: Any) -> Any:
    """Makes all references of a schema lead to variants of the classes in which no field is required."""
    if isinstance(schema, list):
        return [_partial_schema(schema_element) for schema_element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{value}{PARTIAL_ENDING}" if key == "$ref" else _partial_schema(value) for key, value in schema.items()
    }


def _without_keys(schema: Mapping[str, Any], *schema_keys: str) -> dict[str, Any]:
    return {schema_key: schema_value for schema_key, schema_value in schema.items() if schema_key not in schema_keys}

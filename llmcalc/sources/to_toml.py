"""Writes a spec as a native description, without fields that have default values.

A variant of a layer has only the fields that differ from the block.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from ..components.stack import BASE_LAYER_NAME, Stack
from ..model import ModelSpec
from ..record import ABSENT_VALUE, Record
from .preset import LOADED_FIELDS, Preset

UNWRITTEN_FIELDS = {"model", *LOADED_FIELDS}


def preset_description(preset: Preset) -> dict[str, Any]:
    """Returns a preset's description as tables that load as the same model."""
    preset_fields = {
        name: value for name, value in preset.model_dump(exclude_defaults=True).items() if name not in UNWRITTEN_FIELDS
    }
    if preset.changes:
        preset_fields["title"] = preset.display
        preset_fields.pop("aliases", None)
    return {**preset_fields, "model": model_description(preset.model)}


def model_description(model: ModelSpec) -> dict[str, Any]:
    """Returns the non-default fields of a model as tables, for `[model]` of a description."""
    return _part_table(model)


def dump_toml(preset: Preset) -> str:
    """Returns the description as TOML. Imports tomli-w."""
    import tomli_w

    return UNPRINTABLE.sub(lambda match: _escape_character(match[0]), tomli_w.dumps(preset_description(preset)))


UNPRINTABLE = re.compile(r"[^\n -~]")
"""Characters that may have to be escaped. tomli-w leaves them as they are, all of them within quotes."""


def _escape_character(character: str) -> str:
    r"""Returns an unprintable character of a quoted text as an escape sequence (`\u202e`)."""
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


def _part_table(spec_part: BaseModel, base_table: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a component's fields with values other than the defaults, and the field `type`.

    base_table: a table that the result will override; fields that it sets are included even if they are defaults.
    """
    part_fields: dict[str, Any] = {}
    for field_name, field in type(spec_part).model_fields.items():
        field_value = getattr(spec_part, field_name)
        if isinstance(spec_part, Stack) and field_name == "variants":
            continue
        default_value = None if field.is_required() else field.get_default(call_default_factory=True)
        if (
            field_name != "type"
            and not field.is_required()
            and field_value == default_value
            and field_name not in (base_table or {})
        ):
            continue
        if field_value is None and field_name == "type":
            continue
        part_fields[field_name] = _plain_value(field_value, (base_table or {}).get(field_name))
    if isinstance(spec_part, Stack) and spec_part.variants:
        block = part_fields["block"]
        part_fields["variants"] = {
            field_name: _difference_table(block, _part_table(layer, block))
            for field_name, layer in spec_part.variants.items()
            if field_name != BASE_LAYER_NAME
        }
    return part_fields


def _plain_value(field_value: Any, base_table: Any = None) -> Any:
    if isinstance(field_value, Record):
        is_same_type = isinstance(base_table, dict) and base_table.get("type") == getattr(field_value, "type", None)
        return _part_table(field_value, base_table if is_same_type else None)
    if isinstance(field_value, dict):
        return {field_name: _plain_value(nested_value) for field_name, nested_value in field_value.items()}
    if isinstance(field_value, tuple):
        return [_plain_value(list_element) for list_element in field_value]
    return ABSENT_VALUE if field_value is None else field_value


def _difference_table(base_table: dict[str, Any], other_table: dict[str, Any]) -> dict[str, Any]:
    """Returns a table that, merged recursively into `base_table`, gives `other_table`."""
    different_fields: dict[str, Any] = {}
    for field_name, field_value in other_table.items():
        base_value = base_table.get(field_name)
        if (
            isinstance(field_value, dict)
            and isinstance(base_value, dict)
            and field_value.get("type") == base_value.get("type")
        ):
            inner_differences = _difference_table(base_value, field_value)
            if inner_differences:
                different_fields[field_name] = inner_differences
        elif field_value != base_value:
            different_fields[field_name] = field_value
    return different_fields

"""Finds the config fields from which a field of the description was computed, by tracking numbers.

An error about `num_experts` can then name `n_routed_experts`, the name in the file, and no family has to list its
names. The config is read once more with numbers that carry the names of their fields, also through arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import InputError
from .config import IRRELEVANT_FIELDS
from .description import text_model_of
from .head_kinds import head_kind_of_config
from .registry import family_of, typed_config


class TrackedInt(int):
    """An integer that remembers the config fields it was computed from."""

    origin_fields: frozenset[str]

    def __repr__(self) -> str:
        return int.__repr__(self)


class TrackedFloat(float):
    """A float that remembers the config fields it was read from, also through `math.floor`."""

    origin_fields: frozenset[str]

    def __floor__(self) -> Any:
        return _with_origin_fields(float.__floor__(self), self.origin_fields)


def _with_origin_fields(field_value: Any, origin_fields: frozenset[str]) -> Any:
    """Returns a number that remembers these config fields; a value of another type is unchanged."""
    if type(field_value) not in (int, float):
        return field_value
    tracked_number: Any = TrackedInt(field_value) if isinstance(field_value, int) else TrackedFloat(field_value)
    tracked_number.origin_fields = origin_fields
    return tracked_number


def _tracked_operation(cls: type, method_name: str) -> Callable[[Any, Any], Any]:
    def calculate(self: Any, other_operand: Any) -> Any:
        operation_result = getattr(cls, method_name)(self, other_operand)
        if operation_result is NotImplemented and isinstance(other_operand, float):
            operation_result = getattr(float, method_name)(float(self), other_operand)
        origin_fields = self.origin_fields | getattr(other_operand, "origin_fields", frozenset())
        return _with_origin_fields(operation_result, origin_fields)

    return calculate


for _tracked_type, _plain in ((TrackedInt, int), (TrackedFloat, float)):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
        for _side in ("", "r"):
            setattr(_tracked_type, f"__{_side}{_name}__", _tracked_operation(_plain, f"__{_side}{_name}__"))


def origin_fields_of(config: Mapping[str, Any], message: str) -> str:
    """Returns, for an error message, the config fields from which the fields in the message were computed.

    Empty if the names are the same.
    """
    try:
        path_prefix, text_config, model_type = text_model_of(config)
        family = family_of(model_type, path_prefix)
        if family.read_model is None:
            return ""
        tracked_config = {
            name: value if name in IRRELEVANT_FIELDS else _tracked_value(value, name)
            for name, value in text_config.items()
        }
        head = head_kind_of_config(config)
        model_fields = family.read_model(typed_config(tracked_config, model_type, family, head, path_prefix))
    except InputError:  # a .toml may have another value under that name
        return ""
    message_paths = re.findall(r"[\w.]+", message.partition("; expected")[0])
    named_fields = {path.rpartition(".")[2] for path in message_paths}
    tracked_numbers = _tracked_numbers(model_fields, named_fields)
    origin_fields = {field_name for tracked_number in tracked_numbers for field_name in tracked_number.origin_fields}
    paths = _field_paths(text_config)
    config_paths = [path for path in paths if path in origin_fields and path.rpartition(".")[2] not in named_fields]
    return f" (in the config: {', '.join(path_prefix + path for path in config_paths)})" if config_paths else ""


def _tracked_value(field_value: Any, path: str) -> Any:
    """Returns a config value whose numbers remember their path in the config."""
    if isinstance(field_value, dict):
        return {name: _tracked_value(nested_value, f"{path}.{name}") for name, nested_value in field_value.items()}
    if isinstance(field_value, list):
        return [_tracked_value(list_element, path) for list_element in field_value]
    return _with_origin_fields(field_value, frozenset({path}))


def _tracked_numbers(
    description_table: Any, field_names: set[str], is_below_field: bool = False
) -> Iterator[TrackedInt | TrackedFloat]:
    """Yields the numbers of a description that remember their config fields, below one of the field names."""
    if isinstance(description_table, dict):
        for field_name, field_value in description_table.items():
            yield from _tracked_numbers(
                field_value, field_names, field_name in field_names and not isinstance(field_value, dict)
            )
    elif isinstance(description_table, list | tuple):
        for field_value in description_table:
            yield from _tracked_numbers(field_value, field_names, is_below_field)
    elif is_below_field and isinstance(description_table, TrackedInt | TrackedFloat):
        yield description_table


def _field_paths(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields every field's path, nested tables included, in the order of the file."""
    for field_name, field_value in config.items():
        yield field_name
        if isinstance(field_value, dict):
            yield from (f"{field_name}.{path}" for path in _field_paths(field_value))

"""Reads a config table field by field: values are checked, and unread fields are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InputError, short_repr

PROVENANCE_FIELDS = frozenset(
    {"quant_method", "quantization_status", "global_compression_ratio", "provider", "producer"}
)
"""Fields that name the software that made the checkpoint; they are ignored."""

LARGEST_INTEGER = 2**20


class ConfigFields:
    """A config table that remembers which fields have been read."""

    def __init__(self, table_data: Mapping[str, Any], table_origin: str) -> None:
        self.table_data: Mapping[str, Any] = table_data
        self.table_origin: str = table_origin
        self.read_names: set[str] = set[str](PROVENANCE_FIELDS)

    def get(self, field_name: str, default_value: Any = None) -> Any:
        """Returns a field's value, or `default_value` if the config lacks the field; marks the field as read."""
        self.read_names.add(field_name)
        return self.table_data.get(field_name, default_value)

    def get_lowercase(self, field_name: str, default_value: Any = None) -> Any:
        """Returns a field's value; strings are converted to lower case."""
        field_value = self.get(field_name, default_value)
        return field_value.lower() if isinstance(field_value, str) else field_value

    def ignore(self, *field_names: str) -> None:
        """Marks fields that do not affect sizes as read."""
        self.read_names.update(field_names)

    def value_error(self, field_name: str, field_value: Any, expected_values: str) -> InputError:
        """Returns the error for an invalid value of a field. expected_values: the valid values in words."""
        try:
            value_text = repr(field_value)
        except (ValueError, RecursionError):  # a number of thousands of digits, or a list that contains itself
            value_text = short_repr(field_value)
        return InputError(
            f"{self.table_origin}: {field_name}: {value_text if len(value_text) <= 60 else value_text[:57] + '…'}; "
            "expected "
            f"{expected_values}"
        )

    def check_choice(self, field_name: str, field_value: Any, *allowed_values: Any) -> None:
        """Raises `InputError` for a value that is not among the allowed values."""
        if not any(
            field_value == allowed_value and type(field_value) is type(allowed_value)
            for allowed_value in allowed_values
        ):
            raise self.value_error(field_name, field_value, "one of " + ", ".join(map(repr, allowed_values)))

    def check_field_value(self, field_name: str, *allowed_values: Any, default_value: Any = None) -> None:
        """Raises `InputError` for a field whose value is not among the allowed values."""
        self.check_choice(field_name, self.get(field_name, default_value), *allowed_values)

    def get_strings(self, *field_names: str) -> list[str]:
        """Returns the list of strings in the first of these fields that exists; empty if none exists."""
        for field_name in field_names:
            field_value = self.get(field_name)
            if field_value is None:
                continue
            if not isinstance(field_value, list) or any(
                not isinstance(entry_text, str) or not entry_text or len(entry_text) > 500 for entry_text in field_value
            ):
                raise self.value_error(field_name, field_value, "a list of module names")
            return field_value
        return []

    def get_all_strings(self, *field_names: str) -> list[str]:
        """Returns the strings in all of these fields that are lists, without repetitions."""
        return list(
            dict.fromkeys(listed_text for field_name in field_names for listed_text in self.get_strings(field_name))
        )

    def get_group_size(self, field_name: str, default_value: int | None = None) -> int | None:
        """Returns the number of columns per scale; None for a whole row (−1 or null in configs)."""
        field_value = self.get(field_name, default_value)
        if field_value is None or (type(field_value) is int and field_value == -1):
            return None
        if type(field_value) is not int or not 0 < field_value <= LARGEST_INTEGER:
            raise self.value_error(field_name, field_value, "a positive whole number, or -1")
        return field_value

    def get_integer_pair(self, field_name: str, minimum: int = 1) -> tuple[int, int] | None:
        """Returns a field's two integers, which must be at least `minimum`; None if the field is missing."""
        field_value = self.get(field_name)
        if field_value is None:
            return None
        if (
            not isinstance(field_value, list)
            or len(field_value) != 2
            or any(type(integer) is not int or not minimum <= integer <= LARGEST_INTEGER for integer in field_value)
        ):
            raise self.value_error(field_name, field_value, f"two whole numbers of {minimum} or more, or null")
        return field_value[0], field_value[1]

    def get_table(self, field_name: str) -> ConfigFields | None:
        """Returns the table in a field; None if the field is missing."""
        field_value = self.get(field_name)
        if field_value is None:
            return None
        if not isinstance(field_value, dict):
            raise self.value_error(field_name, field_value, "a table of fields")
        return ConfigFields(field_value, f"{self.table_origin}: {field_name}")

    def get_tables(self, expected_values: str) -> Iterator[tuple[str, ConfigFields]]:
        """Yields the name and fields of every nested table. expected_values: the valid fields, for error messages."""
        for field_name in self.table_data:
            nested_fields = self.get_table(field_name)
            if nested_fields is None:
                raise self.value_error(field_name, None, expected_values)
            yield field_name, nested_fields

    def check_all_read(self) -> None:
        """Raises `InputError` for a field that was neither read nor ignored."""
        unknown_fields = sorted(str(field_name) for field_name in self.table_data if field_name not in self.read_names)
        if unknown_fields:
            fields_text = ", ".join(sorted(self.read_names - PROVENANCE_FIELDS))
            raise InputError(f"{self.table_origin}: {unknown_fields[0][:60]}: not known; expected one of {fields_text}")


NO_FIELDS = ConfigFields({}, "")
"""A table without fields."""

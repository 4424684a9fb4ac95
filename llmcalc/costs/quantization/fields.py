"""Reads a config table field by field: values are checked, and unread fields are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InputError, shown

COMMON = frozenset({"quant_method", "quantization_status", "global_compression_ratio", "provider", "producer"})
"""Fields that name the software that made the checkpoint; they are ignored."""

LARGEST = 2**20


class Fields:
    """A table of a config, which records the fields that were read."""

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self.data: Mapping[str, Any] = data
        self.where: str = origin
        self.read_names: set[str] = set[str](COMMON)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field, or `default` if the field is missing."""
        self.read_names.add(name)
        return self.data.get(name, default)

    def get_lowercase(self, name: str, default: Any = None) -> Any:
        """Returns a field's value, as lower-case text if it is a string."""
        value = self.get(name, default)
        return value.lower() if isinstance(value, str) else value

    def ignore(self, *names: str) -> None:
        """Marks fields as ignored, because the fields change no size."""
        self.read_names.update(names)

    def value_error(self, name: str, value: Any, expected: str) -> InputError:
        """Returns the error for a field's value, with the expected values in words."""
        try:
            text = repr(value)
        except (ValueError, RecursionError):  # a number of thousands of digits, or a list that contains itself
            text = shown(value)
        return InputError(f"{self.where}: {name}: {text if len(text) <= 60 else text[:57] + '…'}; expected {expected}")

    def check_choice(self, name: str, value: Any, *allowed_values: Any) -> None:
        """Raises `InputError` for a value that is not one of the allowed ones."""
        if not any(value == choice and type(value) is type(choice) for choice in allowed_values):
            raise self.value_error(name, value, "one of " + ", ".join(map(repr, allowed_values)))

    def check_field(self, name: str, *allowed_values: Any, default: Any = None) -> None:
        """Raises `InputError` for a field whose value is not one of the allowed ones."""
        self.check_choice(name, self.get(name, default), *allowed_values)

    def get_strings(self, *names: str) -> list[str]:
        """Returns the list of strings in the first present field; empty if all are absent."""
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if not isinstance(value, list) or any(
                not isinstance(text, str) or not text or len(text) > 500 for text in value
            ):
                raise self.value_error(name, value, "a list of module names")
            return value
        return []

    def get_all_strings(self, *names: str) -> list[str]:
        """Returns the strings of all fields that are lists, without repetitions."""
        return list(dict.fromkeys(text for name in names for text in self.get_strings(name)))

    def get_group_size(self, name: str, default: int | None = None) -> int | None:
        """Returns the number of columns per scale; None for a whole row (−1 or null in configs)."""
        value = self.get(name, default)
        if value is None or (type(value) is int and value == -1):
            return None
        if type(value) is not int or not 0 < value <= LARGEST:
            raise self.value_error(name, value, "a positive whole number, or -1")
        return value

    def get_integer_pair(self, name: str) -> tuple[int, int] | None:
        """Returns a field's two positive integers; None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != 2
            or any(type(element) is not int or not 0 < element <= LARGEST for element in value)
        ):
            raise self.value_error(name, value, "two positive whole numbers, or null")
        return value[0], value[1]

    def get_table(self, name: str) -> Fields | None:
        """Returns a nested table; None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.value_error(name, value, "a table of fields")
        return Fields(value, f"{self.where}: {name}")

    def get_tables(self, expected: str) -> Iterator[tuple[str, Fields]]:
        """Yields the name and the fields of every nested table. expected: the valid fields, for an error message."""
        for name in self.data:
            fields = self.get_table(name)
            if fields is None:
                raise self.value_error(name, None, expected)
            yield name, fields

    def check_all_read(self) -> None:
        """Raises `InputError` for a field that was neither read nor ignored."""
        unknown_fields = sorted(str(name) for name in self.data if name not in self.read_names)
        if unknown_fields:
            known_fields = ", ".join(sorted(self.read_names - COMMON))
            raise InputError(f"{self.where}: {unknown_fields[0][:60]}: not known; expected one of {known_fields}")


NO_FIELDS = Fields({}, "")
"""A table without fields."""

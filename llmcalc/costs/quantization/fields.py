"""A table of a config, read field by field: what is asked for is checked, what nobody asked for is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, shown

COMMON = frozenset({"quant_method", "quantization_status", "global_compression_ratio", "provider", "producer"})
"""Fields that say what made a checkpoint."""

LARGEST = 2**20


class Fields:
    """data: the table. where: what errors call it."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where, self.asked = data, where, set[str](COMMON)

    def get(self, name: str, absent: Any = None) -> Any:
        """The value, `absent` where there is none."""
        self.asked.add(name)
        return self.data.get(name, absent)

    def lower(self, name: str, absent: Any = None) -> Any:
        """The value, a text in lower case."""
        value = self.get(name, absent)
        return value.lower() if isinstance(value, str) else value

    def ignore(self, *names: str) -> None:
        """Fields that change no size."""
        self.asked.update(names)

    def wrong(self, name: str, value: Any, expected: str) -> InputError:
        try:
            text = repr(value)
        except (ValueError, RecursionError):  # a number of thousands of digits, or lists without end
            text = shown(value)
        return InputError(f"{self.where}: {name}: {text if len(text) <= 60 else text[:57] + '…'}; expected {expected}")

    def one_of(self, name: str, value: Any, *allowed: Any) -> None:
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise self.wrong(name, value, "one of " + ", ".join(map(repr, allowed)))

    def must(self, name: str, *allowed: Any, absent: Any = None) -> None:
        """Raises `InputError` where the field has another value than is counted for."""
        self.one_of(name, self.get(name, absent), *allowed)

    def texts(self, *names: str) -> list[str]:
        """The list of texts under the first of the names that is there; nothing where none is."""
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if not isinstance(value, list) or any(
                not isinstance(one, str) or not one or len(one) > 500 for one in value
            ):
                raise self.wrong(name, value, "a list of module names")
            return value
        return []

    def group(self, name: str, absent: int | None = None) -> int | None:
        """Columns that share a scale; None for a whole row, which configs write as −1 or null."""
        value = self.get(name, absent)
        if value is None or (type(value) is int and value == -1):
            return None
        if type(value) is not int or not 0 < value <= LARGEST:
            raise self.wrong(name, value, "a positive whole number, or -1")
        return value

    def pair(self, name: str) -> tuple[int, int] | None:
        value = self.get(name)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != 2
            or any(type(n) is not int or not 0 < n <= LARGEST for n in value)
        ):
            raise self.wrong(name, value, "two positive whole numbers, or null")
        return value[0], value[1]

    def table(self, name: str) -> Fields | None:
        """A table below this one."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "a table of fields")
        return Fields(value, f"{self.where}: {name}")

    def all_read(self) -> None:
        """Raises `InputError` for a field that nobody asked for."""
        unknown = sorted(str(name) for name in self.data if name not in self.asked)
        if unknown:
            known = ", ".join(sorted(self.asked - COMMON))
            raise InputError(f"{self.where}: {unknown[0][:60]}: not known; expected one of {known}")

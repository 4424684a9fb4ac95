"""The exception for a config field for which a model's description has no value."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


class AbsentValue(LookupError):
    """Raised if a description has no value for a config field, so that the field is left out of the config."""


def require_present(value: Value | None) -> Value:
    """Returns a value that is not None. Raises `AbsentValue` for None."""
    if value is None:
        raise AbsentValue
    return value

"""A field that a spec has no value for."""

from __future__ import annotations

from typing import Any


class Absent(LookupError):
    """The spec has no value for a field, so the field is left to its class."""


def present(value: Any) -> Any:
    """Returns the value; raises `Absent` if it is None."""
    if value is None:
        raise Absent
    return value

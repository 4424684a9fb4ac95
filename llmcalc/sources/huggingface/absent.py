"""The exception for a config field whose value a spec does not have."""

from __future__ import annotations

from typing import Any


class Absent(LookupError):
    """Raised if the spec has no value for a field, so that the config leaves the field to its class."""


def present(value: Any) -> Any:
    """Returns the value; raises `Absent` if it is None."""
    if value is None:
        raise Absent
    return value

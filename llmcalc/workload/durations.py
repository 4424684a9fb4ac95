"""Parses durations such as `8.1s`, `35ms` or `12min`."""

from __future__ import annotations

import re
from typing import Any

from ..errors import InputError, short_repr

DURATION = re.compile(r"((?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:e[+-]?[0-9]{1,2})?)\s*([uµ]s|ms|s|min|h)?")
"""As typed, or as a program writes a number: `1.1179999999999999`, `9.1e-05`."""

LONGEST_SECONDS = 1e9
"""Seconds that no run takes, 31 years."""

DURATION_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_duration(option_name: str, duration_text: Any, largest_unitless_seconds: float = LONGEST_SECONDS) -> float:
    """Parses a duration in seconds: `8.1s`, `810ms`, `8.1`.

    largest_unitless_seconds: the largest number that is taken for seconds without a unit.
    Raises `InputError`, which names `option_name`, for other text.
    """
    duration_match = (
        DURATION.fullmatch(str(duration_text).strip()) if isinstance(duration_text, str | int | float) else None
    )
    seconds = 0.0 if duration_match is None else float(duration_match[1]) * DURATION_UNITS[duration_match[2] or "s"]
    if not 0 < seconds < LONGEST_SECONDS:
        raise InputError(f"{option_name}: {short_repr(duration_text)}; expected a duration such as 8.1s, 35ms or 12min")
    if duration_match is not None and duration_match[2] is None and seconds > largest_unitless_seconds:
        number_text = duration_match[1]
        raise InputError(
            f"{option_name} {number_text}: has no unit; expected {number_text}ms, or {number_text}s for seconds"
        )
    return seconds

"""Parses durations such as `8.1s`, `35ms` or `12min`, and measured rates such as `2,900 tok/s` or `296 TFLOP/s`."""

from __future__ import annotations

import re
from typing import Any

from ..errors import InputError, short_repr
from ..frozen import frozen
from ..units import NUMBER_PATTERN

DURATION = re.compile(r"((?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:e[+-]?[0-9]{1,2})?)\s*([uµ]s|ms|s|min|h)?")
"""Pattern of a duration as typed, or as a program writes the number: `8.1s`, `1.1179999999999999`, `9.1e-05`."""

LONGEST_SECONDS = 1e9
"""Largest accepted duration in seconds (31 years)."""

MAX_TOKENS_PER_SECOND = 1e15
"""Largest accepted rate of a run, in tokens per second."""

MAX_DEVICE_TFLOPS, MAX_PERCENT = 1e6, 1e3
"""Largest accepted rates of a device, in TFLOP/s and in percent of the peak."""

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


TOKEN_RATE = re.compile(
    rf"({NUMBER_PATTERN})\s*(k?)\s*(?:(?:tokens?|toks?|t)/s(?:ec|econd)?|tps)(/(?:gpu|device|chip))?", re.IGNORECASE
)
"""Pattern of tokens per second as logs print them, optionally per device."""

FLOP_RATE = re.compile(
    rf"({NUMBER_PATTERN})\s*(?:TFLOPs?(?:/s(?:ec)?)?(?:/(?:gpu|device|chip))?|(%)\s*MFU)", re.IGNORECASE
)
"""Pattern of a device's model TFLOP/s, or its share of the peak (`41% MFU`), as training logs print them."""


@frozen
class MeasuredTime:
    """A measured time of a pass, given as seconds or as a rate.

    seconds: its seconds; None (default) if the rate is known instead.
    tokens_per_second: its tokens over its seconds; 0 (default) if the seconds are known.
    is_device_rate: whether the rate is that of one device, and not of all; false by default.
    flops_per_second: model FLOPs of one device, with full pairs of attention, over its seconds; 0 (default) for none.
    mfu: the same as a share of the device's peak; 0 (default) for none.
    """

    seconds: float | None = None
    tokens_per_second: float = 0.0
    is_device_rate: bool = False
    flops_per_second: float = 0.0
    mfu: float = 0.0

    def seconds_of(self, token_count: int, device_count: int, model_flops: int, peak: float) -> float:
        """Returns the seconds of a pass; a measured rate is converted with the pass's tokens or FLOPs.

        model_flops: of the pass, with full pairs of attention. peak: FLOP/s of one device.
        """
        if self.seconds is not None:
            return self.seconds
        if self.flops_per_second or self.mfu:
            return model_flops / device_count / (self.flops_per_second or self.mfu * peak)
        return token_count / self.tokens_per_second / (device_count if self.is_device_rate else 1)


def parse_measured_time(option_name: str, measured_text: Any) -> MeasuredTime:
    """Parses a duration or a rate: `8.1s`, `2900 tok/s`, `12k tokens/s`, `7,201 tps/gpu`, `296 TFLOP/s`, `41% MFU`.

    Raises `InputError`, which names `option_name`, for other text.
    """
    flop_match = FLOP_RATE.fullmatch(measured_text.strip()) if isinstance(measured_text, str) else None
    if flop_match is not None:
        amount = float(flop_match[1].replace(",", ""))
        if not 0 < amount < (MAX_PERCENT if flop_match[2] else MAX_DEVICE_TFLOPS):
            raise InputError(
                f"{option_name}: {short_repr(measured_text)}; expected a rate such as 400 TFLOP/s or 41% MFU"
            )
        return MeasuredTime(mfu=amount / 100) if flop_match[2] else MeasuredTime(flops_per_second=amount * 1e12)
    rate_match = TOKEN_RATE.fullmatch(measured_text.strip()) if isinstance(measured_text, str) else None
    if rate_match is None:
        try:
            return MeasuredTime(parse_duration(option_name, measured_text))
        except InputError as error:
            raise InputError(f"{error}, or a rate such as 2900 tok/s, 400 TFLOP/s or 41% MFU") from None
    tokens_per_second = float(rate_match[1].replace(",", "")) * (1000 if rate_match[2] else 1)
    if not 0 < tokens_per_second < MAX_TOKENS_PER_SECOND:
        raise InputError(f"{option_name}: {short_repr(measured_text)}; expected a rate such as 2900 tok/s")
    return MeasuredTime(None, tokens_per_second, rate_match[3] is not None)

"""Number formats, and functions that format and parse numbers. Only this file uses the factors 1000 and 1024.

Counts and rates are decimal (8.03 B parameters, 989 TFLOP/s, 3.35 TB/s); memory is binary (15.0 GiB).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import InputError, suggest

if TYPE_CHECKING:
    from fractions import Fraction

DTYPE_BITS: dict[str, int] = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "int8": 8,
    "float4": 4,
    "int4": 4,
}
"""Number format → bits per element, without scales and zero points."""

_DTYPE_ALIASES = {
    "fp64": "float64", "fp32": "float32", "float": "float32", "tf32": "tfloat32", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "fp8": "float8", "float8_e4m3fn": "float8", "float8_e5m2": "float8", "fp4": "float4",
}  # fmt: skip

DTYPE_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "tfloat32": "tf32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "float4": "fp4",
}
"""Full name of a number format → the short name that tables print."""

COUNT_SUFFIXES = ("", "K", "M", "B", "T", "Q")
SI_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def dtype(format_name: str) -> str:
    """Returns the full name of a number format: `bf16` → `bfloat16`.

    Raises `InputError` for an unknown name.
    """
    plain_name = format_name.strip().lower().removeprefix("torch.")
    full_name = _DTYPE_ALIASES.get(plain_name, plain_name)
    if full_name not in DTYPE_BITS:
        format_names = [DTYPE_NAMES.get(name_of_dtype, name_of_dtype) for name_of_dtype in DTYPE_BITS]
        is_scheme = re.match(r"i?q[0-9]|nf4|awq|gptq|mxfp|nvfp|mlx|exl|[0-9]-?bit", plain_name)
        suggestion = " Schemes of quantized weights are values of --quantize."
        if not is_scheme:
            suggestion = suggest(format_name, format_names)
        raise InputError(f"unknown dtype '{format_name}': expected one of {', '.join(format_names)}.{suggestion}")
    return full_name


def short_dtype(format_name: str) -> str:
    """Returns the short name of a number format: `bfloat16` → `bf16`."""
    return DTYPE_NAMES.get(format_name, format_name)


def bits_to_bytes(bits: int) -> int:
    """Returns the number of whole bytes for a number of bits."""
    return -(-bits // 8)


def _value_in_largest_unit(number: float, unit_base: int, unit_names: tuple[str, ...]) -> tuple[float, str]:
    """Returns a number in the largest unit in which it is at least 1, and this unit."""
    scaled_value, unit_index = float(number), 0
    while abs(scaled_value) >= unit_base and unit_index < len(unit_names) - 1:
        scaled_value, unit_index = scaled_value / unit_base, unit_index + 1
    if unit_index < len(unit_names) - 1 and round(abs(scaled_value), 2) >= unit_base:  # 999.996 would print as 1000.00
        scaled_value, unit_index = scaled_value / unit_base, unit_index + 1
    return scaled_value, unit_names[unit_index]


def count(number: int) -> str:
    """Returns a count as text with a decimal suffix: `8.03 B`, `218.11 M`, `512`."""
    if abs(number) < 1000:
        return f"{number:,}" if isinstance(number, int) else f"{number:.2f}"
    scaled_value, unit_suffix = _value_in_largest_unit(number, 1000, COUNT_SUFFIXES)
    return f"{scaled_value:.2f} {unit_suffix}"


def exact_text(number: int) -> str:
    """Returns a count as text with all digits: `8,030,261,248`."""
    return f"{number:,}"


def memory(byte_count: int) -> str:
    """Returns bytes as text in a binary unit: `14.96 GiB`."""
    if abs(byte_count) < 1024:
        return f"{byte_count} B"
    scaled_value, unit_prefix = _value_in_largest_unit(byte_count, 1024, BINARY_PREFIXES)
    return f"{scaled_value:.2f} {unit_prefix}B"


def amount(number: float, unit_name: str) -> str:
    """Returns an amount or a rate as text in a decimal unit: `1.93 TFLOPs`, `3.35 TB/s`, `989.50 TFLOP/s`."""
    scaled_value, unit_prefix = _value_in_largest_unit(number, 1000, SI_PREFIXES)
    digit_text = f"{scaled_value:.0f}" if not unit_prefix and float(number).is_integer() else f"{scaled_value:.2f}"
    return f"{digit_text} {unit_prefix}{unit_name}"


class UnitScale(NamedTuple):
    """The unit of a table's column. name: the unit in the heading.

    write_small: writes a value that would be 0.00 in this unit, in a smaller unit with its name.
    """

    factor: int
    name: str
    write_small: Callable[[Any], str]

    def write(self, number: float) -> str:
        """Returns a value as text in this unit with two decimals; values below 0.005 in a smaller unit: `4.00 KiB`."""
        scaled_value = number / self.factor
        is_small = 0 < abs(scaled_value) < 0.005
        return (self.write_small(number) if is_small else f"{scaled_value:,.2f}").replace("-", "−")


GIB = UnitScale(1024**3, "GiB", memory)
"""The unit of accelerator memory, GiB, for every value in a table that compares with such memory."""


def decimal_scale(number: float, unit_name: str) -> UnitScale:
    """Returns the largest decimal unit in which the value is at least 1: `TFLOPs`.

    For a column, pass its total or its smallest value.
    """
    return _largest_unit_scale(number, 1000, SI_PREFIXES, unit_name, lambda small_value: amount(small_value, unit_name))


def memory_scale(byte_count: float) -> UnitScale:
    """Returns the largest binary unit in which the value is at least 1: `GiB`."""
    return _largest_unit_scale(byte_count, 1024, BINARY_PREFIXES, "B", memory)


def count_scale(number: float) -> UnitScale:
    """Returns the largest unit of counts in which the value is at least 1: `B`."""
    return _largest_unit_scale(number, 1000, COUNT_SUFFIXES, "", count)


def _largest_unit_scale(
    number: float, unit_base: int, unit_prefixes: tuple[str, ...], unit_name: str, write_small: Callable[[Any], str]
) -> UnitScale:
    _, unit_prefix = _value_in_largest_unit(number, unit_base, unit_prefixes)
    return UnitScale(unit_base ** unit_prefixes.index(unit_prefix), unit_prefix + unit_name, write_small)


def flops(flop_count: float) -> str:
    """Returns a number of floating-point operations as text: `1.93 TFLOPs`."""
    return amount(flop_count, "FLOPs")


def percent(number: float, decimal_places: int = 1) -> str:
    """Returns a fraction as text in percent: `86.9 %`."""
    return f"{100 * number:.{decimal_places}f} %"


def signed_percent(number: float, decimal_places: int = 1) -> str:
    """Returns a relative difference as text: `−6.7 %`, `+0.3 %`, `equal` for 0; without sign if it rounds to 0."""
    if number == 0:
        return "equal"
    percent_text = f"{abs(100 * number):.{decimal_places}f}"
    sign_text = "" if not float(percent_text) else "+" if number > 0 else "−"
    return f"{sign_text}{percent_text} %"


def difference(number: int) -> str:
    """Returns the exact difference of two counts as text: `+256`, `−14,848`, `equal`."""
    return "equal" if number == 0 else f"{'+' if number > 0 else '−'}{abs(number):,}"


def seconds(duration: float) -> str:
    """Returns a duration as text with a tenth of a second: `0.9 s`."""
    return f"{duration:.1f} s"


NUMBER_PATTERN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?(?:[eE][+]?[0-9]{1,2})?"
"""Pattern of a number as people write it; commas may only separate groups of three digits, so no decimal comma."""

_NUMBER_PATTERN = rf"^\s*+({NUMBER_PATTERN})\s*+([a-zA-Z]*+)\s*+$"
_SIGNED_NUMBER_PATTERN = rf"^\s*+([+-]?{NUMBER_PATTERN})\s*+([a-zA-Z]*+)\s*+$"
_COUNT_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "b": 10**9,
    "g": 10**9,
    "t": 10**12,
    "p": 10**15,
    "e": 10**18,
    "z": 10**21,
    "y": 10**24,
    "mn": 10**6,
    "bn": 10**9,
    "tn": 10**12,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}


_LENGTH_FACTORS = {"": 1, "k": 1024, "ki": 1024, "m": 1024**2, "mi": 1024**2}


def parse_length(length_text: str) -> int:
    """Parses a number of tokens or sequences, where k means 1,024: `32k`, `1M`, `8_192` → 32768, 1048576, 8192.

    Raises `InputError` for any other text.
    """
    _refuse_digit_groups(length_text, f"'{length_text}'")
    number_match = re.match(_SIGNED_NUMBER_PATTERN, length_text)
    unit_factor = _LENGTH_FACTORS.get(number_match.group(2).lower()) if number_match else None
    if number_match is None or unit_factor is None:
        raise InputError(f"'{length_text}' is not a whole number; expected something like 4096, 32k or 1M")
    return _parse_whole(number_match.group(1), unit_factor, f"'{length_text}'")


LONGEST_NUMBER = 100
"""Largest length of a typed number, in characters."""


def exact_number(digit_text: str, shown_text: str) -> Fraction:
    """Returns the value of a number that has the form `NUMBER_PATTERN`. shown_text: the number in error messages.

    Raises `InputError` for a number that is longer than any quantity.
    """
    from fractions import Fraction

    if len(digit_text) > LONGEST_NUMBER:
        shown_digits = shown_text if len(shown_text) <= 60 else f"{shown_text[:57]}…"
        raise InputError(f"{shown_digits}: a number of {len(digit_text):,} letters; expected at most {LONGEST_NUMBER}")
    return Fraction(digit_text.replace("_", "").replace(",", ""))


OTHER_DIGIT_GROUPS = re.compile(r"\s*[1-9][0-9]{0,2}(?:[.'\u2019\s][0-9]{3})+\s*")
"""Pattern of a number with points, quotes or spaces between groups of three digits, as many languages write it."""


def _refuse_digit_groups(typed_number: str, shown_text: str) -> None:
    """Raises `InputError` for a number such as `10.000`, which is ten thousand in many languages and ten in others."""
    if OTHER_DIGIT_GROUPS.fullmatch(typed_number):
        digits = re.sub(r"[^0-9]", "", typed_number)
        raise InputError(f"{shown_text}: groups of digits have commas or underscores between them; expected {digits}")


def _parse_whole(digit_text: str, unit_factor: int, shown_text: str) -> int:
    exact_value = exact_number(digit_text, shown_text) * unit_factor
    if exact_value.denominator != 1:
        raise InputError(f"{shown_text} is not a whole number")
    return int(exact_value)


def parse_count(count_text: str, quantity_name: str = "") -> int:
    """Parses a positive count, where k means 1,000: `8e9`, `8B`, `8bn`, `8_000_000_000` → 8000000000.

    quantity_name: name of the option, for the error message.
    Raises `InputError` for any other text, zero and negative numbers included.
    """
    quantity_text = f"{quantity_name}: '{count_text}'" if quantity_name else f"'{count_text}'"
    _refuse_digit_groups(count_text, quantity_text)
    number_match = re.match(_NUMBER_PATTERN, count_text)
    unit_factor = _COUNT_FACTORS.get(number_match.group(2).lower()) if number_match else None
    if number_match is None or unit_factor is None:
        raise InputError(f"{quantity_text} is not a positive number: expected something like 8e9, 8B or 350M")
    parsed_count = _parse_whole(number_match.group(1), unit_factor, quantity_text)
    if parsed_count <= 0:
        raise InputError(f"{quantity_text} is not a positive whole number")
    return parsed_count

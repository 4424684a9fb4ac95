"""Checks of settings that are words or numbers of a range. Each returns the value to use, or refuses it."""

from __future__ import annotations

import re

from ..errors import InputError
from ..units import dtype
from ..workload.recompute import recompute_of
from .optimizers.registry import NAMES, optimizer


def check_number_format(option_name: str, value: str) -> str:
    """Returns the full name of a number format. Raises `InputError` for an unknown number format."""
    try:
        return dtype(value)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None


def check_cache_format(option_name: str, value: str) -> str:
    """Returns the name of a cache format unchanged. Raises `InputError` for an unknown cache format."""
    from ..costs.cache_formats import cache_format

    try:
        cache_format(value)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None
    return value


def check_optimizer(option_name: str, value: str) -> str:
    """Returns an optimizer's usual name. Raises `InputError` for a name that is neither a name nor an alias."""
    return value if value in NAMES else optimizer(value, option_name).name


def check_recompute(option_name: str, value: str) -> str:
    """Returns the value of `recompute` unchanged. Raises `InputError` for an invalid value."""
    recompute_of(value)
    return value


def check_capacity(option_name: str, value: str) -> str:
    """Returns the value of `moe` unchanged. Raises `InputError` for an invalid value."""
    from ..workload.expert_capacity import capacity_of

    capacity_of(value)
    return value


def check_fake_quantization(option_name: str, value: str) -> str:
    """Returns the value of `fake_quantize` unchanged. Raises `InputError` for an invalid value."""
    from ..workload.fake_quantization import fake_quantization_of

    fake_quantization_of(value)
    return value


def check_probability(option_name: str, value: float) -> float:
    """Returns a dropout probability. Raises `InputError` unless it is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{option_name} {value:g}: not a probability of dropout; expected a number from 0 to below 1")
    return value


def check_version(option_name: str, value: str) -> str:
    """Returns a version number such as 2.4.1. Raises `InputError` for any other text."""
    if not _VERSION.fullmatch(value):
        raise InputError(f"{option_name} {value}: not a version; expected one such as 2.4.1")
    return value


_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}")

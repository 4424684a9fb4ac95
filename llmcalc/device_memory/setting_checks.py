"""Checks of single settings: each function returns the checked value, or raises `InputError`."""

from __future__ import annotations

import re

from ..errors import InputError
from ..units import dtype
from ..workload.recompute import parse_recompute
from .optimizers.registry import OPTIMIZER_NAMES, optimizer


def check_number_format(option_name: str, format_name: str) -> str:
    """Returns the full name of a number format. Raises `InputError` for an unknown number format."""
    try:
        return dtype(format_name)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None


def check_cache_format(option_name: str, format_name: str) -> str:
    """Returns the name of a cache format unchanged. Raises `InputError` for an unknown cache format."""
    from ..costs.cache_formats import cache_format

    try:
        cache_format(format_name)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None
    return format_name


def check_optimizer(option_name: str, optimizer_name: str) -> str:
    """Returns an optimizer's main name. Raises `InputError` for a text that is neither a name nor an alias."""
    return optimizer_name if optimizer_name in OPTIMIZER_NAMES else optimizer(optimizer_name, option_name).name


def check_recompute(option_name: str, recompute_value: str) -> str:
    """Checks a value of the setting `recompute` and returns it unchanged. Raises `InputError` for an invalid value."""
    parse_recompute(recompute_value)
    return recompute_value


def check_capacity(option_name: str, capacity_text: str) -> str:
    """Checks a value of the setting `moe` and returns it unchanged. Raises `InputError` for an invalid value."""
    from ..workload.expert_capacity import parse_expert_capacity

    parse_expert_capacity(capacity_text)
    return capacity_text


def check_fake_quantization(option_name: str, quantization_name: str) -> str:
    """Checks a value of `fake_quantize` and returns it unchanged. Raises `InputError` for an invalid value."""
    from ..workload.fake_quantization import parse_fake_quantization

    parse_fake_quantization(quantization_name)
    return quantization_name


def check_probability(option_name: str, probability: float) -> float:
    """Returns a dropout probability. Raises `InputError` unless it is at least 0 and below 1."""
    if not 0 <= probability < 1:
        raise InputError(
            f"{option_name} {probability:g}: not a probability of dropout; expected a number from 0 to below 1"
        )
    return probability


def check_version(option_name: str, version_text: str) -> str:
    """Returns a version number such as 2.4.1. Raises `InputError` for any other text."""
    if not _VERSION.fullmatch(version_text):
        raise InputError(f"{option_name} {version_text}: not a version; expected one such as 2.4.1")
    return version_text


_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}")

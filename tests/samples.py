"""Samples of a test's parameters: the ordinary run has every cause of a failure, `pytest -m exhaustive` the rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

from tests.builders import with_other_causes

T = TypeVar("T")


def sampled(values: Mapping[str, T], causes: Callable[[T], Iterable[Hashable]]) -> list[ParameterSet]:
    """Returns the parameters of a test, by their ids; those without a cause of their own are `exhaustive`."""
    sample = set(with_other_causes(values, lambda name: causes(values[name])))
    return [
        pytest.param(value, id=name, marks=() if name in sample else pytest.mark.exhaustive)
        for name, value in values.items()
    ]

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
    return with_rest(values, with_other_causes(values, lambda name: causes(values[name])))


def with_rest(values: Mapping[str, T], sample: Iterable[str]) -> list[ParameterSet]:
    """Returns the parameters of a test, by their ids; those that are not in the sample are `exhaustive`."""
    names = set(sample)
    assert names <= set(values), f"no such parameters: {sorted(names - set(values))}"
    return [
        pytest.param(value, id=name, marks=() if name in names else pytest.mark.exhaustive)
        for name, value in values.items()
    ]


def spread(cases: Iterable[ParameterSet]) -> list[ParameterSet]:
    """Returns the same parameters for a test that takes the elements of each as arguments of their own."""
    return [pytest.param(*case.values[0], id=case.id, marks=case.marks) for case in cases]

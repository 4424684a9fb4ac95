"""Samples of a test's parameters: the ordinary run has every cause of a failure, `pytest -m exhaustive` the rest."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

from tests.builders import with_other_causes

T = TypeVar("T")


def sampled(values: Mapping[str, T], causes: Callable[[T], Iterable[Hashable]]) -> list[ParameterSet]:
    """Returns the parameters of a test, by their ids; those whose causes others have are `exhaustive`."""
    return with_rest(values, with_other_causes(values, lambda name: causes(values[name])))


def with_rest(values: Mapping[str, T], sample: Iterable[str]) -> list[ParameterSet]:
    """Returns the parameters of a test, by their ids; those that are not in the sample are `exhaustive`."""
    names = set(sample)
    assert names <= set(values), f"no such parameters: {sorted(names - set(values))}"
    return [
        pytest.param(value, id=name, marks=() if name in names else pytest.mark.exhaustive)
        for name, value in values.items()
    ]


def in_one_test(test: Any) -> Any:
    """Makes one test of all parameters of a test, or of each test of a class, each of which takes less time than pytest
    needs for a test. A failure names its parameters.
    """
    marks = list(test.pytestmark)
    test.pytestmark = []
    if isinstance(test, type):
        for name in [name for name in vars(test) if name.startswith("test_")]:
            setattr(test, name, _over_all(getattr(test, name), marks))
        return test
    return _over_all(test, marks)


def _over_all(test: Callable[..., None], marks: list[pytest.Mark]) -> Callable[..., None]:
    assert all(mark.name == "parametrize" for mark in marks), test

    def run(*instance: Any) -> None:
        for cases in itertools.product(*(mark.args[1] for mark in marks)):
            arguments: dict[str, Any] = {}
            for mark, case in zip(marks, cases, strict=True):
                names = mark.args[0] if isinstance(mark.args[0], tuple) else (mark.args[0],)
                values = case.values if isinstance(case, ParameterSet) else case if len(names) > 1 else (case,)
                arguments |= dict(zip(names, values, strict=True))
            try:
                test(*instance, **arguments)
            except BaseException as error:
                error.add_note(f"{test.__name__}: {arguments}")
                raise

    def run_of_class(self: Any) -> None:
        run(self)

    merged = run_of_class if "self" in inspect.signature(test).parameters else run
    merged.__name__, merged.__qualname__, merged.__doc__ = test.__name__, test.__qualname__, test.__doc__
    merged.__module__ = test.__module__
    return merged


def spread(cases: Iterable[ParameterSet]) -> list[ParameterSet]:
    """Returns the same parameters for a test that takes the elements of each as arguments of their own."""
    return [pytest.param(*case.values[0], id=case.id, marks=case.marks) for case in cases]

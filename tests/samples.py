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
    needs for a test. A failure names its parameters. Exhaustive parameters are a second test, `rest`.

    Fixtures are those of the one test: all parameters share its `tmp_path`. Parameters may be a function that returns
    them, which is called when the test runs, so in one process of several, and not when it is collected.
    """
    marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    others = [mark for mark in test.pytestmark if mark.name != "parametrize"]
    test.pytestmark = others
    if isinstance(test, type):
        for name in [name for name in vars(test) if name.startswith("test_")]:
            setattr(test, name, _over_all(getattr(test, name), marks))
        return test
    return _over_all(test, marks)


def _over_all(test: Callable[..., None], marks: list[pytest.Mark]) -> Callable[..., None]:
    names_of_marks = [mark.args[0] if isinstance(mark.args[0], tuple) else (mark.args[0],) for mark in marks]
    has_rest = any(callable(mark.args[1]) or any(map(_is_exhaustive, mark.args[1])) for mark in marks)

    def run(*instance: Any, is_rest: bool = False, **fixtures: Any) -> None:
        listed = [mark.args[1]() if callable(mark.args[1]) else mark.args[1] for mark in marks]
        for cases in itertools.product(*listed):
            if any(map(_is_exhaustive, cases)) != is_rest:
                continue
            arguments: dict[str, Any] = {}
            for names, case in zip(names_of_marks, cases, strict=True):
                values = case.values if isinstance(case, ParameterSet) else case if len(names) > 1 else (case,)
                arguments |= dict(zip(names, values, strict=True))
            try:
                test(*instance, **arguments, **fixtures)
            except BaseException as error:
                error.add_note(f"{test.__name__}: {arguments}")
                raise

    parameters = inspect.signature(test).parameters
    own_names = {name for names in names_of_marks for name in names}
    fixtures = [parameter for name, parameter in parameters.items() if name not in own_names]
    rest = [inspect.Parameter("is_rest", inspect.Parameter.KEYWORD_ONLY)] if has_rest else []
    run.__signature__ = inspect.Signature([*fixtures, *rest])  # type: ignore[attr-defined]
    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    run.__module__ = test.__module__
    run.pytestmark = list(getattr(test, "pytestmark", []))  # type: ignore[attr-defined]
    if not has_rest:
        return run
    rest_cases = [pytest.param(False, id="sample"), pytest.param(True, id="rest", marks=pytest.mark.exhaustive)]
    return pytest.mark.parametrize("is_rest", rest_cases)(run)


def _is_exhaustive(case: Any) -> bool:
    return isinstance(case, ParameterSet) and any(mark.name == "exhaustive" for mark in case.marks)


def spread(cases: Iterable[ParameterSet]) -> list[ParameterSet]:
    """Returns the same parameters for a test that takes the elements of each as arguments of their own."""
    return [pytest.param(*case.values[0], id=case.id, marks=case.marks) for case in cases]

"""Tests that are made of others: which parameters they run, and which fixtures they take."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.samples import in_one_test


def test_exhaustive_parameters_are_a_second_test_and_fixtures_are_shared() -> None:
    met: list[tuple[int, str]] = []

    @in_one_test
    @pytest.mark.parametrize("number", lambda: [1, pytest.param(2, marks=pytest.mark.exhaustive), 3])
    def run(number: int, folder: Any) -> None:
        met.append((number, folder))
        assert number < 3

    assert list(inspect.signature(run).parameters) == ["folder", "is_rest"]
    run(folder="a", is_rest=True)
    with pytest.raises(AssertionError) as error:
        run(folder="b", is_rest=False)
    assert met == [(2, "a"), (1, "b"), (3, "b")]
    assert error.value.__notes__ == ["run: {'number': 3}"]

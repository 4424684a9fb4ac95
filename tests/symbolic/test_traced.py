"""Integers that know their formula: every operation gives the value of plain integers and a formula of that value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy

from llmcalc.algebra import ceil_div, exact_div, floor_div, minimum, triangular_number
from llmcalc.simulator.strides import broadcast_shape, clear_caches, numel, view_strides
from llmcalc.symbolic.symbolic_int import SymbolicInt, formula_of
from tests.samples import in_one_test

X, Y = sympy.symbols("x y", positive=True, integer=True)
VALUES = {X: 12, Y: 5}

OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    exact_div,
    floor_div,
    ceil_div,
    minimum,
    lambda a, b: divmod(a, b)[0],
    lambda a, b: divmod(a, b)[1],
    lambda a, b: -a + b,
    lambda a, b: a**2 - b,
    lambda a, b: triangular_number(a) * b,
    max,
    lambda a, b: sum([a, b, a]),
    lambda a, b: numel((a, 1, b)),
]


@in_one_test
@pytest.mark.parametrize("number", range(len(OPERATIONS)))
@pytest.mark.parametrize(("left", "right"), [(12, 5), (5, 12), (12, 4), (1, 1)])
def test_values_and_formulas_agree(number: int, left: int, right: int) -> None:
    operation, values = OPERATIONS[number], {X: left, Y: right}
    traced = SymbolicInt(left, X), SymbolicInt(right, Y)
    for a, b in (traced, (left, traced[1]), (traced[0], right)):
        try:
            expected = operation(left, right)
        except ArithmeticError:
            with pytest.raises(ArithmeticError):
                operation(a, b)
            continue
        made = operation(a, b)
        assert made == expected
        assert sympy.sympify(formula_of(made)).xreplace(values) == expected


def test_a_whole_quotient_has_no_rounding() -> None:
    assert formula_of(SymbolicInt(12, X) // 4) == X / 4
    assert formula_of(SymbolicInt(12, X) // 5) == sympy.floor(X / 5)
    assert formula_of(ceil_div(SymbolicInt(12, X), 4)) == X / 4


def test_it_is_its_value_to_everything_else() -> None:
    x = SymbolicInt(12, X)
    assert x == 12
    assert {12: "found"}[x] == "found"
    assert list(range(x)) == list(range(12))
    assert type(x * 0.5) is float
    assert repr(x) == "x = 12"


def test_shapes_keep_formulas_and_strides_are_forgotten() -> None:
    rows, width = SymbolicInt(1, X), SymbolicInt(5, Y)
    wide = broadcast_shape((rows, 3, width), (3, 1))
    assert [formula_of(size) for size in wide] == [X, 3, Y]
    view_strides((rows, width), (width, 1), (rows * width,))
    clear_caches()
    plain = view_strides((1, 5), (5, 1), (5,))
    assert plain is not None
    assert [type(stride) for stride in plain] == [int]

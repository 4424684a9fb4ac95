"""Arithmetic that takes Python ints, NumPy arrays and SymPy symbols alike.

Closed forms are written once and evaluated three ways, so they may not branch on a size. Where plain `+ - * **` is not
enough (minimum, maximum, division), they call these. NumPy and SymPy are never imported here on behalf of an integer:
an argument that is an array or a symbol has brought its library with it.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""An `int`, a NumPy array of integers, or a SymPy expression."""


def _is_symbolic(*values: Number) -> bool:
    sympy = sys.modules.get("sympy")
    return sympy is not None and any(isinstance(v, sympy.Basic) for v in values)


def _is_array(*values: Number) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and any(isinstance(v, numpy.ndarray) for v in values)


def is_zero(value: Number) -> bool:
    """True for the plain integer 0 alone: a term that can be dropped from a sum without looking at it."""
    return type(value) is int and value == 0


def add(left: Number, right: Number) -> Number:
    """`left + right`, skipping a plain 0 (which would cost a pass over a million-element array)."""
    if is_zero(left):
        return right
    return left if is_zero(right) else left + right


def times(left: Number, right: Number) -> Number:
    """`left * right`, skipping a plain 1."""
    if type(left) is int and left == 1:
        return right
    return left if type(right) is int and right == 1 else left * right


def same(left: Number, right: Number) -> bool:
    """True where the two are known to be equal, for every element of arrays; symbols are equal to themselves alone."""
    if left is right:
        return True
    if _is_array(left, right):
        import numpy

        return numpy.array_equal(left, right)
    return bool(left == right)


def minimum(left: Number, right: Number) -> Number:
    """The smaller of two numbers, element by element for arrays, `Min(left, right)` for symbols."""
    if _is_symbolic(left, right):
        import sympy

        return sympy.Min(left, right)
    if _is_array(left, right):
        import numpy

        return numpy.minimum(left, right)
    return min(left, right)


def exact_div(dividend: Number, divisor: Number) -> Number:
    """`dividend / divisor` where it is known to come out whole.

    Raises `ArithmeticError` for integers that do not divide: a count must never be rounded silently.
    """
    if _is_symbolic(dividend, divisor):
        return dividend / divisor
    if _is_array(dividend, divisor):
        return dividend // divisor
    quotient, rest = divmod(dividend, divisor)
    if rest:
        raise ArithmeticError(f"{divisor} does not divide {dividend}")
    return quotient


def floor_div(dividend: Number, divisor: Number) -> Number:
    """`dividend // divisor`; `floor(dividend / divisor)` for symbols."""
    return dividend // divisor


def ceil_div(dividend: Number, divisor: Number) -> Number:
    """`dividend / divisor` rounded up."""
    return -(-dividend // divisor)


def triangle(n: Number) -> Number:
    """1 + 2 + … + n = n(n + 1)/2: the (query, key) pairs of n causal tokens."""
    return exact_div(n * (n + 1), 2)

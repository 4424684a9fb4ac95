"""Arithmetic that accepts Python integers, NumPy arrays and SymPy expressions.

Closed forms are written once and evaluated on all three types, so they may not branch on a size. Where plain
`+ - * **` is not enough (minimum, maximum, division), they call these functions. NumPy and SymPy are never imported
here for an integer: they are already imported if an argument is an array or an expression.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""An `int`, a NumPy array of integers, or a SymPy expression."""


def _is_symbolic(*numbers: Number) -> bool:
    sympy = sys.modules.get("sympy")
    return sympy is not None and any(isinstance(number, sympy.Basic) for number in numbers)


def _is_array(*numbers: Number) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and any(isinstance(number, numpy.ndarray) for number in numbers)


def is_zero(number: Number) -> bool:
    """Whether a number is the Python integer 0, which `add` leaves out of a sum."""
    return type(number) is int and number == 0


def add(left: Number, right: Number) -> Number:
    """Returns `left + right`; skips the addition if one side is the integer 0, to save a pass over a large array."""
    if type(left) is int and type(right) is int:  # nearly always
        return left + right
    if is_zero(left):
        return right
    return left if is_zero(right) else left + right


def times(left: Number, right: Number) -> Number:
    """Returns `left * right`; skips the multiplication if one side is the integer 1."""
    if type(left) is int and left == 1:
        return right
    return left if type(right) is int and right == 1 else left * right


def are_equal(left: Number, right: Number) -> bool:
    """Whether two values are known to be equal, elementwise for arrays; a symbol equals only itself."""
    if left is right:
        return True
    if _is_array(left, right):
        import numpy

        return numpy.array_equal(left, right)
    return bool(left == right)


def minimum(left: Number, right: Number) -> Number:
    """Returns the smaller of two numbers: elementwise for arrays, `Min(left, right)` for symbols."""
    if _is_symbolic(left, right):
        import sympy

        return sympy.Min(left, right)
    if _is_array(left, right):
        import numpy

        return numpy.minimum(left, right)
    return min(left, right)


def maximum(left: Number, right: Number) -> Number:
    """Returns the larger of two numbers: elementwise for arrays, `Max(left, right)` for symbols."""
    if _is_symbolic(left, right):
        import sympy

        return sympy.Max(left, right)
    if _is_array(left, right):
        import numpy

        return numpy.maximum(left, right)
    return max(left, right)


def choose(condition: Any, if_true: Number, if_false: Number) -> Number:
    """Returns `if_true` where a condition on a size holds and `if_false` elsewhere, elementwise for arrays.

    It does not support symbols.
    """
    if _is_array(condition, if_true, if_false):
        import numpy

        return numpy.where(condition, if_true, if_false)
    return if_true if condition else if_false


def log2(number: Number) -> Number:
    """Returns the base-2 logarithm as a float or an array of floats. Symbols are not supported."""
    if _is_array(number):
        import numpy

        return numpy.log2(number)
    return math.log2(number)


def exact_div(dividend: Number, divisor: Number) -> Number:
    """Returns `dividend / divisor`, which must be an integer if both are integers.

    Floats, such as the mean rows of a server's passes, are divided as they are. Raises `ArithmeticError` for integers
    that do not divide: a count is never rounded silently.
    """
    if _is_symbolic(dividend, divisor) or isinstance(dividend, float) or isinstance(divisor, float):
        return dividend / divisor
    if _is_array(dividend, divisor):
        return dividend // divisor
    quotient, remainder = divmod(dividend, divisor)
    if remainder:
        raise ArithmeticError(f"{divisor} does not divide {dividend}")
    return quotient


def floor_div(dividend: Number, divisor: Number) -> Number:
    """Returns `dividend // divisor`, which is `floor(dividend / divisor)` for symbols."""
    return dividend // divisor


def ceil_div(dividend: Number, divisor: Number) -> Number:
    """Returns `dividend / divisor` rounded up."""
    return -(-dividend // divisor)


def round_up(number: Number, multiple: int) -> Number:
    """Rounds a number up to a multiple."""
    return ceil_div(number, multiple) * multiple


def triangular_number(side_length: Number) -> Number:
    """Returns 1 + 2 + … + n = n(n + 1)/2, the number of (query, key) pairs of n causal tokens."""
    return exact_div(side_length * (side_length + 1), 2)

"""An integer that remembers the formula by which it was computed.

Kernels compare sizes (whether a reshape copies, how many chunks there are), which a symbol alone cannot do. A symbolic
integer takes the branch of its value, and its formula holds wherever the same branches are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SymbolicInt(int):
    """An integer that remembers the formula by which it was computed.

    formula: a SymPy expression, whose value is the integer.

    It equals every integer of that value.
    """

    formula: Any

    def __new__(cls, number: int, formula: Any) -> SymbolicInt:
        symbolic_int = super().__new__(cls, number)
        symbolic_int.formula = formula
        return symbolic_int

    def __repr__(self) -> str:
        return f"{self.formula} = {int(self)}"

    def __add__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a + b, self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a + b, other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a - b, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a - b, other, self)

    def __mul__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a * b, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply_operation(lambda a, b: a * b, other, self)

    def __neg__(self) -> SymbolicInt:
        return SymbolicInt(-int(self), -self.formula)

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        return _apply_operation(lambda a, b: a**b, self, other)

    def __floordiv__(self, other: Any) -> Any:
        return _floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return self - _floor_divide(self, other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - _floor_divide(other, self) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def formula_of(number: int) -> Any:
    """Returns the formula of an integer; the integer itself if it has no formula."""
    return number.formula if isinstance(number, SymbolicInt) else number


def _apply_operation(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if not (isinstance(left, int) and isinstance(right, int)):
        return NotImplemented
    return SymbolicInt(operation(int(left), int(right)), operation(formula_of(left), formula_of(right)))


def _floor_divide(dividend: Any, divisor: Any) -> Any:
    """Computes left // right: the quotient if it is an integer, else its floor."""
    if not (isinstance(dividend, int) and isinstance(divisor, int)):
        return NotImplemented
    quotient_floor, remainder = divmod(int(dividend), int(divisor))
    quotient = formula_of(dividend) / formula_of(divisor)
    if remainder:
        import sympy

        quotient = sympy.floor(quotient)
    return SymbolicInt(quotient_floor, quotient)

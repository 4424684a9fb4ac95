"""Arithmetic that accepts Python integers, NumPy arrays, SymPy expressions and traced sizes.

Closed forms are written once and evaluated on all three types, so they may not branch on a size. Where plain
`+ - * **` is not enough (minimum, maximum, division), they call these functions. NumPy and SymPy are never imported
here for an integer: they are already imported if an argument is an array or an expression.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""An `int`, a NumPy array of integers, a SymPy expression, or a `TracedSize`."""

BinaryFunction: TypeAlias = Callable[[Any, Any], Any]


class SizeTrace:
    """Arithmetic on sizes, which is recorded once and repeated for other sizes.

    The numbers are in slots: sizes, constants and results. The results of other sizes are those of the same code if
    each of them is zero, or true, where the recorded one is: what the code does depends on nothing else.
    """

    def __init__(self) -> None:
        self._slots: list[Number] = []
        self._slot_of_constant: dict[tuple[type, Number], int] = {}
        self._slot_of_result: dict[tuple[BinaryFunction, int, int], int] = {}
        self._is_not_zero: dict[int, bool] = {}

    def size(self, number: Number) -> TracedSize:
        """Returns a size with this number in the recorded run. number: not zero."""
        self._slots.append(number)
        return TracedSize(self, len(self._slots) - 1, number)

    def result(self, function: BinaryFunction, left: Number, right: Number) -> Number:
        """Returns the traced result of a function of two numbers; a plain one where it is zero, or of a comparison."""
        slot_key = function, self._slot(left), self._slot(right)
        slot = self._slot_of_result.get(slot_key)
        if slot is None:
            slot = self._slot_of_result[slot_key] = len(self._slots)
            self._slots.append(function(self._slots[slot_key[1]], self._slots[slot_key[2]]))
            self._is_not_zero[slot] = bool(self._slots[slot])
        number = self._slots[slot]
        return TracedSize(self, slot, number) if number and type(number) is not bool else number

    def _slot(self, number: Number) -> int:
        """Returns the slot of a traced size or of a constant."""
        if type(number) is TracedSize:
            return number.slot
        constant_key = type(number), number
        if constant_key not in self._slot_of_constant:
            self._slot_of_constant[constant_key] = len(self._slots)
            self._slots.append(number)
        return self._slot_of_constant[constant_key]

    def numbers(self, numbers_by_slot: Mapping[int, Number]) -> list[Number] | None:
        """Returns the numbers of all slots for other sizes; None where the code would do something else.

        numbers_by_slot: slot of each size → its number.
        """
        slots = self._slots.copy()
        for slot, number in numbers_by_slot.items():
            slots[slot] = number
        try:
            for (function, left_slot, right_slot), slot in self._slot_of_result.items():
                slots[slot] = function(slots[left_slot], slots[right_slot])
        except ArithmeticError:
            return None
        is_repeated = all(
            bool(slots[slot]) if is_not_zero else type(slots[slot]) is type(self._slots[slot]) and not slots[slot]
            for slot, is_not_zero in self._is_not_zero.items()
        )
        return slots if is_repeated else None


def _traced(function: BinaryFunction, is_reflected: bool = False) -> Callable[[TracedSize, Number], Number]:
    """Returns the method of an operator. is_reflected: whether the traced size is its right side; default false."""
    if is_reflected:
        return lambda size, other: size.trace.result(function, other, size)
    return lambda size, other: size.trace.result(function, size, other)


class TracedSize:
    """A number of a pass whose arithmetic a `SizeTrace` records. number: its value in the recorded run, not zero."""

    __slots__ = ("number", "slot", "trace")

    def __init__(self, trace: SizeTrace, slot: int, number: Number) -> None:
        self.trace: SizeTrace = trace
        self.slot: int = slot
        self.number: Number = number

    __add__, __radd__ = _traced(operator.add), _traced(operator.add, True)
    __sub__, __rsub__ = _traced(operator.sub), _traced(operator.sub, True)
    __mul__, __rmul__ = _traced(operator.mul), _traced(operator.mul, True)
    __truediv__, __rtruediv__ = _traced(operator.truediv), _traced(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _traced(operator.floordiv), _traced(operator.floordiv, True)
    __mod__, __rmod__ = _traced(operator.mod), _traced(operator.mod, True)
    __pow__, __rpow__ = _traced(operator.pow), _traced(operator.pow, True)
    __lt__, __le__, __gt__, __ge__ = map(_traced, (operator.lt, operator.le, operator.gt, operator.ge))
    __eq__, __ne__ = _traced(operator.eq), _traced(operator.ne)
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Number:
        return 0 - self


def traced_numbers(values: Iterable[Any], numbers: list[Number]) -> list[Any]:
    """Returns values in which each traced size, also in a tuple, is its number. numbers: of all slots of the trace."""
    return [
        numbers[value.slot]
        if type(value) is TracedSize
        else tuple(traced_numbers(value, numbers))
        if type(value) is tuple
        else value
        for value in values
    ]


def with_traced_sizes(function: BinaryFunction) -> BinaryFunction:
    """Returns a function of two numbers that is one step of a trace where one of them is traced."""

    @wraps(function)
    def traced_function(left: Number, right: Number) -> Number:
        traced_size = left if type(left) is TracedSize else right
        if type(traced_size) is TracedSize:
            return traced_size.trace.result(function, left, right)
        return function(left, right)

    return traced_function


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


@with_traced_sizes
def minimum(left: Number, right: Number) -> Number:
    """Returns the smaller of two numbers: elementwise for arrays, `Min(left, right)` for symbols."""
    if type(left) is int and type(right) is int:
        return min(left, right)
    if _is_symbolic(left, right):
        import sympy

        return sympy.Min(left, right)
    if _is_array(left, right):
        import numpy

        return numpy.minimum(left, right)
    return min(left, right)


@with_traced_sizes
def maximum(left: Number, right: Number) -> Number:
    """Returns the larger of two numbers: elementwise for arrays, `Max(left, right)` for symbols."""
    if type(left) is int and type(right) is int:
        return max(left, right)
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


@with_traced_sizes
def exact_div(dividend: Number, divisor: Number) -> Number:
    """Returns `dividend / divisor`, which must be an integer if both are integers.

    Floats, such as the mean rows of a server's passes, are divided as they are. Raises `ArithmeticError` for integers
    that do not divide: a count is never rounded silently.
    """
    if type(dividend) is not int or type(divisor) is not int:
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

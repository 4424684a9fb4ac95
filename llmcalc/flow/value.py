"""What flows: values with rows and named axes, and weights that exist once however often they are used."""

from __future__ import annotations

from ..algebra import Number
from ..run.rows import Rows
from .axis import Axis, Beside, Shape, extent


class Value:
    """A tensor of [rows, *axes]. Its identity is that of its storage: two steps that read one value read one thing.

    rows: which vectors it has. axes: what each of them is made of.
    of: the value whose storage this one looks at, where it is a view.
    fixed: it is not computed from any parameter, so that no gradient goes on from it.
    cache: the cache that it was read from, with what earlier passes left there; empty where it was not.
    once: of keys and values that are repeated for each query head, the value with heads of its own.
    """

    __slots__ = ("_width", "axes", "cache", "fixed", "of", "once", "rows")

    def __init__(self, rows: Rows, axes: Shape, of: Value | None = None, fixed: bool = False, cache: str = "") -> None:
        self.rows, self.axes, self.of, self.fixed, self.cache = rows, axes, of, fixed, cache
        self.once: Value | None = None
        self._width: Number = None

    @property
    def width(self) -> Number:
        """Elements of one row; multiplied once."""
        if self._width is None:
            self._width = extent(self.axes)
        return self._width

    def seen(self, *axes: Axis | Beside, rows: Rows | None = None) -> Value:
        """The same storage under other axes."""
        return Value(self.rows if rows is None else rows, axes, self, self.fixed, self.cache)

    @property
    def storage(self) -> Value:
        """The value that holds the elements."""
        return self if self.of is None else self.of.storage


class Weight:
    """A trained tensor. A second step that takes it has it tied: it is counted where it was made.

    out, ins: the axes of what it gives and of what it reads. made: whether a step has taken it. tied: whether a second
    one has.
    """

    __slots__ = ("ins", "made", "name", "out", "tied")

    def __init__(self, name: str, out: Shape, ins: Shape) -> None:
        self.name, self.out, self.ins, self.made, self.tied = name, out, ins, False, False

"""The values of a compute graph: symbolic tensors with rows and named axes, and weights, which count once if tied."""

from __future__ import annotations

from ..algebra import Number
from ..workload.rows import Rows
from .axis import Axis, JoinedShapes, Shape, element_count


class Value:
    """A symbolic tensor of shape [rows, *axes]; operations that read the same object read the same storage.

    rows: its rows.
    axes: the axes of one row.
    view_source: the value that it is a view of; None if it is not a view.
    is_constant: whether it is computed from no parameter, so that no gradient flows through it.
    cache_name: the name of the cache that it was read from, together with rows of earlier passes; empty if it was not.
    storage: the value that owns the storage, of which this value may be a view.
    unrepeated_value: for keys and values that are repeated for each query head, the value before repeating.
    """

    __slots__ = ("_width", "axes", "cache_name", "is_constant", "rows", "storage", "unrepeated_value", "view_source")

    def __init__(
        self, rows: Rows, axes: Shape, view_source: Value | None = None, is_constant: bool = False, cache_name: str = ""
    ) -> None:
        self.rows: Rows = rows
        self.axes: Shape = axes
        self.view_source: Value | None = view_source
        self.storage: Value = self if view_source is None else view_source.storage
        self.is_constant: bool = is_constant
        self.cache_name: str = cache_name
        self.unrepeated_value: Value | None = None
        self._width: Number = None

    @property
    def width(self) -> Number:
        """The number of elements per row."""
        if self._width is None:
            self._width = element_count(self.axes)
        return self._width

    def view(self, *axes: Axis | JoinedShapes, new_rows: Rows | None = None) -> Value:
        """Returns a view of the same storage with other axes, and optionally other rows."""
        return Value(self.rows if new_rows is None else new_rows, axes, self, self.is_constant, self.cache_name)


class Weight:
    """A trained tensor, which is counted at the first operation that uses it; later operations are tied to it.

    output_axes, input_axes: the axes of its output and of its input.
    is_counted: whether a step uses it, and counts it. is_tied: whether a second step uses it.
    """

    __slots__ = ("input_axes", "is_counted", "is_tied", "name", "output_axes")

    def __init__(self, weight_name: str, output_axes: Shape, input_axes: Shape) -> None:
        self.name: str = weight_name
        self.output_axes: Shape = output_axes
        self.input_axes: Shape = input_axes
        self.is_counted: bool = False
        self.is_tied: bool = False

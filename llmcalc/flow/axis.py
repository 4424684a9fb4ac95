"""Named axes, which give every dimension of a tensor's shape a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..algebra import Number
from ..frozen import frozen


@frozen(slots=True)
class Axis:
    """A named dimension of a tensor, with its length.

    name: what the axis counts (`heads`, `ffn`, `experts`).
    size: its length.
    """

    name: str
    size: Number


@frozen(slots=True)
class JoinedShapes:
    """Several shapes whose elements are concatenated into one axis, such as the output of a fused QKV projection.

    shapes: the shapes.
    name: the name of the axis.
    """

    shapes: tuple[Shape, ...]
    name: str = "beside"

    @property
    def size(self) -> Number:
        first_count, *later_counts = (element_count(shape) for shape in self.shapes)
        return sum(later_counts, first_count)


Shape: TypeAlias = tuple["Axis | JoinedShapes", ...]


def element_count(shape: Iterable[Axis | JoinedShapes]) -> Number:
    """Returns the number of elements of a shape; 1 for an empty shape."""
    size_product: Number = None
    for axis in shape:
        size_product = axis.size if size_product is None else size_product * axis.size
    return 1 if size_product is None else size_product

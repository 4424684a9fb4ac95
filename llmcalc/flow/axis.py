"""Named axes: what a value is made of, and how long each of its sides is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ..algebra import Number


@dataclass(frozen=True, slots=True)
class Axis:
    """A named extent. The name says what may divide it (`heads`, `ffn`, `experts`), the size how long it is."""

    name: str
    size: Number


@dataclass(frozen=True, slots=True)
class Beside:
    """Several shapes side by side along one axis of one tensor, as fused projections hold them."""

    parts: tuple[Shape, ...]
    name: str = "beside"

    @property
    def size(self) -> Number:
        first, *others = (extent(part) for part in self.parts)
        return sum(others, first)


Shape: TypeAlias = tuple["Axis | Beside", ...]


def extent(shape: Iterable[Axis | Beside]) -> Number:
    """Elements of a shape; 1 of an empty one."""
    n: Number = None
    for axis in shape:
        n = axis.size if n is None else n * axis.size
    return 1 if n is None else n

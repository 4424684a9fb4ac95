"""Explanations of a difference between two parameter counts: the sizes of the spec, or small multiples or products of
sizes, that equal it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import TypeAlias

from ..components.base import Part
from ..model import ModelSpec
from ..symbolic.symbolic import letter_of

Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""(field, value) pairs, without duplicates."""

COUNTED = frozenset({"parameters", "buffers"})
"""The quantities that are counted in elements."""

LEAST, MOST_MULTIPLE, MOST_NAMES = 16, 4, 3
"""The smallest size that is used in explanations, because too many numbers are multiples or products of smaller ones;
the largest multiple; the largest number of explanations, beyond which none is given.
"""


def sizes_of(spec: ModelSpec) -> Sizes:
    """Every size in the spec of the text model, in any of its parts."""
    return tuple(dict.fromkeys(_sizes(spec)))


def _sizes(part: Part) -> Iterator[tuple[str, int]]:
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, int) and value > 1 and letter_of(field) is not None:
            yield name, value
        inner = value.values() if isinstance(value, dict) and name != "towers" else (value,)
        for below in inner:
            if isinstance(below, Part):
                yield from _sizes(below)


def named(difference: int, sizes: Sizes) -> str:
    """The explanation: `= num_experts`, `= 2 × hidden_size`, `= vocab_size × hidden_size`; empty if no size fits, or
    too many do.
    """
    size = abs(difference)
    equal = [name for name, value in sizes if value == size]
    large = [(name, value) for name, value in sizes if value >= LEAST]
    multiples = [f"{k} × {name}" for name, value in large for k in range(2, MOST_MULTIPLE + 1) if k * value == size]
    products = [f"{a} × {b}" for (a, m), (b, n) in combinations_with_replacement(large, 2) if m * n == size]
    fitting = list(dict.fromkeys(equal or multiples or products))
    if not fitting or len(fitting) > MOST_NAMES:
        return ""
    return f"= {' or '.join(fitting)}"

"""Bars of characters, beside the numbers that they show: a share of a whole, and a course over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LENGTHS = (40, 30, 20, 12)
"""Characters of a bar of the whole, the longest first: a table takes the first one that its width has room for."""

WIDTH = 20
"""Characters of a bar of the whole where no width is known, and of a course."""

LEVELS = "▁▂▃▄▅▆▇█"


class Bar(NamedTuple):
    """A share of a whole, of at most 1. colour: on a terminal, as `#rrggbb`. length: characters of the whole."""

    part: float
    colour: str = ""
    length: int = WIDTH


def share(bar: Bar) -> str:
    """The bar as text; what is more than nothing has at least a line."""
    return "█" * round(bar.part * bar.length) or ("▏" if bar.part > 0 else "")


def course(values: Sequence[int], most: int, width: int = WIDTH) -> str:
    """How a value goes on, from left to right, by the highest of every stretch. most: what the top level stands for."""
    if not values:
        return ""
    count = min(width, len(values))
    stretches = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    return "".join(LEVELS[min(len(LEVELS) - 1, max(stretch) * len(LEVELS) // max(1, most))] for stretch in stretches)

"""Bars of characters, beside the numbers that they show: a share of a whole, and a course over time."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 20
"""Characters of a bar of the whole, and of a course."""

LEVELS = "▁▂▃▄▅▆▇█"


def share(part: float) -> str:
    """A bar for a share of at most 1; what is more than nothing has at least a line."""
    return "█" * round(part * WIDTH) or ("▏" if part > 0 else "")


def course(values: Sequence[int], most: int, width: int = WIDTH) -> str:
    """How a value goes on, from left to right, by the highest of every stretch. most: what the top level stands for."""
    if not values:
        return ""
    count = min(width, len(values))
    stretches = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    return "".join(LEVELS[min(len(LEVELS) - 1, max(stretch) * len(LEVELS) // max(1, most))] for stretch in stretches)

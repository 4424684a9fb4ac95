"""Text bars in table cells: for a fraction of a total, and for a value over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BAR_LENGTHS = (40, 30, 20, 12)
"""Possible lengths of a full bar, in characters, longest first; a table uses the first that fits its width."""

DEFAULT_BAR_LENGTH = 20
"""Default length of a full bar, in characters, and of a course over time."""

BAR_LEVELS = "▁▂▃▄▅▆▇█"


class TextBar(NamedTuple):
    """A text bar in a table cell. Its length shows the fraction of a total.

    fraction: the share that it shows, at most 1.
    colour: its colour on a terminal, as `#rrggbb`; default none.
    length: characters of a full bar.
    """

    fraction: float
    colour: str = ""
    length: int = DEFAULT_BAR_LENGTH


def share_bar(text_bar: TextBar) -> str:
    """Returns a text bar for a fraction of a total. A fraction above 0 is drawn at least as a thin line."""
    return "█" * round(text_bar.fraction * text_bar.length) or ("▏" if text_bar.fraction > 0 else "")


def timeline_bar(byte_counts: Sequence[int], full_scale: int) -> str:
    """Returns a text bar of a value over time: each character shows the maximum of a range of points.

    full_scale: the value of the highest level.
    """
    if not byte_counts:
        return ""
    bar_length = min(DEFAULT_BAR_LENGTH, len(byte_counts))
    count_ranges = [
        byte_counts[len(byte_counts) * point_index // bar_length : len(byte_counts) * (point_index + 1) // bar_length]
        for point_index in range(bar_length)
    ]
    return "".join(
        BAR_LEVELS[min(len(BAR_LEVELS) - 1, max(count_range) * len(BAR_LEVELS) // max(1, full_scale))]
        for count_range in count_ranges
    )

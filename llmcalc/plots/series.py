"""Colours and line styles of curves, which differ for all curves of a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..reports.palette import CURVE_COLOURS

LINE_STYLES: tuple[Any, ...] = ("-", (0, (7, 2)), (0, (7, 2, 1.5, 2)))
"""Line styles of the first eight curves, the next eight, and the last eight; dotted lines have another meaning."""

COLOUR_SHADES = (1.0, 0.62, 0.35)
"""For each line style the fraction of a curve's colour; the rest is black."""


class CurveStyle(NamedTuple):
    """The style of a curve. colour: as `#rrggbb`. line_style: matplotlib's line style."""

    colour: str
    line_style: Any


def curve_style(curve_index: int) -> CurveStyle:
    """Returns the style of curve number `curve_index`, counted from 0. The styles repeat after 24 curves."""
    line_index = curve_index // len(CURVE_COLOURS) % len(LINE_STYLES)
    colour = CURVE_COLOURS[curve_index % len(CURVE_COLOURS)]
    channels = [
        round(int(colour[digit_start : digit_start + 2], 16) * COLOUR_SHADES[line_index]) for digit_start in (1, 3, 5)
    ]
    return CurveStyle("#" + "".join(f"{colour_channel:02x}" for colour_channel in channels), LINE_STYLES[line_index])

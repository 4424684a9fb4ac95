"""Labels in pictures: escaped text, and places of points' names without overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..characters import printable
from ..reports.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

GAP = 6
"""Points (1/72 inch) between a point and its name."""


def label(name: str) -> str:
    r"""Escapes a name for matplotlib: on one line, with `\$` for `$`, since `$…$` is a formula.

    A name that begins with `_` gets a space before it: matplotlib leaves it out of legends otherwise.
    """
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether two boxes overlap."""
        separate = self.right <= other.left or other.right <= self.left
        return not separate and self.bottom < other.top and other.bottom < self.top


def place_names(
    ax: Axes, at: Sequence[tuple[float, float]], names: Sequence[str], others: Sequence[tuple[float, float]] = ()
) -> list[Annotation]:
    """Writes names beside points, in their order; a name without room is left out.

    at: the points, in data coordinates.
    others: other points that no name may cover; default none.
    The figure's layout must not change afterwards.
    """
    taken: list[Box] = []
    frame = ax.get_window_extent()
    dots = [ax.transData.transform(point) for point in (*at, *others)]
    written: list[Annotation] = []
    for point, name in zip(at, names, strict=True):
        text = ax.annotate(
            label(name),
            point,
            xytext=(GAP, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=7.5,
            color=INK,
        )
        own_point = ax.transData.transform(point)
        for place in ((GAP, 0, "left"), (-GAP, 0, "right"), (0, 2 * GAP, "center"), (0, -2 * GAP, "center")):
            text.set_position(place[:2])
            text.set_horizontalalignment(place[2])
            extent = text.get_window_extent()
            box = Box(extent.x0 - 1, extent.y0 - 1, extent.x1 + 1, extent.y1 + 1)
            inside = frame.x0 <= box.left and box.right <= frame.x1 and frame.y0 <= box.bottom and box.top <= frame.y1
            covers = any(
                box.left < x < box.right and box.bottom < y < box.top for x, y in dots if (x, y) != tuple(own_point)
            )
            if inside and not covers and not any(box.meets(placed) for placed in taken):
                taken.append(box)
                written.append(text)
                break
        else:
            text.remove()
    return written

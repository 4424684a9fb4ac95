"""Names in pictures: as text alone, and where those of points stand, so that none lies over another name or point."""

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
    r"""A name as matplotlib draws it: on one line, and `$` as it is (`\$`), since `$…$` is a formula to matplotlib.

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
        """Whether the two have a point in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not beside and self.bottom < other.top and other.bottom < self.top


def named(
    ax: Axes, at: Sequence[tuple[float, float]], names: Sequence[str], others: Sequence[tuple[float, float]] = ()
) -> list[Annotation]:
    """Writes names beside points, the first ones first; a name for which there is no room is left out.

    at: the points, in data coordinates. others: further points that no name may cover. The figure has to be laid out:
    it may not change afterwards.
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
        own = ax.transData.transform(point)
        for place in ((GAP, 0, "left"), (-GAP, 0, "right"), (0, 2 * GAP, "center"), (0, -2 * GAP, "center")):
            text.set_position(place[:2])
            text.set_horizontalalignment(place[2])
            extent = text.get_window_extent()
            box = Box(extent.x0 - 1, extent.y0 - 1, extent.x1 + 1, extent.y1 + 1)
            inside = frame.x0 <= box.left and box.right <= frame.x1 and frame.y0 <= box.bottom and box.top <= frame.y1
            covers = any(box.left < x < box.right and box.bottom < y < box.top for x, y in dots if (x, y) != tuple(own))
            if inside and not covers and not any(box.meets(one) for one in taken):
                taken.append(box)
                written.append(text)
                break
        else:
            text.remove()
    return written

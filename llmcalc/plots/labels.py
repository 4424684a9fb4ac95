"""Labels in pictures: escaped text, and places of points' names without overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..characters import printable
from ..reports.palette import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

GAP = 6
"""Points (1/72 inch) between a point and its name."""

PLACES = ((GAP, 0, "left"), (-GAP, 0, "right"), (0, 2 * GAP, "center"), (0, -2 * GAP, "center"))
"""Places of a name: offset from its point in points (1/72 inch), and the name's alignment."""

FAR_PLACES = ((0, 4 * GAP, "center"), (0, -4 * GAP, "center"), (3 * GAP, -3 * GAP, "left"), (3 * GAP, 3 * GAP, "left"))
"""Places farther away, for pictures of few points."""


def label(name: str) -> str:
    r"""Escapes a name for matplotlib: on one line, with `\$` for `$`, since `$…$` is a formula.

    A name that begins with `_` gets a space before it: matplotlib leaves it out of legends otherwise.
    """
    escaped_name = printable(name).replace("$", r"\$")
    return f" {escaped_name}" if escaped_name.startswith("_") else escaped_name


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other_box: Box) -> bool:
        """Whether two boxes overlap."""
        separate = self.right <= other_box.left or other_box.right <= self.left
        return not separate and self.bottom < other_box.top and other_box.bottom < self.top


def place_names(
    ax: Axes,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    other_points: Sequence[tuple[float, float]] = (),
    places: Sequence[tuple[float, float, Any]] = PLACES,
) -> list[Annotation]:
    """Writes names beside points, in their order; a name without room is left out.

    points: the points, in data coordinates.
    other_points: other points that no name may cover; default none.
    places: places of a name, the preferred one first.
    The figure's layout must not change afterwards.
    """
    placed_boxes: list[Box] = []
    frame = ax.get_window_extent()
    dots = [ax.transData.transform(point) for point in (*points, *other_points)]
    annotations: list[Annotation] = []
    for point, name in zip(points, names, strict=True):
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
        for right, up, alignment in places:
            text.set_position((right, up))
            text.set_horizontalalignment(alignment)
            extent = text.get_window_extent()
            box = Box(extent.x0 - 1, extent.y0 - 1, extent.x1 + 1, extent.y1 + 1)
            is_inside = (
                frame.x0 <= box.left and box.right <= frame.x1 and frame.y0 <= box.bottom and box.top <= frame.y1
            )
            covers = any(
                box.left < x < box.right and box.bottom < y < box.top for x, y in dots if (x, y) != tuple(own_point)
            )
            if is_inside and not covers and not any(box.overlaps(text_box) for text_box in placed_boxes):
                if (right, up, alignment) not in PLACES:
                    line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
                    ax.annotate("", point, xytext=(right, up), textcoords="offset points", arrowprops=line, zorder=1)
                placed_boxes.append(box)
                annotations.append(text)
                break
        else:
            text.remove()
    return annotations

"""Labels in pictures: escaped text, units of axes, and places of names without overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..characters import printable
from ..reports.palette import TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

LABEL_GAP_POINTS = 6
"""Points (1/72 inch) between a point and its name."""

FRAME_GAP_PIXELS = 3
"""Least number of pixels between a name and the frame of the axes."""

LABEL_MARGIN_SHARE = 0.03
"""Fraction of a name's width that stays free on either side, because other resolutions write names a little wider."""

LABEL_PLACES = (
    (LABEL_GAP_POINTS, 0, "left"),
    (-LABEL_GAP_POINTS, 0, "right"),
    (0, 2 * LABEL_GAP_POINTS, "center"),
    (0, -2 * LABEL_GAP_POINTS, "center"),
)
"""Possible places of a name: offset (x, y) from its data point in points (1/72 inch), and the name's alignment."""

FAR_LABEL_PLACES: tuple[tuple[float, float, Any], ...] = (
    (0, 4 * LABEL_GAP_POINTS, "center"),
    (0, -4 * LABEL_GAP_POINTS, "center"),
    (3 * LABEL_GAP_POINTS, -3 * LABEL_GAP_POINTS, "left"),
    (3 * LABEL_GAP_POINTS, 3 * LABEL_GAP_POINTS, "left"),
)
"""Possible places of a name farther from its data point, for pictures with few points."""


def escape_label(label_text: str) -> str:
    r"""Escapes a name for matplotlib, on one line: `\$` instead of `$`, because `$…$` is a formula.

    A name that begins with `_` gets a space before it: matplotlib leaves it out of legends otherwise.
    """
    escaped_name = printable(label_text).replace("$", r"\$")
    return f" {escaped_name}" if escaped_name.startswith("_") else escaped_name


RING_LABEL_PLACES: tuple[tuple[float, float, Any], ...] = tuple(
    (across * radius * LABEL_GAP_POINTS, up * radius * LABEL_GAP_POINTS, {1: "left", 0: "center", -1: "right"}[across])
    for radius in (3, 5, 8, 12)
    for across, up in ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
)
"""Possible places around a data point at growing distances, for names that must be written."""


def axis_tick_text(tick_value: float, write_value: Callable[[Any], str]) -> str:
    """Returns an axis value as text, in the unit of its magnitude and without final zeros: `64 GiB`, `1.5 TiB`."""
    number_text, _, unit_text = write_value(tick_value).partition(" ")
    return f"{number_text.rstrip('0').rstrip('.') if '.' in number_text else number_text} {unit_text}".strip()


def spread_labels(wanted_heights: Sequence[float], least_distance: float) -> list[float]:
    """Returns label heights as near to `wanted_heights` as possible (least squares), `least_distance` apart or more.

    The lowest label is at least at 0, and the highest at most at 1, as far as all labels fit between them.
    """
    sorted_indices = sorted(range(len(wanted_heights)), key=wanted_heights.__getitem__)
    label_blocks: list[tuple[float, int]] = []  # labels that touch: (mean height without their distances, how many)
    for sorted_index, point_index in enumerate(sorted_indices):
        mean_height, label_count = wanted_heights[point_index] - sorted_index * least_distance, 1
        while label_blocks and label_blocks[-1][0] >= mean_height:
            lower_height, lower_count = label_blocks.pop()
            mean_height, label_count = (
                (mean_height * label_count + lower_height * lower_count) / (label_count + lower_count),
                label_count + lower_count,
            )
        label_blocks.append((mean_height, label_count))
    mean_heights = [mean_height for mean_height, label_count in label_blocks for _ in range(label_count)]
    highest_start = max(1 - (len(sorted_indices) - 1) * least_distance, 0.0)
    label_heights = [0.0] * len(sorted_indices)
    for sorted_index, (point_index, mean_height) in enumerate(zip(sorted_indices, mean_heights, strict=True)):
        label_heights[point_index] = min(max(mean_height, 0.0), highest_start) + sorted_index * least_distance
    return label_heights


LINE_SAMPLES = [index / 20 for index in range(21)]
"""Fractions of the line from a data point to its name that no other name may cover."""


class LabelBox(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other_box: LabelBox) -> bool:
        """Whether two boxes overlap."""
        has_horizontal_gap = self.right <= other_box.left or other_box.right <= self.left
        return not has_horizontal_gap and self.bottom < other_box.top and other_box.bottom < self.top

    def contains(self, x: float, y: float) -> bool:
        """Whether a point lies inside the box."""
        return self.left < x < self.right and self.bottom < y < self.top


def _shift_from_edge(centre_shift: float, radius: float) -> float:
    """Converts a shift from a point's centre to a shift from the point's edge."""
    return centre_shift + math.copysign(radius, centre_shift) if centre_shift else 0


def label_points(
    ax: Axes,
    data_points: Sequence[tuple[float, float]],
    point_names: Sequence[str],
    other_points: Sequence[tuple[float, float]] = (),
    label_places: Sequence[tuple[float, float, Any]] = LABEL_PLACES,
    radius_or_radii: float | Sequence[float] = 0,
) -> list[Annotation]:
    """Draws names beside data points, in order, and omits a name that would overlap others at every place.

    data_points: the points, in data coordinates.
    other_points: other points that no name may cover; default none.
    label_places: places of a name, the preferred one first. A line leads to the point from places that are not in
        `LABEL_PLACES`.
    radius_or_radii: of the drawn points, which no name may touch, in points (1/72 inch); default 0. A list has the
        radius of each point, and names keep their distance from its edge.
    The figure's layout must not change afterwards.
    """
    label_boxes: list[LabelBox] = []
    axes_box = ax.get_window_extent()
    point_radii = [0.0] * len(data_points) if isinstance(radius_or_radii, (int, float)) else list(radius_or_radii)
    pixels_per_point = ax.figure.dpi / 72
    common_radius = radius_or_radii if isinstance(radius_or_radii, (int, float)) else 0
    point_circles = [
        (*ax.transData.transform(data_point), max(point_radius, common_radius) * pixels_per_point)
        for data_point, point_radius in (
            *zip(data_points, point_radii, strict=True),
            *((data_point, 0.0) for data_point in other_points),
        )
    ]
    annotations: list[Annotation] = []
    for data_point, point_name, point_radius in zip(data_points, point_names, point_radii, strict=True):
        annotation = ax.annotate(
            escape_label(point_name),
            data_point,
            xytext=(LABEL_GAP_POINTS, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=7.5,
            color=TEXT_COLOUR,
        )
        point_in_pixels = ax.transData.transform(data_point)
        for shift_right, shift_up, alignment in label_places:
            text_position = _shift_from_edge(shift_right, point_radius), _shift_from_edge(shift_up, point_radius)
            annotation.set_position(text_position)
            annotation.set_horizontalalignment(alignment)
            text_extent = annotation.get_window_extent()
            side_margin = 1 + LABEL_MARGIN_SHARE * text_extent.width
            padded_name_box = LabelBox(
                text_extent.x0 - side_margin, text_extent.y0 - 1, text_extent.x1 + side_margin, text_extent.y1 + 1
            )
            is_inside_axes = (
                axes_box.x0 + FRAME_GAP_PIXELS <= padded_name_box.left
                and padded_name_box.right <= axes_box.x1 - FRAME_GAP_PIXELS
                and axes_box.y0 + FRAME_GAP_PIXELS <= padded_name_box.bottom
                and padded_name_box.top <= axes_box.y1 - FRAME_GAP_PIXELS
            )
            overlaps_point = any(
                padded_name_box.left - circle_radius < x < padded_name_box.right + circle_radius
                and padded_name_box.bottom - circle_radius < y < padded_name_box.top + circle_radius
                for x, y, circle_radius in point_circles
                if (x, y) != tuple(point_in_pixels)
            )
            has_connecting_line = (shift_right, shift_up, alignment) not in LABEL_PLACES
            half_height = text_extent.height / 2 / pixels_per_point if alignment == "center" else 0
            line_end = text_position[0], text_position[1] - math.copysign(half_height, text_position[1])
            line_points = [
                (
                    point_in_pixels[0] + line_share * line_end[0] * pixels_per_point,
                    point_in_pixels[1] + line_share * line_end[1] * pixels_per_point,
                )
                for line_share in LINE_SAMPLES
                if has_connecting_line
            ]
            overlaps_label = any(
                padded_name_box.overlaps(label_box)
                or any(label_box.contains(*line_point) for line_point in line_points)
                for label_box in label_boxes
            )
            if is_inside_axes and not overlaps_point and not overlaps_label:
                point_circles += [(*line_point, 0.0) for line_point in line_points]
                if has_connecting_line:
                    connecting_line = {
                        "arrowstyle": "-",
                        "color": TEXT_COLOUR,
                        "alpha": 0.45,
                        "linewidth": 0.6,
                        "shrinkA": 0,
                        "shrinkB": 2,
                    }
                    ax.annotate(
                        "",
                        data_point,
                        xytext=line_end,
                        textcoords="offset points",
                        arrowprops=connecting_line,
                        zorder=1,
                    )
                label_boxes.append(padded_name_box)
                annotations.append(annotation)
                break
        else:
            annotation.remove()
    return annotations

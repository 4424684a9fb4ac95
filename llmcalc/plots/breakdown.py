"""The plot of a run's time by parts and by nodes of the model, in the colours of the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from ..reports.palette import BOUND_COLOURS, LINE_COLOUR, TEXT_COLOUR
from ..reports.time_estimate import (
    BOUND_NAMES,
    PART_NAMES,
    SECONDS_BY_UNIT,
    duration_text,
    duration_unit,
    range_ends_text,
)
from ..studies.timed_run import TimedNode, TimedRun
from .figure import draw_heading, in_llmcalc_style, is_narrow, new_figure
from .labels import escape_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NODES = 14
"""Largest number of bars of nodes; the others are one bar."""

BAR_HEIGHT = 0.62
"""Height of a bar, in rows."""

AXIS_LENGTH_FACTOR = 1.28
"""Length of an axis divided by its longest bar, which leaves room for the bar's text."""

NARROW_AXIS_LENGTH_FACTOR = 2
"""Length of an axis divided by its longest bar in a picture for one paper column, where the text needs more room."""


@in_llmcalc_style
def plot_time(title: str, subtitle: str, timed_run: TimedRun, node_depth: int = 3) -> Figure:
    """Draws two panels: the terms of the time with the estimate's range, and the nodes in the colours of their bounds.

    node_depth: levels of the model's tree that nodes are listed by.
    """
    node_bars = _node_bars(timed_run, node_depth)
    time_parts = [(PART_NAMES[part_key], seconds) for part_key, seconds in _part_seconds(timed_run)]
    has_long_names = is_narrow() and any(" (" in bar_name for bar_name, _ in node_bars)  # of two lines each
    figure = new_figure(9, 2.2 + (0.4 if has_long_names else 0.3) * (len(time_parts) + 1 + len(node_bars)))
    panel_heights = (len(time_parts) + 1.6, len(node_bars) + 0.6)
    parts_axes, node_axes = figure.subplots(2, 1, height_ratios=panel_heights)
    draw_parts(parts_axes, timed_run, time_parts)
    draw_nodes(node_axes, timed_run, node_bars)
    draw_heading(figure, escape_label(title), escape_label(subtitle))
    return figure


def _part_seconds(timed_run: TimedRun) -> list[tuple[str, float]]:
    """Returns the terms of the estimated seconds, without `layer waits`, which are included in other terms."""
    return [
        (part_key, seconds)
        for part_key, seconds in timed_run.seconds_by_part.items()
        if seconds and part_key != "layer waits"
    ]


def _node_bars(timed_run: TimedRun, node_depth: int) -> list[tuple[str, TimedNode]]:
    """Returns the slowest nodes of the model with their names; all nodes after the first `MAX_NODES` are one sum."""
    timed_nodes = timed_run.nodes(node_depth)
    node_paths = [node.path for node in timed_nodes]
    node_bars = [
        (node.path if node_paths.count(node.path) == 1 else f"{node.path} ({node.kind.replace('_', '-')})", node)
        for node in timed_nodes
    ]
    if len(node_bars) <= MAX_NODES:
        return node_bars
    small_nodes = [node for _, node in node_bars[MAX_NODES - 1 :]]
    seconds_by_bound = {
        bound: sum(node.seconds_by_bound[bound] for node in small_nodes) for bound in small_nodes[0].seconds_by_bound
    }
    summed_node = small_nodes[0]._replace(seconds=sum(seconds_by_bound.values()), seconds_by_bound=seconds_by_bound)
    return [*node_bars[: MAX_NODES - 1], (f"{len(small_nodes)} others", summed_node)]


def _format_time_axis(ax: Axes, bar_names: list[str], time_unit: str) -> None:
    escaped_names = [escape_label(bar_name) for bar_name in bar_names]
    if is_narrow():
        escaped_names = [tick_label.replace(" (", "\n(") for tick_label in escaped_names]
    ax.set_yticks(range(len(bar_names)), escaped_names, fontsize=8 if is_narrow() else None)
    ax.invert_yaxis()
    ax.tick_params(left=False)
    ax.set_xlabel(time_unit)


def draw_parts(ax: Axes, timed_run: TimedRun, time_parts: list[tuple[str, float]]) -> None:
    """Draws a bar of the estimated seconds by bound, with a whisker for the range, and the parts of the time."""
    time_unit = duration_unit(timed_run.seconds)
    seconds_per_unit, bar_start = SECONDS_BY_UNIT[time_unit], 0.0
    for bound, bound_seconds in timed_run.seconds_by_bound.items():
        ax.barh(
            0,
            bound_seconds / seconds_per_unit,
            left=bar_start / seconds_per_unit,
            color=BOUND_COLOURS[bound],
            height=BAR_HEIGHT,
        )
        bar_start += bound_seconds
    low_end, high_end = (
        float(timed_run.time_range.low) / seconds_per_unit,
        float(timed_run.time_range.high) / seconds_per_unit,
    )
    ax.plot([low_end, high_end], [0, 0], color=TEXT_COLOUR, linewidth=1.4, marker="|", markersize=9)
    ax.text(
        high_end, 0, f"  {range_ends_text(timed_run.time_range, ' to ')} {time_unit}", va="center", color=TEXT_COLOUR
    )
    bar_start = 0.0
    for row_index, (_, bound_seconds) in enumerate(time_parts, 1):
        ax.barh(
            row_index,
            bound_seconds / seconds_per_unit,
            left=bar_start / seconds_per_unit,
            color=LINE_COLOUR,
            height=BAR_HEIGHT,
        )
        bar_start += bound_seconds
        ax.text(
            bar_start / seconds_per_unit,
            row_index,
            f"  {_time_and_percentage_text(bound_seconds, timed_run)}",
            va="center",
            color=TEXT_COLOUR,
        )
    _format_time_axis(ax, ["estimate, with its range", *(bar_name for bar_name, _ in time_parts)], time_unit)
    ax.set_xlim(0, (NARROW_AXIS_LENGTH_FACTOR if is_narrow() else AXIS_LENGTH_FACTOR) * high_end)


def draw_nodes(ax: Axes, timed_run: TimedRun, node_bars: list[tuple[str, TimedNode]]) -> None:
    """Draws a bar for each node of the model and each part of the run, in the colours of the bounds."""
    time_unit = duration_unit(node_bars[0][1].seconds)
    seconds_per_unit = SECONDS_BY_UNIT[time_unit]
    for row_index, (_, node) in enumerate(node_bars):
        bar_start = 0.0
        for bound, bound_seconds in node.seconds_by_bound.items():
            ax.barh(
                row_index,
                bound_seconds / seconds_per_unit,
                left=bar_start / seconds_per_unit,
                color=BOUND_COLOURS[bound],
                height=BAR_HEIGHT,
            )
            bar_start += bound_seconds
        ax.text(
            bar_start / seconds_per_unit,
            row_index,
            f"  {_time_and_percentage_text(node.seconds, timed_run)}",
            va="center",
            color=TEXT_COLOUR,
        )
    _format_time_axis(ax, [bar_name for bar_name, _ in node_bars], time_unit)
    ax.set_xlim(
        0,
        (NARROW_AXIS_LENGTH_FACTOR if is_narrow() else AXIS_LENGTH_FACTOR) * node_bars[0][1].seconds / seconds_per_unit,
    )
    _draw_legend(ax, timed_run)


def _time_and_percentage_text(seconds: float, timed_run: TimedRun) -> str:
    """Returns a time and its percentage of the run's time as text: `4.1 ms, 25 %`."""
    return f"{duration_text(seconds, digit_count=3)}, {units.percent(seconds / timed_run.seconds, 0)}"


def _draw_legend(ax: Axes, timed_run: TimedRun) -> None:
    from matplotlib.patches import Patch

    bounds = [bound for bound, bound_seconds in timed_run.seconds_by_bound.items() if bound_seconds]
    legend_patches = [Patch(color=BOUND_COLOURS[bound], label=BOUND_NAMES[bound]) for bound in bounds]
    patch_style: dict[str, Any] = {"frameon": False, "fontsize": 9, "title": "bound by", "alignment": "left"}
    if is_narrow():
        ax.figure.legend(handles=legend_patches, loc="outside lower center", ncols=len(legend_patches), **patch_style)
    else:
        ax.legend(handles=legend_patches, loc="lower right", **patch_style)

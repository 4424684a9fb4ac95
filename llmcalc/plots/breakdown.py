"""The plot of a run's time by parts and by nodes of the model, in the colours of the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from ..reports.palette import BOUNDS, FAINT, INK
from ..reports.seconds import BOUND_NAMES, FACTORS, PART_NAMES, duration, range_of, unit_of
from ..studies.run_time import Node, TimedRun
from .figure import draw_heading, in_style, is_narrow, new_figure
from .labels import escape_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES = 14
"""Largest number of bars of nodes; the others are one bar."""

HEIGHT = 0.62
"""Height of a bar, in rows."""

ROOM = 1.28
"""Length of an axis over its longest bar, with room for the bar's text."""

NARROW_ROOM = 2
"""The same in a picture for one column of a paper, whose text is as large and whose bars are shorter."""


@in_style
def plot_time(title: str, subtitle: str, timed_run: TimedRun, depth: int = 3) -> Figure:
    """Draws two panels: the parts of the time with the estimate's range, and the nodes in the colours of their bounds.

    depth: levels of the model's tree that nodes are listed by.
    """
    bars = _node_bars(timed_run, depth)
    time_parts = [(PART_NAMES[name], seconds) for name, seconds in _part_seconds(timed_run)]
    has_long_names = is_narrow() and any(" (" in name for name, _ in bars)  # of two lines each
    figure = new_figure(9, 2.2 + (0.4 if has_long_names else 0.3) * (len(time_parts) + 1 + len(bars)))
    heights = (len(time_parts) + 1.6, len(bars) + 0.6)
    parts_axes, node_axes = figure.subplots(2, 1, height_ratios=heights)
    draw_parts(parts_axes, timed_run, time_parts)
    draw_nodes(node_axes, timed_run, bars)
    draw_heading(figure, escape_label(title), escape_label(subtitle))
    return figure


def _part_seconds(timed_run: TimedRun) -> list[tuple[str, float]]:
    """Returns the parts of the estimated seconds. Waits between layers belong to the work."""
    return [(name, seconds) for name, seconds in timed_run.parts.items() if seconds and name != "layer waits"]


def _node_bars(timed_run: TimedRun, depth: int) -> list[tuple[str, Node]]:
    """Returns the slowest nodes with their names. Nodes after the first `MOST_NODES` are summed."""
    nodes = timed_run.nodes(depth)
    paths = [node.path for node in nodes]
    bars = [
        (node.path if paths.count(node.path) == 1 else f"{node.path} ({node.kind.replace('_', '-')})", node)
        for node in nodes
    ]
    if len(bars) <= MOST_NODES:
        return bars
    small_parts = [node for _, node in bars[MOST_NODES - 1 :]]
    seconds_by_bound = {bound: sum(node.by_bound[bound] for node in small_parts) for bound in small_parts[0].by_bound}
    total_seconds = small_parts[0]._replace(seconds=sum(seconds_by_bound.values()), by_bound=seconds_by_bound)
    return [*bars[: MOST_NODES - 1], (f"{len(small_parts)} others", total_seconds)]


def _time_axis(ax: Axes, names: list[str], unit: str) -> None:
    escaped_names = [escape_label(name) for name in names]
    if is_narrow():
        escaped_names = [tick_label.replace(" (", "\n(") for tick_label in escaped_names]
    ax.set_yticks(range(len(names)), escaped_names, fontsize=8 if is_narrow() else None)
    ax.invert_yaxis()
    ax.tick_params(left=False)
    ax.set_xlabel(unit)


def draw_parts(ax: Axes, timed_run: TimedRun, time_parts: list[tuple[str, float]]) -> None:
    """Draws a bar of the estimated seconds by bound, with a whisker for the range, and the parts of the time."""
    unit = unit_of(timed_run.seconds)
    factor, bar_start = FACTORS[unit], 0.0
    for bound, seconds in timed_run.bounds.items():
        ax.barh(0, seconds / factor, left=bar_start / factor, color=BOUNDS[bound], height=HEIGHT)
        bar_start += seconds
    low_end, high_end = float(timed_run.range.low) / factor, float(timed_run.range.high) / factor
    ax.plot([low_end, high_end], [0, 0], color=INK, linewidth=1.4, marker="|", markersize=9)
    ax.text(high_end, 0, f"  {range_of(timed_run.range, ' to ')} {unit}", va="center", color=INK)
    bar_start = 0.0
    for row, (_, seconds) in enumerate(time_parts, 1):
        ax.barh(row, seconds / factor, left=bar_start / factor, color=FAINT, height=HEIGHT)
        bar_start += seconds
        ax.text(bar_start / factor, row, f"  {_share_text(seconds, timed_run)}", va="center", color=INK)
    _time_axis(ax, ["estimate, with its range", *(name for name, _ in time_parts)], unit)
    ax.set_xlim(0, (NARROW_ROOM if is_narrow() else ROOM) * high_end)


def draw_nodes(ax: Axes, timed_run: TimedRun, bars: list[tuple[str, Node]]) -> None:
    """Draws a bar for each node of the model and each part of the run, in the colours of the bounds."""
    unit = unit_of(bars[0][1].seconds)
    factor = FACTORS[unit]
    for row, (_, node) in enumerate(bars):
        bar_start = 0.0
        for bound, seconds in node.by_bound.items():
            ax.barh(row, seconds / factor, left=bar_start / factor, color=BOUNDS[bound], height=HEIGHT)
            bar_start += seconds
        ax.text(bar_start / factor, row, f"  {_share_text(node.seconds, timed_run)}", va="center", color=INK)
    _time_axis(ax, [name for name, _ in bars], unit)
    ax.set_xlim(0, (NARROW_ROOM if is_narrow() else ROOM) * bars[0][1].seconds / factor)
    _draw_legend(ax, timed_run)


def _share_text(seconds: float, timed_run: TimedRun) -> str:
    """Writes a time and its percentage of the run's time: `4.1 ms, 25 %`."""
    return f"{duration(seconds, digits=3)}, {units.percent(seconds / timed_run.seconds, 0)}"


def _draw_legend(ax: Axes, timed_run: TimedRun) -> None:
    from matplotlib.patches import Patch

    bounds = [bound for bound, seconds in timed_run.bounds.items() if seconds]
    patches = [Patch(color=BOUNDS[bound], label=BOUND_NAMES[bound]) for bound in bounds]
    patch_style: dict[str, Any] = {"frameon": False, "fontsize": 9, "title": "bound by", "alignment": "left"}
    if is_narrow():
        ax.figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), **patch_style)
    else:
        ax.legend(handles=patches, loc="lower right", **patch_style)

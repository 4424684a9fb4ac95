"""The plot of a pipeline schedule: one row per rank along the time, and the micro-batches in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import units
from ..parallel.layout import Layout
from ..parallel.schedules import PassKind, Timetable
from ..reports import palette
from ..reports.schedule import PASS_NAMES, costs_text, pass_kinds_of, schedule_title
from .figure import draw_heading, figure_width, in_llmcalc_style, new_figure, text_for_one_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROWEST_INCHES, WIDEST_INCHES = 9.0, 16.0
"""Smallest and largest width of a picture, in inches."""

SIDE_INCHES = 2.6
"""Width of the ranks' names and of micro-batches in flight, in inches."""

PASS_INCHES, DIGIT_INCHES, OUTLINED_PASS_INCHES = 0.2, 0.085, 0.03
"""Widths in inches: of the shortest pass if there is room, of a digit, and of the smallest pass with outline and
hatching. A pass with less room is drawn without them.
"""

TEXT_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
"""Text background of a number on a hatched bar."""

BAR_HEIGHT = 0.8
"""Height of a bar, in rows."""


@in_llmcalc_style
def plot_schedule(layout: Layout, timetable: Timetable) -> Figure:
    """Draws two panels: the passes of every rank, and the largest number of micro-batches in flight."""
    shortest_duration = min(timetable.pass_durations.duration(pass_kind) for pass_kind in pass_kinds_of(timetable))
    figure_width_inches = figure_width(
        min(WIDEST_INCHES, max(NARROWEST_INCHES, SIDE_INCHES + PASS_INCHES * timetable.total_time / shortest_duration))
    )
    figure = new_figure(figure_width_inches, 1.6 + 0.36 * timetable.pipeline.ranks)
    timetable_axes, in_flight_axes = figure.subplots(
        1, 2, sharey=True, width_ratios=(figure_width_inches - SIDE_INCHES, 1.0)
    )
    draw_passes(timetable_axes, timetable, (figure_width_inches - SIDE_INCHES) / timetable.total_time)
    draw_in_flight(in_flight_axes, timetable)
    title_text = f"{schedule_title(layout, timetable)}: idle {units.percent(timetable.bubble)} of the time"
    draw_heading(figure, title_text)
    return figure


def draw_passes(ax: Axes, timetable: Timetable, axes_inches: float) -> None:
    """Draws each rank's passes with the numbers of their micro-batches. Later chunks are paler.

    Overlapped passes are drawn one above the other. axes_inches: width of a unit of time.
    """
    from matplotlib.colors import to_rgb

    bars_by_style: dict[tuple[PassKind, int, float, float], list[tuple[float, float]]] = {}
    for rank, rank_spans in enumerate(timetable.spans_by_rank):
        is_lower_half = False
        for (pass_kind, chunk_index, micro_batch, is_overlapped), pass_start, pass_end in rank_spans:
            bar_height = BAR_HEIGHT / 2 if is_overlapped or is_lower_half else BAR_HEIGHT
            lower_edge = float(rank) if is_lower_half else rank - BAR_HEIGHT / 2
            bars_by_style.setdefault((pass_kind, chunk_index, lower_edge, bar_height), []).append(
                (pass_start, pass_end - pass_start)
            )
            label_text = str(micro_batch)
            if (pass_end - pass_start) * axes_inches > DIGIT_INCHES * len(label_text):
                x = (pass_start + pass_end) / 2
                y = lower_edge + bar_height / 2
                font_size = 8 if bar_height == BAR_HEIGHT else 7
                text_background = TEXT_BACKGROUND if palette.PASS_HATCHES[pass_kind] else None
                ax.text(
                    x,
                    y,
                    label_text,
                    ha="center",
                    va="center",
                    size=font_size,
                    color=palette.TEXT_COLOUR,
                    bbox=text_background,
                )
            is_lower_half = is_overlapped
    lightening_per_chunk = 0.6 / max(1, timetable.pipeline.chunk_count - 1)
    for (pass_kind, chunk_index, lower_edge, bar_height), time_ranges in bars_by_style.items():
        colour = tuple(
            channel + (1 - channel) * lightening_per_chunk * chunk_index
            for channel in to_rgb(palette.PASS_COLOURS[pass_kind])
        )
        fits_letter = time_ranges[0][1] * axes_inches > OUTLINED_PASS_INCHES
        hatch, edge_colour, edge_width = (
            (palette.PASS_HATCHES[pass_kind], "white", 0.6) if fits_letter else (None, None, 0)
        )
        ax.broken_barh(
            time_ranges,
            (lower_edge, bar_height),
            facecolor=colour,
            edgecolor=edge_colour,
            hatch=hatch,
            linewidth=edge_width,
        )
    rank_rows = range(timetable.pipeline.ranks)
    ax.set_yticks(rank_rows, [f"rank {rank}" for rank in rank_rows])
    ax.set_ylim(len(rank_rows) - 0.5, -0.5)
    ax.set_xlim(0, timetable.total_time)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    numbers_text = "; numbers are micro-batches" if ax.texts else ""
    shade_text = {1: "", 2: "; paler: of the second chunk"}.get(
        timetable.pipeline.chunk_count, "; paler: of later chunks"
    )
    ax.set_xlabel(text_for_one_column(f"time, with {costs_text(timetable)}{numbers_text}{shade_text}", 2.4))
    _draw_legend(ax, timetable)


def _draw_legend(ax: Axes, timetable: Timetable) -> None:
    """Draws the legend of colours above the passes."""
    from matplotlib.patches import Patch

    legend_patches = [
        Patch(
            facecolor=palette.PASS_COLOURS[pass_kind],
            edgecolor="white",
            hatch=palette.PASS_HATCHES[pass_kind],
            label=f"{pass_kind} {PASS_NAMES[pass_kind]}",
        )
        for pass_kind in pass_kinds_of(timetable)
    ]
    ax.legend(handles=legend_patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)


def draw_in_flight(ax: Axes, timetable: Timetable) -> None:
    """Draws the most micro-batches in flight per rank, in W's colour if only weight gradients are missing."""
    in_flight_counts = [timetable.pipeline.peak_in_flight(rank)[1] for rank in range(timetable.pipeline.ranks)]
    backward_counts = [sum(micro_batch_count.awaiting_backward) for micro_batch_count in in_flight_counts]
    weight_gradient_counts = [
        sum(micro_batch_count.awaiting_weight_gradients) for micro_batch_count in in_flight_counts
    ]
    rank_rows = range(len(in_flight_counts))
    ax.barh(rank_rows, backward_counts, height=BAR_HEIGHT, color=palette.LINE_COLOUR)
    if any(weight_gradient_counts):
        colour, hatch = palette.PASS_COLOURS["W"], palette.PASS_HATCHES["W"]
        ax.barh(
            rank_rows,
            weight_gradient_counts,
            left=backward_counts,
            height=BAR_HEIGHT,
            color=colour,
            edgecolor="white",
            hatch=hatch,
            linewidth=0,
        )
    for rank, micro_batch_count in zip(rank_rows, in_flight_counts, strict=True):
        ax.text(
            micro_batch_count.total,
            rank,
            f" {micro_batch_count.total}",
            va="center",
            ha="left",
            color=palette.TEXT_COLOUR,
        )
    ax.set_xlim(0, 1.3 * max(micro_batch_count.total for micro_batch_count in in_flight_counts))
    ax.set_xticks([])
    ax.tick_params(left=False, labelleft=False)
    for axis_spine in ax.spines.values():
        axis_spine.set_visible(False)
    ax.set_xlabel("most in flight")

"""The schedule of a pipeline: a row for each rank, time to the right, and what is in flight beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import units
from ..parallel.layout import Layout
from ..parallel.schedules import Kind, Timetable
from ..reports import palette
from ..reports.schedule import PASSES, costs_text, kinds_of, title
from .figure import STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROWEST, WIDEST = 9.0, 16.0
"""Inches of a picture."""

BESIDE = 2.6
"""Inches of a picture that are not passes: the ranks' names, and what is in flight."""

CELL, DIGIT, LINE = 0.2, 0.085, 0.03
"""Inches: of the shortest pass where the width allows them; of a digit, and of a pass that has an outline and hatching.
What has less room is drawn without.
"""

BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
"""The ground of a number on hatching."""

HEIGHT = 0.8
"""Of a row."""


def schedule(layout: Layout, timetable: Timetable) -> Figure:
    """Two panels: the passes of every rank, and the most micro-batches that each has in flight."""
    from matplotlib import rc_context

    shortest = min(timetable.costs.duration(kind) for kind in kinds_of(timetable))
    width = min(WIDEST, max(NARROWEST, BESIDE + CELL * timetable.time / shortest))
    figure = new_figure(width, 1.6 + 0.36 * timetable.pipeline.ranks)
    with rc_context({**STYLE, "hatch.linewidth": 0.7}):
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(width - BESIDE, 1.0))
        passes(left, timetable, (width - BESIDE) / timetable.time)
        in_flight(right, timetable)
        text = f"{title(layout, timetable)}: idle {units.percent(timetable.bubble)} of the time"
        figure.suptitle(text, x=0.01, ha="left", color=palette.INK, fontsize=12, fontweight="bold")
    return figure


def passes(ax: Axes, timetable: Timetable, inches: float) -> None:
    """Each rank's passes with the numbers of their micro-batches; those of later chunks are paler.

    Passes that overlap lie one above the other. inches: of a unit of time.
    """
    from matplotlib.colors import to_rgb

    bars: dict[tuple[Kind, int, float, float], list[tuple[float, float]]] = {}
    for rank, spans in enumerate(timetable.spans):
        below = False
        for (kind, chunk, micro_batch, above), start, end in spans:
            tall = HEIGHT / 2 if above or below else HEIGHT
            low = float(rank) if below else rank - HEIGHT / 2
            bars.setdefault((kind, chunk, low, tall), []).append((start, end - start))
            number = str(micro_batch)
            if (end - start) * inches > DIGIT * len(number):
                x, y, size = (start + end) / 2, low + tall / 2, 8 if tall == HEIGHT else 7
                behind = BEHIND if palette.HATCHES[kind] else None
                ax.text(x, y, number, ha="center", va="center", size=size, color=palette.INK, bbox=behind)
            below = above
    paler = 0.6 / max(1, timetable.pipeline.chunks - 1)
    for (kind, chunk, low, tall), stretches in bars.items():
        colour = tuple(part + (1 - part) * paler * chunk for part in to_rgb(palette.PASSES[kind]))
        clear = stretches[0][1] * inches > LINE
        hatch, edge, line = (palette.HATCHES[kind], "white", 0.6) if clear else (None, None, 0)
        ax.broken_barh(stretches, (low, tall), facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=line)
    ranks = range(timetable.pipeline.ranks)
    ax.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_xlim(0, timetable.time)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    numbers = "; numbers are micro-batches" if ax.texts else ""
    pale = {1: "", 2: "; paler: of the second chunk"}.get(timetable.pipeline.chunks, "; paler: of later chunks")
    ax.set_xlabel(f"time, with {costs_text(timetable)}{numbers}{pale}")
    _legend(ax, timetable)


def _legend(ax: Axes, timetable: Timetable) -> None:
    """What each colour is, above the passes."""
    from matplotlib.patches import Patch

    patches = [
        Patch(
            facecolor=palette.PASSES[kind],
            edgecolor="white",
            hatch=palette.HATCHES[kind],
            label=f"{kind} {PASSES[kind]}",
        )
        for kind in kinds_of(timetable)
    ]
    ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)


def in_flight(ax: Axes, timetable: Timetable) -> None:
    """A bar for the most micro-batches in flight on each rank; those that only wait for W have its colour."""
    held = [timetable.pipeline.peak_in_flight(rank)[1] for rank in range(timetable.pipeline.ranks)]
    whole = [sum(one.whole) for one in held]
    weights = [sum(one.weights) for one in held]
    ranks = range(len(held))
    ax.barh(ranks, whole, height=HEIGHT, color=palette.FAINT)
    if any(weights):
        colour, hatch = palette.PASSES["W"], palette.HATCHES["W"]
        ax.barh(ranks, weights, left=whole, height=HEIGHT, color=colour, edgecolor="white", hatch=hatch, linewidth=0)
    for rank, one in zip(ranks, held, strict=True):
        ax.text(one.total, rank, f" {one.total}", va="center", ha="left", color=palette.INK)
    ax.set_xlim(0, 1.3 * max(one.total for one in held))
    ax.set_xticks([])
    ax.tick_params(left=False, labelleft=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlabel("most in flight")

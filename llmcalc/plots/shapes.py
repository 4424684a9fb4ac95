"""Depth against width: shapes of one budget, and the proportions of published models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from .. import units
from ..sources.preset import Preset
from ..studies.compare import DENSE_BAND, Quantities
from ..studies.shape import Study
from .figure import STYLE, new_figure
from .labels import named
from .palette import COMPONENTS, FAINT, INK, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def shape(studies: Sequence[tuple[str, Study]]) -> Figure:
    """Two panels against h/L: KV cache per token, and forward FLOPs per token over the parameters.

    studies: (name, equal-budget shapes); a diamond marks the model itself.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(10, 4.4)
        left, right = figure.subplots(1, 2)
        for i, (name, one) in enumerate(studies):
            colour = SERIES[i % len(SERIES)]
            rows = sorted(one.shapes, key=lambda each: each.stack.aspect_ratio)
            for ax, values in (
                (left, [row.kv_bytes_per_token / 1024 for row in rows]),
                (right, [row.forward_flops_per_token / row.parameters for row in rows]),
            ):
                ratios = [row.stack.aspect_ratio for row in rows]
                ax.plot(ratios, values, color=colour, linewidth=1.6, marker="o", markersize=4, label=name)
                own = [(x, y) for x, y, row in zip(ratios, values, rows, strict=True) if row.target]
                for x, y in own:
                    ax.plot(x, y, marker="D", markersize=9, color=colour)
        left.set_yscale("log", base=2)
        for ax, title in ((left, "KV cache per token, KiB"), (right, "forward FLOPs per token / parameters")):
            _ratio_axis(ax, upright=True)
            ax.set_title(title, color=INK)
        left.yaxis.set_major_formatter("{x:g}")
        left.legend(frameon=False, fontsize=9)
        kinds = {one.budget.kind for _, one in studies}
        what = " and ".join(sorted(kinds))
        figure.suptitle(f"Shapes of equal {what}", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    return figure


def _ratio_axis(ax: Axes, upright: bool) -> None:
    """h/L on a log axis, with the band of large dense decoders."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    band = DENSE_BAND
    if upright:
        ax.axvspan(*band, color=COMPONENTS["embedding"], alpha=0.13, linewidth=0)
        ax.set_xscale("log", base=2)
        ax.set_xlabel(f"h / L; the band, {band[0]} to {band[1]}: most large dense decoders")
        axis: Axis = ax.xaxis
    else:
        ax.axhspan(*band, color=COMPONENTS["embedding"], alpha=0.13, linewidth=0)
        ax.set_yscale("log", base=2)
        axis = ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    ax.grid(color=FAINT, linewidth=0.4, alpha=0.6)


ASPECT, WIDTH = "h / L", "d_ff / h (active width)"
"""What is on the upright axes."""


def aspect(models: Sequence[tuple[Preset, Quantities]]) -> Figure:
    """Four panels: h/L and d_ff/h, against parameters and against the year.

    The models whose values are most unlike the others' are named first; a name without room is left out.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(12, 8.4)
        axes = figure.subplots(2, 2)
        figure.suptitle(
            f"Proportions of {len(models):,} models", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold"
        )
        drawn = [
            (ax, _scatter(ax, models, title, against))
            for row, title in zip(axes, (ASPECT, WIDTH), strict=True)
            for ax, against in zip(row, ("parameters", "year"), strict=True)
        ]
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # names are placed where everything stays
        for ax, points in drawn:
            places = [(x, y) for x, y, _ in points]
            named(ax, places[:NAMED], [name for _, _, name in points[:NAMED]], places[NAMED:])
    return figure


NAMED = 120
"""Models of a panel that are tried to be named."""

Point: TypeAlias = tuple[float, float, str]
"""(x, y, name)"""


def _scatter(ax: Axes, models: Sequence[tuple[Preset, Quantities]], title: str, against: str) -> list[Point]:
    """Draws a point for each model. Returns all of them, those farthest from the middle of all first."""
    from matplotlib.ticker import FuncFormatter

    kinds: dict[bool, list[Point]] = {False: [], True: []}
    for preset, q in models:
        value = q.shape.aspect_ratio if title == ASPECT else q.shape.feed_forward_ratio
        at = float(q.parameters) if against == "parameters" else _year(preset.released)
        if value and at:
            kinds[q.shape.mixture_of_experts].append((at, value, preset.display))
    for mixture, colour, label in (
        (False, COMPONENTS["attention"], "dense"),
        (True, COMPONENTS["experts"], "mixture of experts"),
    ):
        own = kinds[mixture]
        x, y = [one[0] for one in own], [one[1] for one in own]
        ax.scatter(x, y, s=16, color=colour, alpha=0.75, linewidths=0, label=label)
    if title == ASPECT:
        _ratio_axis(ax, upright=False)
    else:
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(color=FAINT, linewidth=0.4, alpha=0.6)
    if against == "parameters":
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.count(int(value)).replace(".00", "")))
    ax.set_xlabel(against)
    ax.set_ylabel(title)
    points = [*kinds[False], *kinds[True]]
    middle = sorted(value for _, value, _ in points)[len(points) // 2] if points else 1
    return sorted(points, key=lambda one: -abs(one[1] / middle - middle / one[1]))


def _year(released: str) -> float:
    """`2024-07` → 2024.5; 0 where it is not known."""
    parts = [int(part) for part in released.split("-") if part]
    if not parts:
        return 0.0
    month = parts[1] if len(parts) > 1 else 7
    return parts[0] + (month - 1) / 12

"""Depth against width: shapes of one budget, and the proportions of published models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from .. import units
from ..reports.palette import COMPONENTS, FAINT, INK, SERIES
from ..sources.preset import Preset
from ..studies.compare import DENSE_BAND, Quantities
from ..studies.shape import Study
from .figure import STYLE, new_figure, panels
from .labels import label, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def shape(studies: Sequence[tuple[str, Study]], ax: Sequence[Axes] | None = None) -> Figure:
    """Two panels against h/L: KV cache per token, and forward FLOPs per token over the parameters.

    studies: (name, equal-budget shapes); a diamond marks the model itself. ax: the two axes to draw on, as
    `figure.subplots` returns them; by default those of a figure of its own, with a title. Raises `InputError` for
    another number of axes.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(10, 4.4) if ax is None else None
        left, right = panels(figure.subplots(1, 2) if figure is not None else ax, 2)
        for i, (name, one) in enumerate(studies):
            _curves(left, right, name, one, SERIES[i % len(SERIES)])
        left.set_yscale("log", base=2)
        for each, title in ((left, "KV cache per token, KiB"), (right, "forward FLOPs per token / parameters")):
            _ratio_axis(each, upright=True)
            each.set_title(title, color=INK)
        left.yaxis.set_major_formatter("{x:g}")
        left.legend(frameon=False, fontsize=9)
        what = " and ".join(sorted({one.budget.kind for _, one in studies}))
        if figure is not None:
            figure.suptitle(f"Shapes of equal {what}", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    return left.figure  # type: ignore[return-value]


def _curves(left: Axes, right: Axes, name: str, found: Study, colour: str) -> None:
    """The shapes of one study in both panels, from the deepest to the widest."""
    rows = sorted(found.shapes, key=lambda each: each.stack.aspect_ratio)
    ratios = [row.stack.aspect_ratio for row in rows]
    for ax, values in (
        (left, [row.kv_bytes_per_token / 1024 for row in rows]),
        (right, [row.forward_flops_per_token / row.parameters for row in rows]),
    ):
        ax.plot(ratios, values, color=colour, linewidth=1.6, marker="o", markersize=4, label=label(name))
        own = [(x, y) for x, y, row in zip(ratios, values, rows, strict=True) if row.target]
        for x, y in own:
            ax.plot(x, y, marker="D", markersize=9, color=colour)


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


def aspect(models: Sequence[tuple[Preset, Quantities]], ax: Sequence[Axes] | None = None) -> Figure:
    """Four panels: h/L and d_ff/h, against parameters and against the year.

    The models whose values are most unlike the others' are named first; a name without room is left out.

    ax: the four axes to draw on, as `figure.subplots(2, 2)` returns them; by default those of a figure of its own, with
    a title. Names are placed for the size that the axes have then. Raises `InputError` for another number of axes.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(12, 8.4) if ax is None else None
        axes = panels(figure.subplots(2, 2) if figure is not None else ax, 4)
        drawn = [
            (one, _scatter(one, models, title, against))
            for one, (title, against) in zip(axes, product((ASPECT, WIDTH), ("parameters", "year")), strict=True)
        ]
        if figure is not None:
            _headed(figure, f"Proportions of {len(models):,} models", axes[0])
        else:
            axes[0].legend(frameon=False, fontsize=9)
            axes[0].figure.draw_without_rendering()  # type: ignore[union-attr]
        for one, points in drawn:
            places = [(x, y) for x, y, _ in points]
            named(one, places[:NAMED], [name for _, _, name in points[:NAMED]], places[NAMED:])
    return axes[0].figure  # type: ignore[return-value]


def _headed(figure: Figure, title: str, ax: Axes) -> None:
    """Title and legend above all panels, which then stay where they are: names are placed beside what does not move."""
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


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
    for mixture, colour, kind in (
        (False, COMPONENTS["attention"], "dense"),
        (True, COMPONENTS["experts"], "mixture of experts"),
    ):
        own = kinds[mixture]
        x, y = [one[0] for one in own], [one[1] for one in own]
        if own:
            ax.scatter(x, y, s=16, color=colour, alpha=0.75, linewidths=0, label=kind)
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

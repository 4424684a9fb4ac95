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
from .labels import label, place_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def shape(studies: Sequence[tuple[str, Study]], ax: Sequence[Axes] | None = None) -> Figure:
    """Draws two panels against h/L: KV cache per token, and forward FLOPs per token over the parameters.

    studies: (name, equal-budget shapes); a diamond marks the model itself.
    ax: the two axes to draw on; default those of a new figure with a title.
    Raises `InputError` for another number of axes.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(10, 4.4) if ax is None else None
        left, right = panels(figure.subplots(1, 2) if figure is not None else ax, 2)
        for i, (name, study) in enumerate(studies):
            _curves(left, right, name, study, SERIES[i % len(SERIES)])
        left.set_yscale("log", base=2)
        for ax_of_panel, title in ((left, "KV cache per token, KiB"), (right, "forward FLOPs per token / parameters")):
            _ratio_axis(ax_of_panel, upright=True)
            ax_of_panel.set_title(title, color=INK)
        left.yaxis.set_major_formatter("{x:g}")
        left.legend(frameon=False, fontsize=9)
        budgets = " and ".join(sorted({study.budget.kind for _, study in studies}))
        if figure is not None:
            figure.suptitle(f"Shapes of equal {budgets}", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    return left.figure  # type: ignore[return-value]


def _curves(left: Axes, right: Axes, name: str, study: Study, colour: str) -> None:
    """Draws the shapes of one study in both panels, from the deepest to the widest."""
    rows = sorted(study.shapes, key=lambda shape: shape.stack.aspect_ratio)
    ratios = [row.stack.aspect_ratio for row in rows]
    for ax, values in (
        (left, [row.kv_bytes_per_token / 1024 for row in rows]),
        (right, [row.forward_flops_per_token / row.parameters for row in rows]),
    ):
        ax.plot(ratios, values, color=colour, linewidth=1.6, marker="o", markersize=4, label=label(name))
        of_target = [(x, y) for x, y, row in zip(ratios, values, rows, strict=True) if row.target]
        for x, y in of_target:
            ax.plot(x, y, marker="D", markersize=9, color=colour)


def _ratio_axis(ax: Axes, upright: bool) -> None:
    """Formats a log axis of h/L, with the band of large dense decoders."""
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
"""Titles of the vertical axes."""


def aspect(models: Sequence[tuple[Preset, Quantities]], ax: Sequence[Axes] | None = None) -> Figure:
    """Draws four panels: h/L and d_ff/h, against parameters and against the year.

    The models whose values are most unlike the others' are named first; a name without room is left out.

    ax: the four axes to draw on; default those of a new figure with a title. Names are placed for their current size.
    Raises `InputError` for another number of axes.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(12, 8.4) if ax is None else None
        axes = panels(figure.subplots(2, 2) if figure is not None else ax, 4)
        drawn = [
            (ax_of_panel, _scatter(ax_of_panel, models, title, against))
            for ax_of_panel, (title, against) in zip(
                axes, product((ASPECT, WIDTH), ("parameters", "year")), strict=True
            )
        ]
        if figure is not None:
            _add_title(figure, f"Proportions of {len(models):,} models", axes[0])
        else:
            axes[0].legend(frameon=False, fontsize=9)
            axes[0].figure.draw_without_rendering()  # type: ignore[union-attr]
        for ax_of_panel, points in drawn:
            places = [(x, y) for x, y, _ in points]
            place_names(
                ax_of_panel, places[:MOST_NAMES], [name for _, _, name in points[:MOST_NAMES]], places[MOST_NAMES:]
            )
    return axes[0].figure  # type: ignore[return-value]


def _add_title(figure: Figure, title: str, ax: Axes) -> None:
    """Draws title and legend above all panels and fixes the layout, so that names can be placed."""
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


MOST_NAMES = 120
"""Largest number of models per panel whose names are placed."""

Point: TypeAlias = tuple[float, float, str]
"""(x, y, name)"""


def _scatter(ax: Axes, models: Sequence[tuple[Preset, Quantities]], title: str, against: str) -> list[Point]:
    """Draws a point per model. Returns all points, those farthest from the median first."""
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
        points_of_kind = kinds[mixture]
        x, y = [point[0] for point in points_of_kind], [point[1] for point in points_of_kind]
        if points_of_kind:
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
    return sorted(points, key=lambda point: -abs(point[1] / middle - middle / point[1]))


def _year(released: str) -> float:
    """Converts `2024-07` to 2024.5; returns 0 for an unknown date."""
    parts = [int(part) for part in released.split("-") if part]
    if not parts:
        return 0.0
    month = parts[1] if len(parts) > 1 else 7
    return parts[0] + (month - 1) / 12

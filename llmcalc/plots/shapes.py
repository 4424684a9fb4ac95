"""The plots of depth against width: shapes of equal cost, and the proportions of published models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from .. import units
from ..reports.palette import COMPONENT_COLOURS, LINE_COLOUR, TEXT_COLOUR
from ..sources.preset import Preset
from ..studies.compare import DENSE_BAND, ModelQuantities
from ..studies.shape import ShapeStudy
from .figure import axes_of_panels, draw_heading, in_llmcalc_style, is_narrow, new_figure
from .labels import LABEL_PLACES, RING_LABEL_PLACES, axis_tick_text, escape_label, label_points
from .series import CurveStyle, curve_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


@in_llmcalc_style
def plot_shapes(named_studies: Sequence[tuple[str, ShapeStudy]], ax: Sequence[Axes] | None = None) -> Figure:
    """Draws two panels against h/L: KV cache per token, and forward FLOPs per token divided by the parameters.

    named_studies: (name, equal-budget shapes); a diamond marks the model itself.
    ax: the two axes to draw on; default those of a new figure with a title.
    Raises `InputError` for another number of axes.
    """
    from matplotlib.ticker import FuncFormatter

    panel_rows = 2 if is_narrow() else 1
    figure = new_figure(10, 3.4 * panel_rows + 1) if ax is None else None
    cache_axes, flops_axes = axes_of_panels(
        figure.subplots(panel_rows, 2 // panel_rows) if figure is not None else ax, 2
    )
    for budget_index, (model_name, shape_study) in enumerate(named_studies):
        _draw_curves(cache_axes, flops_axes, model_name, shape_study, curve_style(budget_index))
    cache_axes.set_yscale("log", base=2)
    for panel_axes, title in ((cache_axes, "KV cache per token"), (flops_axes, "forward FLOPs per token / parameters")):
        _format_ratio_axis(panel_axes, is_vertical=True)
        panel_axes.set_title(title, color=TEXT_COLOUR)
    cache_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: axis_tick_text(round(value), units.memory)))
    cache_axes.legend(frameon=False, fontsize=9)
    kinds_text = " and ".join(sorted({shape_study.budget.kind for _, shape_study in named_studies}))
    if figure is not None:
        draw_heading(figure, f"Shapes of equal {kinds_text}")
    return cache_axes.figure  # type: ignore[return-value]


def _draw_curves(
    cache_axes: Axes, flops_axes: Axes, model_name: str, shape_study: ShapeStudy, line_style: CurveStyle
) -> None:
    """Draws the shapes of one study in both panels, from deepest to widest."""
    sorted_shapes = sorted(shape_study.shapes, key=lambda model_shape: model_shape.stack.aspect_ratio)
    aspect_ratios = [model_shape.stack.aspect_ratio for model_shape in sorted_shapes]
    for ax, curve_values in (
        (cache_axes, [model_shape.kv_bytes_per_token for model_shape in sorted_shapes]),
        (flops_axes, [model_shape.forward_flops_per_token / model_shape.parameters for model_shape in sorted_shapes]),
    ):
        ax.plot(
            aspect_ratios,
            curve_values,
            color=line_style.colour,
            linestyle=line_style.line_style,
            linewidth=1.6,
            marker="o",
            markersize=4,
            label=escape_label(model_name),
        )
        target_points = [
            (x, y)
            for x, y, model_shape in zip(aspect_ratios, curve_values, sorted_shapes, strict=True)
            if model_shape.is_target
        ]
        for x, y in target_points:
            ax.plot(x, y, marker="D", markersize=9, color=line_style.colour)


def _format_ratio_axis(ax: Axes, is_vertical: bool) -> None:
    """Formats a logarithmic axis of h/L, with the band of large dense decoders."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    band_style = DENSE_BAND
    if is_vertical:
        ax.axvspan(*band_style, color=COMPONENT_COLOURS["embedding"], alpha=0.13, linewidth=0)
        ax.set_xscale("log", base=2)
        ax.set_xlabel(f"h / L; the band, {band_style[0]} to {band_style[1]}: most large dense decoders")
        axis: Axis = ax.xaxis
    else:
        ax.axhspan(*band_style, color=COMPONENT_COLOURS["embedding"], alpha=0.13, linewidth=0)
        ax.set_yscale("log", base=2)
        axis = ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
    ax.grid(color=LINE_COLOUR, linewidth=0.4, alpha=0.6)


ASPECT_TITLE, WIDTH_TITLE = "h / L", "d_ff / h (active width)"
"""Titles of the vertical axes."""


@in_llmcalc_style
def plot_aspect_ratios(
    models: Sequence[tuple[Preset, ModelQuantities]],
    ax: Sequence[Axes] | None = None,
    labelled_names: Sequence[str] = (),
) -> Figure:
    """Draws four panels: h/L and d_ff/h, against parameters and against the year.

    labelled_names: the presets that are named in the picture, with a line to the point where there is no room beside
        it; by default a few whose values are most unlike the others', as far as there is room.
    ax: the four axes to draw on; default those of a new figure with a title. Names are placed for their current size.
    Raises `InputError` for another number of axes.
    """
    panel_rows = 4 if is_narrow() else 2
    figure = new_figure(12, 2.9 * panel_rows if is_narrow() else 8.4) if ax is None else None
    axes = axes_of_panels(figure.subplots(panel_rows, 4 // panel_rows) if figure is not None else ax, 4)
    plotted_models = [
        (panel_axes, _draw_scatter(panel_axes, models, title, quantity))
        for panel_axes, (title, quantity) in zip(
            axes, product((ASPECT_TITLE, WIDTH_TITLE), ("parameters", "year")), strict=True
        )
    ]
    if figure is not None:
        _add_title(figure, f"Proportions of {len(models):,} models", axes[0])
    else:
        axes[0].legend(frameon=False, fontsize=9)
        axes[0].figure.draw_without_rendering()  # type: ignore[union-attr]
    for panel_axes, model_points in plotted_models:
        distinct_points = list(
            {(model_point.x, model_point.y): model_point for model_point in reversed(model_points)}.values()
        )[::-1]  # one name a place
        labelled_points = (
            [model_point for model_point in model_points if model_point.preset in labelled_names]
            if labelled_names
            else distinct_points[:MAX_LABELS]
        )
        label_points(
            panel_axes,
            [(model_point.x, model_point.y) for model_point in labelled_points],
            [model_point.name for model_point in labelled_points],
            [(model_point.x, model_point.y) for model_point in model_points],
            (*LABEL_PLACES, *RING_LABEL_PLACES) if labelled_names else LABEL_PLACES,
            POINT_AREA**0.5 / 2,
        )
    return axes[0].figure  # type: ignore[return-value]


def _add_title(figure: Figure, title: str, ax: Axes) -> None:
    """Draws title and legend above all panels and fixes the layout, so that names can be placed."""
    draw_heading(figure, title)
    legend_handles, legend_labels = ax.get_legend_handles_labels()
    legend_place = "outside lower center" if is_narrow() else "outside upper right"
    figure.legend(legend_handles, legend_labels, loc=legend_place, ncols=2, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


MAX_LABELS = 14
"""Models per panel that are named by default."""

POINT_AREA = 16
"""Area of a point, in square points (1/72 inch)."""


class ModelPoint(NamedTuple):
    """A point of a scatter plot. x, y: its data coordinates. name: its label. preset: its name on the command line."""

    x: float
    y: float
    name: str
    preset: str


def _draw_scatter(
    ax: Axes, models: Sequence[tuple[Preset, ModelQuantities]], title: str, x_axis_quantity: str
) -> list[ModelPoint]:
    """Draws a point per model, and returns all points, the farthest from the median first."""
    from matplotlib.ticker import FuncFormatter

    points_by_kind: dict[bool, list[ModelPoint]] = {False: [], True: []}
    for preset, quantities in models:
        quantity_value = quantities.shape.aspect_ratio if title == ASPECT_TITLE else quantities.shape.feed_forward_ratio
        x_value = float(quantities.parameters) if x_axis_quantity == "parameters" else _year_as_number(preset.released)
        if quantity_value and x_value:
            points_by_kind[quantities.shape.mixture_of_experts].append(
                ModelPoint(x_value, quantity_value, preset.display, preset.name)
            )
    for is_mixture, colour, label in (
        (False, COMPONENT_COLOURS["attention"], "dense"),
        (True, COMPONENT_COLOURS["experts"], "mixture of experts"),
    ):
        points_of_kind = points_by_kind[is_mixture]
        x, y = [model_point.x for model_point in points_of_kind], [model_point.y for model_point in points_of_kind]
        if points_of_kind:
            ax.scatter(x, y, s=POINT_AREA, color=colour, alpha=0.75, linewidths=0, label=label)
    if title == ASPECT_TITLE:
        _format_ratio_axis(ax, is_vertical=False)
    else:
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(color=LINE_COLOUR, linewidth=0.4, alpha=0.6)
    if x_axis_quantity == "parameters":
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.count(int(value)).replace(".00", "")))
    ax.set_xlabel(x_axis_quantity)
    ax.set_ylabel(title)
    model_points = [*points_by_kind[False], *points_by_kind[True]]
    median_value = sorted(model_point.y for model_point in model_points)[len(model_points) // 2] if model_points else 1
    return sorted(model_points, key=lambda point: -abs(point.y / median_value - median_value / point.y))


def _year_as_number(release_date: str) -> float:
    """Converts `2024-07` to 2024.5, and an unknown date to 0."""
    date_parts = [int(date_part) for date_part in release_date.split("-") if date_part]
    if not date_parts:
        return 0.0
    month = date_parts[1] if len(date_parts) > 1 else 7
    return date_parts[0] + (month - 1) / 12

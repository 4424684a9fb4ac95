"""Plot of parameters: a stacked bar per model, by component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import units
from ..costs.params import ParameterCount
from ..reports.palette import COMPONENT_COLOURS, OTHER_COLOUR, TEXT_COLOUR
from .figure import in_llmcalc_style, is_narrow, new_figure
from .labels import escape_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST_LABELLED_SHARE = 0.06
"""Smallest share of a bar that is labelled with its number."""

COMPONENT_LABELS = {
    "lm_head": "output head",
    "feed_forward": "feed-forward",
    "state_space": "state space",
    "linear_attention": "linear attention",
    "cross_attention": "cross-attention",
    "shared_expert": "shared experts",
}
"""Component → its name in a legend, if that differs."""


@in_llmcalc_style
def plot_params(counts_by_model: Sequence[tuple[str, ParameterCount]], ax: Axes | None = None) -> Figure:
    """Draws a 100 % bar per model in order, with the number of parameters.

    counts_by_model: (name, parameters).
    ax: axes to draw on; default a new figure.
    """
    figure = new_figure(9, 1.5 + 0.42 * len(counts_by_model)) if ax is None else ax.figure
    _draw_bars(figure.subplots() if ax is None else ax, counts_by_model)
    return figure  # type: ignore[return-value]


def _draw_bars(ax: Axes, counts_by_model: Sequence[tuple[str, ParameterCount]]) -> None:
    labelled_kinds: set[str] = set()
    for row_index, (_, parameter_counts) in enumerate(counts_by_model):
        count_by_component = {
            component: int(component_count) for component, component_count in parameter_counts.by_component.items()
        }
        component_counts = [(component, count_by_component.get(component, 0)) for component in COMPONENT_COLOURS]
        bar_start = 0.0
        for component, parameter_count in (
            *component_counts,
            ("other", int(parameter_counts.total) - sum(parameter_count for _, parameter_count in component_counts)),
        ):
            total_fraction = parameter_count / int(parameter_counts.total)
            if not total_fraction:
                continue
            legend_label = None if component in labelled_kinds else COMPONENT_LABELS.get(component, component)
            labelled_kinds.add(component)
            colour = COMPONENT_COLOURS.get(component, OTHER_COLOUR)
            ax.barh(
                row_index,
                total_fraction,
                left=bar_start,
                color=colour,
                height=0.72,
                edgecolor="white",
                linewidth=0.8,
                label=legend_label,
            )
            if total_fraction >= (2.5 if is_narrow() else 1) * SMALLEST_LABELLED_SHARE:
                percentage_text = f"{100 * total_fraction:.0f} %"
                ax.text(
                    bar_start + total_fraction / 2,
                    row_index,
                    percentage_text,
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=_text_colour(colour),
                )
            bar_start += total_fraction
        ax.text(1.01, row_index, units.count(int(parameter_counts.total)), va="center", fontsize=9, color=TEXT_COLOUR)
    ax.set_yticks(range(len(counts_by_model)), [escape_label(model_name) for model_name, _ in counts_by_model])
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.xaxis.set_visible(False)
    for axis_spine in ax.spines.values():
        axis_spine.set_visible(False)
    ax.set_xlim(0, 1.1)
    ax.set_title("Where the parameters are", color=TEXT_COLOUR, fontweight="bold")
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(-0.01, 0.0),
        ncols=2 if is_narrow() else 5,
        frameon=False,
        fontsize=9,
        handlelength=1,
        columnspacing=1 if is_narrow() else None,
    )


def _text_colour(colour: str) -> str:
    """Returns white or ink, whichever contrasts more with a colour (WCAG's relative luminance)."""
    rgb_fractions = [int(colour[digit_index : digit_index + 2], 16) / 255 for digit_index in (1, 3, 5)]
    linear_red, linear_green, linear_blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in rgb_fractions
    )
    return TEXT_COLOUR if 0.2126 * linear_red + 0.7152 * linear_green + 0.0722 * linear_blue > 0.2 else "white"

"""Plots against the context length: the KV cache, and the FLOPs of decoding one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import units
from ..costs.cache import kv
from ..costs.context_length import longest_sequence
from ..costs.flops import flops, run_config_of
from ..reports.palette import LINE_COLOUR, TEXT_COLOUR
from ..sources.preset import Preset
from .figure import in_llmcalc_style, is_narrow, new_figure, text_for_one_column
from .labels import axis_tick_text, escape_label, spread_labels
from .series import curve_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTEXT_LENGTHS = tuple(2 ** (10 + i // 2) if i % 2 == 0 else round(2 ** (10.5 + i // 2)) for i in range(21))
"""Context lengths in tokens: from 1,024 to 1,048,576, two per doubling."""


def plot_cache(models: Sequence[Preset], dtype: str = "bfloat16", ax: Axes | None = None) -> Figure:
    """Plots the cache bytes of one sequence against its tokens, on log axes.

    dtype: format of keys and values.
    ax: axes to draw on; default a new figure.
    """

    def cache_bytes_of(named_model: Preset) -> list[float]:
        shortest_cache = kv(named_model.model, seq=CONTEXT_LENGTHS[0], format_name=dtype)
        return [float(shortest_cache.size_after(token_count).bytes) for token_count in CONTEXT_LENGTHS]

    title = f"KV cache of one sequence, {units.short_dtype(dtype)}"
    return _plot_curves(models, cache_bytes_of, title, lambda value: units.memory(round(value)), 2, ax)


def plot_flops(models: Sequence[Preset]) -> Figure:
    """Plots the forward FLOPs of one token against the context length, on log axes."""

    def token_flops_of(named_model: Preset) -> list[float]:
        phase = "forward" if named_model.model.one_pass_model_name else "decode"
        token_flops: list[float] = []
        for token_count in CONTEXT_LENGTHS:
            run_config = (
                run_config_of(named_model.model, seq=token_count)
                if phase == "forward"
                else run_config_of(named_model.model, context=token_count - 1, phase="decode")
            )
            token_flops.append(flops(named_model.model, run_config).per_token)
        return token_flops

    return _plot_curves(models, token_flops_of, "FLOPs of one more token", units.flops, 10)


@in_llmcalc_style
def _plot_curves(
    models: Sequence[Preset],
    curve_function: Callable[[Preset], list[float]],
    title: str,
    write_value: Callable[[Any], str],
    log_base: int,
    ax: Axes | None = None,
) -> Figure:
    """Draws one curve per model. write_value: formats a value. log_base: base of the vertical axis."""
    figure_height = max(4.6, LABEL_INCHES * len(models) / AXES_HEIGHT_SHARE + 0.4)
    figure = new_figure(8, figure_height) if ax is None else ax.figure
    model_curves = [(named_model, curve_function(named_model)) for named_model in models]
    _draw_curves(figure.subplots() if ax is None else ax, model_curves, title, write_value, log_base)
    return figure  # type: ignore[return-value]


def _draw_curves(
    ax: Axes,
    model_curves: Sequence[tuple[Preset, list[float]]],
    title: str,
    write_value: Callable[[Any], str],
    log_base: int,
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=log_base)
    ax.margins(x=0)
    for curve_index, (named_model, curve_values) in enumerate(model_curves):
        line_style = curve_style(curve_index)
        longest_context = longest_sequence(named_model.model) or CONTEXT_LENGTHS[-1]
        plotted_values = [
            curve_value if token_count <= longest_context else float("nan")
            for token_count, curve_value in zip(CONTEXT_LENGTHS, curve_values, strict=True)
        ]
        # Past the context that the model was made for:
        ax.plot(CONTEXT_LENGTHS, curve_values, color=line_style.colour, linewidth=1.2, linestyle=":")
        ax.plot(CONTEXT_LENGTHS, plotted_values, color=line_style.colour, linewidth=2, linestyle=line_style.line_style)
    ax.set_xticks([token_count for token_count in CONTEXT_LENGTHS if token_count & (token_count - 1) == 0][::2])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda curve_value, _: _tokens_text(curve_value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(log_base, numticks=9))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda curve_value, _: axis_tick_text(curve_value, write_value)))
    ax.grid(color=LINE_COLOUR, linewidth=0.4, alpha=0.6)
    ax.set_xlabel(text_for_one_column("tokens of the context; dotted past what the model was made for", 2.4))
    ax.set_title(title, color=TEXT_COLOUR, fontweight="bold", pad=14 if is_narrow() else None)
    if is_narrow():
        ax.tick_params(axis="x", labelsize=8)
    _label_ends(ax, model_curves)


def _label_ends(ax: Axes, model_curves: Sequence[tuple[Preset, list[float]]]) -> None:
    """Labels each curve at its right end, with a connecting line if the label had to move."""
    curve_ends = [(CONTEXT_LENGTHS[-1], curve_values[-1]) for _, curve_values in model_curves]
    data_to_axes_transform = ax.transData + ax.transAxes.inverted()
    end_points = [tuple(data_to_axes_transform.transform(curve_end)) for curve_end in curve_ends]
    label_heights = spread_labels(
        [label_height for _, label_height in end_points],
        LABEL_INCHES * ax.figure.dpi / (ax.figure.bbox.height * AXES_HEIGHT_SHARE),
    )
    for curve_index, ((named_model, _), curve_end, label_height) in enumerate(
        zip(model_curves, curve_ends, label_heights, strict=True)
    ):
        colour = curve_style(curve_index).colour
        connecting_line = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 1,
            "relpos": (0, 0.5),
        }
        ax.annotate(
            escape_label(named_model.display),
            curve_end,
            xytext=(1.05, label_height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=colour,
            annotation_clip=False,
            arrowprops=connecting_line,
        )


LABEL_INCHES = 0.17
"""Least vertical distance between labels, in inches."""

AXES_HEIGHT_SHARE = 0.78
"""Height of the axes as a fraction of the figure's height."""


def _tokens_text(token_count: float) -> str:
    """Returns a number of tokens as short text: `8K` or `1M`."""
    return f"{token_count / 2**20:g}M" if token_count >= 2**20 else f"{token_count / 2**10:g}K"

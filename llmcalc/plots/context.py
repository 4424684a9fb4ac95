"""Plots over the context length: the KV cache, and the FLOPs of one more token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import units
from ..costs.cache import kv
from ..costs.context_length import longest_sequence
from ..costs.flops import flops, run_config_of
from ..reports.palette import FAINT, INK, SERIES
from ..sources.preset import Preset
from .figure import STYLE, new_figure
from .labels import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTEXTS = tuple(2 ** (10 + i // 2) if i % 2 == 0 else round(2 ** (10.5 + i // 2)) for i in range(21))
"""Context lengths in tokens: from 1,024 to 1,048,576, two per doubling."""


def cache(models: Sequence[Preset], dtype: str = "bfloat16", ax: Axes | None = None) -> Figure:
    """Plots the bytes of one sequence's cache against its tokens, on log axes; full windows bend the curve.

    dtype: format of keys and values.
    ax: axes to draw on; default a new figure.
    """

    def of(preset: Preset) -> list[float]:
        shortest_cache = kv(preset.model, seq=CONTEXTS[0], dtype_name=dtype)
        return [shortest_cache.after(tokens).bytes / units.GIB.factor for tokens in CONTEXTS]

    title = f"KV cache of one sequence, {units.short_dtype(dtype)}"
    return _curves(models, of, title, units.GIB.name, ax)


def work(models: Sequence[Preset], ax: Axes | None = None) -> Figure:
    """Plots the forward FLOPs of one token against its context length, on log axes."""

    def of(preset: Preset) -> list[float]:
        phase = "forward" if preset.model.kind == "encoder" else "decode"
        values: list[float] = []
        for tokens in CONTEXTS:
            run_config = (
                run_config_of(preset.model, seq=tokens)
                if phase == "forward"
                else run_config_of(preset.model, context=tokens - 1, phase="decode")
            )
            values.append(flops(preset.model, run_config).per_token / 1e9)
        return values

    return _curves(models, of, "FLOPs of one more token", "GFLOPs", ax)


def _curves(
    models: Sequence[Preset], values_of: Callable[[Preset], list[float]], title: str, unit: str, ax: Axes | None
) -> Figure:
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(8, 4.6) if ax is None else ax.figure
        _draw(figure.subplots() if ax is None else ax, [(preset, values_of(preset)) for preset in models], title, unit)
    return figure  # type: ignore[return-value]


def _draw(ax: Axes, curves: Sequence[tuple[Preset, list[float]]], title: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    heights = spread_labels([values[-1] for _, values in curves])
    for i, (preset, values) in enumerate(curves):
        colour = SERIES[i % len(SERIES)]
        longest = longest_sequence(preset.model) or CONTEXTS[-1]
        plotted_values = [
            value if tokens <= longest else float("nan") for tokens, value in zip(CONTEXTS, values, strict=True)
        ]
        ax.plot(CONTEXTS, values, color=colour, linewidth=1.2, linestyle=":")  # past the context it was made for
        ax.plot(CONTEXTS, plotted_values, color=colour, linewidth=2)
        ax.annotate(
            label(preset.display),
            (CONTEXTS[-1], heights[i]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
            annotation_clip=False,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([tokens for tokens in CONTEXTS if tokens & (tokens - 1) == 0][::2])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tokens(value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(color=FAINT, linewidth=0.4, alpha=0.6)
    ax.set_xlabel("tokens of the context; dotted past what the model was made for")
    ax.set_ylabel(unit)
    ax.set_title(title, color=INK, fontweight="bold")


ROW = 1.45
"""Smallest ratio of the heights of two labels on a log axis."""


def spread_labels(values: Sequence[float]) -> list[float]:
    """Returns heights of labels near these values, at least one line of text apart."""
    order = sorted(range(len(values)), key=values.__getitem__)
    heights = list(values)
    for lower, upper in pairwise(order):
        heights[upper] = max(heights[upper], heights[lower] * ROW)
    return heights


def _tokens(value: float) -> str:
    """Writes a number of tokens as `8K` or `1M`."""
    return f"{value / 2**20:g}M" if value >= 2**20 else f"{value / 2**10:g}K"

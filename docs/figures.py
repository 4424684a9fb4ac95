"""Drawings that explain: where norms stand in a layer, what kinds of attention keep of a token, and how deep presets
with and without experts are.

A page has one as `<!-- figure: NAME: what it shows -->`; `docs/build.py` draws it, with the words of a language's
labels.toml.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#cfe0f3", "#f7d9b0", "#e4e4e4"

ATTENTION, NETWORK, NORM = ("attention", BLUE), ("feed-forward", ORANGE), ("norm", GREY)
"""Texts and colours of boxes."""


def _box(axes: Axes, x: float, y: float, text: str, colour: str, width: float = 2.0, height: float = 0.6) -> None:
    """Draws a box with a text, centred at a place."""
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=colour,
        ec="black", lw=0.8, zorder=3,
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=9, zorder=4)


def _path(axes: Axes, *places: tuple[float, float], arrow: bool = True) -> None:
    """Draws lines from place to place, the last one as an arrow."""
    xs, ys = zip(*places, strict=True)
    axes.plot(xs, ys, color="black", lw=0.9, solid_joinstyle="miter")
    if arrow:
        style = {"arrowstyle": "-|>", "lw": 0.9, "color": "black", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
        axes.annotate("", places[-1], places[-2], arrowprops=style)


def _sublayer(
    axes: Axes, x: float, bottom: float, top: float, boxes: tuple[tuple[str, str], ...], reads: float = 0,
    offset: float = 1.5,
) -> None:  # fmt: skip
    """Draws a sublayer beside the residual stream at x: it is added to the stream at `top`, and at `bottom` it reads
    the stream, or what stands `reads` to the right of it.
    """
    column = x + offset
    step = (top - bottom) / (len(boxes) + 1)
    _path(axes, (x + reads, bottom), (column, bottom), (column, bottom + step - 0.3))
    for number, (text, colour) in enumerate(boxes, 1):
        _box(axes, column, bottom + number * step, text, colour)
        if number < len(boxes):
            _path(axes, (column, bottom + number * step + 0.3), (column, bottom + (number + 1) * step - 0.3))
    _path(axes, (column, top - step + 0.3), (column, top), (x + 0.2, top))
    axes.text(x, top, "+", ha="center", va="center", fontsize=9, zorder=4,
              bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": "black", "lw": 0.8})  # fmt: skip


def norms(axes: Axes) -> None:
    """Draws a layer of each placement: the residual stream goes up on the left, sublayers stand beside it."""
    placements = {
        "pre": ("GPT-2, Llama", (NORM, ATTENTION), (NORM, NETWORK)),
        "sandwich": ("Gemma 2", (NORM, ATTENTION, NORM), (NORM, NETWORK, NORM)),
        "output": ("OLMo 2", (ATTENTION, NORM), (NETWORK, NORM)),
    }
    titles = {"post": "BERT"} | {name: models for name, (models, *_) in placements.items()}
    for number, (name, models) in enumerate((titles | {"parallel, shared": "GPT-J, PaLM"}).items()):
        x = 4.2 * number
        axes.text(x + 1, 8.6, name, ha="center", fontsize=10, fontweight="bold")
        axes.text(x + 1, 8.1, models, ha="center", fontsize=9)
        _path(axes, (x, 0), (x, 7.8))
        if name in placements:
            _, attention, network = placements[name]
            _sublayer(axes, x, 0.3, 3.5, attention)
            _sublayer(axes, x, 3.9, 7.1, network)
    for bottom, sublayer in ((0.3, ATTENTION), (3.9, NETWORK)):
        _sublayer(axes, 0, bottom, bottom + 2.0, (sublayer,))
        _box(axes, 0, bottom + 2.8, "norm", GREY)
    _path(axes, (x, 0.8), (x + 1.5, 0.8), (x + 1.5, 1.3))
    _box(axes, x + 1.5, 1.6, *NORM)
    _path(axes, (x + 1.5, 1.9), (x + 1.5, 2.4), arrow=False)
    _sublayer(axes, x, 2.4, 6.6, (NETWORK,), reads=1.5, offset=3.9)
    _sublayer(axes, x, 2.4, 5.4, (ATTENTION,), reads=1.5)
    axes.set(xlim=(-1.3, x + 5.1), ylim=(-0.1, 9.1))


def heads(axes: Axes) -> None:
    """Draws which keys and values the queries of a token's eight heads read; what the cache keeps is coloured."""
    for number, (name, keys) in enumerate((("MHA", 8), ("GQA", 2), ("MQA", 1), ("MLA", 8))):
        x, latent = 9.6 * number, name == "MLA"
        axes.text(x + 3.5, 4.3, name, ha="center", fontsize=10, fontweight="bold")
        centres = [x + (key + 0.5) * 8 / keys - 0.5 for key in range(keys)]
        for query in range(8):
            axes.plot([x + query, centres[query * keys // 8]], [3.1, 2.1], color="0.45", lw=0.8)
            _box(axes, x + query, 3.4, "", "white", 0.7, 0.7)
        for place in centres:
            for y in (1.8, 0.9):
                _box(axes, place, y, "", "white" if latent else BLUE, 0.7, 0.7)
            if latent:
                axes.plot([place, x + 3.5], [0.5, -0.3], color="0.45", lw=0.8)
        if latent:
            _box(axes, x + 3.5, -0.8, "latent c, key r", BLUE, 5.2, 1.0)
    for y, text in ((3.4, "queries"), (1.8, "keys"), (0.9, "values")):
        axes.text(-0.7, y, text, ha="right", va="center", fontsize=9)
    axes.set(xlim=(-4.2, 36.8), ylim=(-1.5, 5.2))


def depths(axes: Axes) -> None:
    """Draws the layers of every decoder of at least a billion parameters against its parameters."""
    from llmcalc.costs.params import params
    from llmcalc.reports.palette import COMPONENT_COLOURS
    from llmcalc.sources.presets import load_preset, model_names

    points: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for spec in (load_preset(name).model for name in model_names()):
        total = params(spec).total
        if spec.kind == "decoder" and total >= LEAST:
            points[spec.has_experts].append((total, spec.main.num_hidden_layers))
    looks = {
        False: ("dense", COMPONENT_COLOURS["attention"], "o"),
        True: ("mixture of experts", COMPONENT_COLOURS["experts"], "s"),
    }
    for experts, (name, colour, marker) in looks.items():
        totals, layers = zip(*points[experts], strict=True)
        axes.scatter(totals, layers, s=16, alpha=0.6, label=name, color=colour, marker=marker, lw=0)
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="layers")
    axes.set_xticks([10**9, 10**10, 10**11, 10**12], ["1 B", "10 B", "100 B", "1 T"])
    axes.set_yticks([16, 32, 64, 128], ["16", "32", "64", "128"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, lw=0.5, color="0.9")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left")


LEAST = 10**9
"""Parameters of the smallest model of `depths`."""

FIGURES = {"norms": (norms, 10.0, 3.9), "heads": (heads, 10.0, 1.65), "depths": (depths, 7.2, 3.4)}
"""Name → the function that draws it, width and height in inches."""


def draw(name: str, file: Path) -> None:
    """Writes a figure to a file. Raises `KeyError` for an unknown name."""
    from llmcalc.plots.figure import figure_bytes, new_figure

    function, width, height = FIGURES[name]
    figure = new_figure(width, height)
    axes = figure.subplots()
    if function is not depths:  # which alone has scales
        axes.axis("off")
        axes.set_aspect("equal")
    function(axes)
    file.write_bytes(figure_bytes(figure, file.suffix[1:]))

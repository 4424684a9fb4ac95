"""`llmcalc plot params|kv|flops|shape|aspect`: pictures say what the commands of those names say."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc import units
from llmcalc.errors import InputError
from llmcalc.plots import context, shapes
from llmcalc.plots.figure import figure_bytes, new_figure
from llmcalc.plots.labels import (
    FAR_LABEL_PLACES,
    LABEL_PLACES,
    RING_LABEL_PLACES,
    axis_tick_text,
    label_points,
    spread_labels,
)
from llmcalc.plots.params import plot_params
from llmcalc.plots.pictures import aspect_ratio_picture
from llmcalc.plots.series import curve_style
from llmcalc.reports import palette
from llmcalc.studies.compare import quantities_of_model
from llmcalc.studies.shape import budget_for, build_family, find_shapes
from llmcalc.units import count
from tests.samples import spread, with_rest

SMALL = ("gpt2", "mixtral-8x7b")


def words(figure: Any) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure_bytes(figure, "svg").decode())


@pytest.mark.parametrize(
    ("asked", "suffix"),
    [
        (("params", *SMALL), "svg"),
        (("kv", "gemma3-27b"), "png"),
        (("flops", "mamba-130m"), "pdf"),
        (("shape", "llama3.2-1b", "--rows", "4"), "svg"),
        (("aspect", "--min-params", "300B"), "svg"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else one,
)
def test_every_picture_is_written(asked: tuple[str, ...], suffix: str, run: Any, tmp_path: Path) -> None:
    file = tmp_path / f"picture.{suffix}"
    code, out, err = run("plot", *asked, "-o", str(file))
    assert (code, out, err) == (0, "", "")
    assert file.read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])


def test_a_bar_has_the_shares_of_its_model() -> None:
    counts = [(name, llmcalc.params(name)) for name in SMALL]
    found = words(plot_params(counts))
    for name, one in counts:
        assert {name, count(int(one.total))} <= set(found)
        for kind, size in one.by_component.items():
            share = int(size) / int(one.total)
            assert (f"{100 * share:.0f} %" in found) or share < 0.06, kind


def test_a_curve_has_the_bytes_of_its_cache() -> None:
    models = [llmcalc.load(name) for name in ("llama3-8b", "gemma3-27b")]
    (ax,) = context.plot_cache(models).axes
    for preset, line in zip(models, ax.lines[::2], strict=True):
        for tokens, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert value == llmcalc.kv(preset, seq=int(tokens)).bytes


def test_a_curve_has_the_flops_of_a_token() -> None:
    (ax,) = context.plot_flops([llmcalc.load("llama3-8b")]).axes
    for tokens, value in zip(ax.lines[0].get_xdata(), ax.lines[0].get_ydata(), strict=True):
        one = llmcalc.flops("llama3-8b", phase="decode", context=int(tokens) - 1)
        assert value == pytest.approx(one.total, rel=1e-12)


def test_pictures_can_be_drawn_on_axes_that_are_given() -> None:
    figure = new_figure(8, 4)
    left, right = figure.subplots(1, 2)
    assert context.plot_cache([llmcalc.load("gpt2")], ax=left) is figure
    assert plot_params([("gpt2", llmcalc.params("gpt2"))], ax=right) is figure
    assert left.lines
    assert right.patches


def test_shapes_can_be_drawn_on_axes_that_are_given() -> None:
    preset = llmcalc.load("llama3.2-1b")
    shape_study = find_shapes(build_family(preset.model), budget_for(preset.model), preset.model, 4)
    whole = shapes.plot_shapes([("Llama", shape_study)])
    figure = new_figure(9, 4)
    axes = figure.subplots(2, 1)
    assert shapes.plot_shapes([("Llama", shape_study)], ax=axes) is figure
    assert figure.get_suptitle() == ""
    for own, given in zip(whole.axes, axes, strict=True):
        assert own.get_title("left") == given.get_title("left")
        assert [line.get_ydata().tolist() for line in own.lines] == [line.get_ydata().tolist() for line in given.lines]
    with pytest.raises(InputError, match="ax: 1 are given; expected 2, one for each panel"):
        shapes.plot_shapes([("Llama", shape_study)], ax=[axes[0]])


def test_proportions_can_be_drawn_on_axes_that_are_given() -> None:
    models = [
        (one, quantities_of_model(one.model, 1024)) for one in map(llmcalc.load, ("gpt2", "llama3-8b", "mixtral-8x7b"))
    ]
    whole = shapes.plot_aspect_ratios(models)
    figure = new_figure(12, 8)
    axes = figure.subplots(2, 2)
    assert shapes.plot_aspect_ratios(models, ax=axes) is figure
    assert not figure.legends
    assert axes[0][0].get_legend() is not None
    for own, given in zip(whole.axes, axes.flat, strict=True):
        assert own.get_ylabel() == given.get_ylabel()
        assert [one.get_offsets().tolist() for one in own.collections] == [
            one.get_offsets().tolist() for one in given.collections
        ]
        assert {"GPT-2 small", "Mixtral 8x7B"} <= {text.get_text() for text in given.texts}
    with pytest.raises(InputError, match="expected 4"):
        shapes.plot_aspect_ratios(models, ax=axes[0])


def test_labels_at_the_ends_of_curves_stand_apart() -> None:
    placed = spread_labels([0.5, 0.55, 0.1, 0.52], 0.1)
    assert placed == pytest.approx([0.4233, 0.6233, 0.1, 0.5233], abs=1e-4)  # the three about their mean, 0.5233
    above = spread_labels([0.99, 1.0, 0.98], 0.1)
    assert above == pytest.approx([0.9, 1.0, 0.8])
    below = sorted(spread_labels([0.0, 0.0], 0.1))
    assert below == pytest.approx([0.0, 0.1])
    assert all(b - a >= 0.0999 for a, b in pairwise(sorted(spread_labels([0.5] * 20, 0.1))))


def test_no_two_curves_look_the_same() -> None:
    styles = [curve_style(i) for i in range(24)]
    assert len({style.colour for style in styles}) == 24
    assert len({str(style.line_style) for style in styles[::8]}) == 3
    assert [style.colour.upper() for style in styles[:8]] == [colour.upper() for colour in palette.CURVE_COLOURS]


def test_many_curves_are_named_within_the_picture() -> None:
    from matplotlib.text import Text

    names = (
        "gpt2",
        "llama3-8b",
        "llama3-70b",
        "gemma3-27b",
        "mixtral-8x7b",
        "qwen3-8b",
        "qwen3-32b",
        "phi-4",
        "gemma2-9b",
    )
    figure = context.plot_cache([llmcalc.load(name) for name in names])
    (ax,) = figure.axes
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in ax.texts), key=lambda box: box.y0)  # without their lines
    assert len(boxes) == len(names)
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    assert boxes[-1].y1 <= figure.bbox.y1
    assert len({line.get_color() for line in ax.lines}) == len(names)


@pytest.mark.parametrize(
    ("value", "write", "text"),
    [
        (64 * 2**30, units.memory, "64 GiB"),
        (3 * 2**39, units.memory, "1.5 TiB"),
        (1e11, units.flops, "100 GFLOPs"),
        (5000 * 2**50, units.memory, "4.88 EiB"),
    ],
)
def test_an_axis_has_units_by_magnitude(value: float, write: Any, text: str) -> None:
    assert axis_tick_text(value, write) == text


def test_models_of_the_proportions_are_named_by_label(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "aspect.svg"
    code, out, err = run("plot", "aspect", "--min-params", "100B", "--label", "deepseek-v3", "-o", str(file))
    assert (code, out, err) == (0, "", "")
    text = file.read_text()
    assert text.count(">DeepSeek-V3<") == 4  # once in each panel
    assert ">DeepSeek-R1<" not in text
    for label, message in (
        ("gpt2", "error: --label gpt2: is not among the models drawn"),
        ("deepseek-v33", "error: --label deepseek-v33: is no preset"),
    ):
        err = run("plot", "aspect", "--min-params", "100B", "--label", label, "-o", str(file)).error
        assert err.startswith(message)


def test_names_with_a_line_stand_in_a_crowd() -> None:
    figure = new_figure(6, 4)
    ax = figure.subplots()
    points = [(i / 20, j / 20) for i in range(20) for j in range(20) if 6 < i < 14 and 6 < j < 14]
    ax.scatter(*zip(*points, strict=True), s=16)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    figure.draw_without_rendering()
    middle = [(0.5, 0.5), (0.45, 0.5)]
    assert label_points(ax, middle, ["a model", "another"], points, radius_or_radii=2) == []
    texts = label_points(
        ax, middle, ["a model", "another"], points, (*LABEL_PLACES, *RING_LABEL_PLACES), radius_or_radii=2
    )
    assert len(texts) == 2
    for text in texts:
        box = text.get_window_extent()
        assert not [point for point in points if box.contains(*ax.transData.transform(point))]


def unit_square() -> tuple[Any, Any]:
    """A drawn figure whose two axes reach from 0 to 1."""
    figure = new_figure(6, 4)
    ax = figure.subplots()
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    figure.draw_without_rendering()
    return figure, ax


def test_no_name_touches_a_large_point() -> None:
    """A name stood on the point beside it, and on the edge of its own, in the picture of a roofline."""
    figure, ax = unit_square()
    points, radii = [(0.3, 0.5), (0.5, 0.5)], [4.0, 20.0]
    texts = label_points(ax, points, ["a kernel with a long name", "core"], radius_or_radii=radii)
    assert len(texts) == 2
    for text in texts:
        box = text.get_window_extent()
        for point, radius in zip(points, radii, strict=True):
            (x, y), pixels = ax.transData.transform(point), radius * figure.dpi / 72
            assert max(box.x0 - x, x - box.x1, box.y0 - y, y - box.y1) >= pixels - 1


def test_no_line_to_a_point_crosses_a_name() -> None:
    """A line led through the name of the point beside it, and into its own, in the picture of a roofline."""
    figure, ax = unit_square()
    points = [(0.3 + i / 20, 0.5) for i in range(6)]
    texts = label_points(
        ax, points, [f"the kernel number {i}" for i in range(6)], (), (*LABEL_PLACES, *FAR_LABEL_PLACES)
    )
    lines = [text for text in ax.texts if text not in texts]
    assert lines
    for line in lines:
        start, pixels = ax.transData.transform(line.xy), figure.dpi / 72
        for share in range(1, 20):
            x, y = (corner + share / 20 * shift * pixels for corner, shift in zip(start, line.xyann, strict=True))
            assert not any(text.get_window_extent().contains(x, y) for text in texts)


def test_names_stay_inside_the_frame_at_every_resolution() -> None:
    """A name began left of the axis in the PNG of all presets: another resolution writes it wider."""
    figure = aspect_ratio_picture()
    for dpi in (100, 300):
        figure.set_dpi(dpi)
        figure.draw_without_rendering()
        for ax in figure.axes:
            frame = ax.get_window_extent()
            for text in ax.texts:
                box = text.get_window_extent()
                assert frame.x0 <= box.x0, text.get_text()
                assert box.x1 <= frame.x1, text.get_text()


def test_no_name_covers_another_one_or_a_point() -> None:
    figure = new_figure(6, 4)
    ax = figure.subplots()
    points = [(i % 7 / 7, i // 7 / 7 + (i % 3) / 50) for i in range(49)]
    ax.scatter(*zip(*points, strict=True))
    figure.draw_without_rendering()
    texts = label_points(ax, points, [f"model {i}" for i in range(49)])
    assert 5 < len(texts) <= 49
    boxes = [text.get_window_extent() for text in texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    for text, box in zip(texts, boxes, strict=True):
        inside = [point for point in points if box.contains(*ax.transData.transform(point))]
        assert all(point == tuple(text.xy) for point in inside)


def test_every_component_has_a_colour_of_its_own() -> None:
    assert len({*palette.COMPONENT_COLOURS.values(), palette.OTHER_COLOUR}) == len(palette.COMPONENT_COLOURS) + 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("kv", "bert-base", "-o", "a.svg"), "bert-base: an encoder-only model keeps no KV cache"),
        (("shape", "t5-small", "-o", "a.svg"), "t5-small"),
        (("params", "gpt2", "-o", "a.jpg"), "its suffix names no format"),
        (("aspect",), "--output"),
        (("flops", "no-such-model", "-o", "a.svg"), "no preset"),
    ],
)
def test_bad_words_exit_with_2(
    asked: tuple[str, ...], message: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("plot", *asked).error
    assert list(tmp_path.iterdir()) == []


PAPER: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "params": (("gpt2", "llama3-8b", "gemma3-27b"), {}),
    "kv": (("llama3-8b", "gemma3-27b"), {}),
    "flops": (("llama3-8b", "gemma3-27b"), {}),
    "shape": (("llama3-8b",), {"rows": 6}),
    "schedule": ((), {"pp": 4, "num_microbatches": 8, "vpp": 2}),
    "memory": (("gpt2",), {"phase": "training", "hardware": "24GiB"}),
    "time": (("deepseek-v2-lite",), {"hardware": "h100", "phase": "training"}),
    "roofline": (("llama3-8b",), {"hardware": "h100"}),
    "serve": (("llama3-8b",), {"hardware": "h100", "input": 4096, "output_tokens": 1024, "tp": 1, "tpot": "30ms"}),
}


PAPER_CASES = {f"{picture}-{columns}": (picture, columns) for picture in PAPER for columns in (1, 2)}
IN_TWO_COLUMNS = ("params-2", "schedule-2")
"""Pictures in two columns, where texts have more room than in one: a picture of bars, and one of cells."""


@pytest.mark.parametrize(
    ("picture", "columns"),
    spread(with_rest(PAPER_CASES, [name for name in PAPER_CASES if name.endswith("-1") or name in IN_TWO_COLUMNS])),
)
def test_a_picture_for_a_paper_has_the_width_of_its_columns_and_holds_its_texts(picture: str, columns: int) -> None:
    from matplotlib.legend import Legend
    from matplotlib.text import Text

    models, options = PAPER[picture]
    figure: Any = llmcalc.plot(picture, *models, columns=columns, **options)  # type: ignore[arg-type]
    assert figure.get_figwidth() == {1: 4.5, 2: 9.3}[columns]
    figure.draw_without_rendering()
    ticks = {
        label for ax in figure.axes for label in (*ax.get_xticklabels(which="both"), *ax.get_yticklabels(which="both"))
    }
    for text in set(figure.findobj(Text)) - ticks:  # ticks outside of an axis are not drawn
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            assert figure.bbox.x0 - 2 <= box.x0, text.get_text()
            assert box.x1 <= figure.bbox.x1 + 2, text.get_text()
    written = [text for ax in figure.axes for text in ax.texts]
    for box in (legend.get_window_extent() for legend in figure.findobj(Legend)):
        assert not [text.get_text() for text in written if box.overlaps(text.get_window_extent())]


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(InputError, match="--columns: 3 is too large"):
        llmcalc.plot("params", "gpt2", columns=3)  # type: ignore[arg-type]


def test_columns_of_a_paper_hold_for_one_command_alone(run: Any, tmp_path: Path) -> None:
    widths = []
    for options in (("--columns", "1"), ()):
        file = tmp_path / "params.svg"
        assert run("plot", "params", "gpt2", *options, "-o", str(file)).code == 0
        widths.append(re.findall(r'<svg [^>]*?width="([\d.]+)pt"', file.read_text()))
    assert widths == [["324"], ["648"]]

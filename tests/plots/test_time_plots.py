"""`llmcalc plot time|serve|roofline`: pictures say what `time` and `serve` say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.plots import breakdown, roofline, servers
from llmcalc.plots.figure import figure_bytes
from llmcalc.reports.serve import layout_text
from llmcalc.reports.time_estimate import SECONDS_BY_UNIT, duration_unit
from llmcalc.studies.server import LatencyLimits

pytest.importorskip("matplotlib")

SERVED = {"hardware": "h100", "input": 2048, "output": 256}


def words(figure: Any) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure_bytes(figure, "svg").decode())


@pytest.mark.parametrize(
    ("line", "suffix"),
    [
        ("time llama3-8b --hardware h100 --devices 8 --fsdp 8 --seq 2k", "svg"),
        ("time llama3-8b --hardware h100 --phase prefill --seq 2k --server --by-node 1", "pdf"),
        ("roofline mixtral-8x7b --hardware h200 --users 8 --seq 2k", "png"),
        ("serve llama3-8b --hardware h100 --input 2k --output 256", "svg"),
    ],
)
def test_every_picture_is_written(line: str, suffix: str, run: Any, tmp_path: Path) -> None:
    file = tmp_path / f"picture.{suffix}"
    code, out, err = run("plot", *line.split(), "-o", str(file))
    assert (code, out, err) == (0, "", "")
    assert file.read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])


@pytest.mark.parametrize(
    "options",
    [{"phase": "decode", "seq": 2048, "users": 8}, {"phase": "training", "seq": 2048, "devices": 4, "tp": 2, "dp": 2}],
    ids=lambda options: options["phase"],
)
def test_bars_of_nodes_add_up_to_the_estimate(options: dict[str, Any]) -> None:
    answer = llmcalc.time("llama3-8b", "h100", **options).result
    figure = llmcalc.plot("time", "llama3-8b", hardware="h100", **options)
    parts_axes, node_axes = figure.axes
    unit = SECONDS_BY_UNIT[duration_unit(answer.seconds)]
    of_estimate = [bar.get_width() * unit for bar in parts_axes.patches if bar.get_y() < 0]
    assert sum(of_estimate) == pytest.approx(answer.seconds, rel=1e-9)
    assert of_estimate == pytest.approx(list(answer.seconds_by_bound.values()), abs=1e-12)
    of_parts = [bar.get_width() * unit for bar in parts_axes.patches if bar.get_y() > 0]
    assert sum(of_parts) == pytest.approx(answer.seconds, rel=1e-9)
    whisker = [float(value) * unit for value in parts_axes.lines[0].get_xdata()]
    assert whisker == pytest.approx([float(answer.time_range.low), float(answer.time_range.high)])
    node_unit = SECONDS_BY_UNIT[node_axes.get_xlabel()]
    assert sum(bar.get_width() for bar in node_axes.patches) * node_unit == pytest.approx(answer.seconds, rel=1e-9)
    assert len(node_axes.get_yticks()) <= breakdown.MAX_NODES


def test_the_products_of_a_roofline_have_the_flops_of_the_count() -> None:
    for phase, options in (("prefill", {"seq": 512}), ("decode", {"seq": 512, "users": 4})):
        run = llmcalc.time("llama3-8b", "h100", phase, **options).result
        assert sum(point.flops for point in run.traffic().values()) == run.model_flops("causal")


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3", "mamba-130m", "mixtral-8x7b", "gpt-oss-20b"])
def test_every_point_is_under_the_roof(model: str) -> None:
    for phase in ("prefill", "decode"):
        for users in (1, 64):
            run = llmcalc.time(model, "h100", phase, seq=1024, users=users).result
            for path, point in run.traffic().items():
                roof = min(run.peak_flops, point.intensity * run.device.memory_bandwidth)
                assert point.flops_per_second <= roof * (1 + 1e-9), (phase, users, path)


def test_bytes_of_a_product_are_its_weight_and_its_rows() -> None:
    run = llmcalc.time("llama3-8b", "h100", "decode", seq=1024, users=4).result
    weight, rows = 4096 * 14336, 4
    assert run.traffic()["layers.mlp.up_proj"].bytes == 32 * 2 * (weight + rows * (4096 + 14336))
    attention = 32 * 2 * rows * (2 * 8 * 128 * 1025 + 32 * 2 * 128)
    assert run.traffic()["layers.self_attn.core"].bytes == attention
    prompt = llmcalc.time("llama3-8b", "h100", "prefill", seq=1024).result
    assert prompt.traffic()["layers.self_attn.core"].bytes == 32 * 2 * 1024 * (2 * 32 + 2 * 8) * 128


def test_a_roofline_has_a_pass_of_each_phase() -> None:
    drawn = words(llmcalc.plot("roofline", "llama3-8b", hardware="h100", seq=1024, users=8))
    assert any(text.startswith("prompts of 8 sequences of 1,024 tokens on 1 × H100 SXM; points: ") for text in drawn)
    assert any(text.startswith("decoding of 8 sequences after 1,024 tokens") for text in drawn)
    assert "self_attn.core" in drawn
    for model in ("bert-base", "qwen3-embedding-0.6b"):
        prompt_words = words(llmcalc.plot("roofline", model, hardware="h100", seq=128))
        assert not any(text.startswith("decoding") for text in prompt_words)


def test_points_that_touch_have_one_name() -> None:
    run = llmcalc.time("llama3-8b", "h100", "decode", seq=1024, users=8).result
    drawn = words(roofline.plot_roofline("Llama", [(run, "a token")]))
    assert any(re.fullmatch(r"mlp\.\w+ and \d+ more", text) for text in drawn)


def test_the_front_and_the_load_are_those_of_the_answer() -> None:
    answer = llmcalc.serve("llama3-8b", **SERVED, tpot="20ms").result
    front_axes, load_axes = llmcalc.plot(
        "serve", "llama3-8b", hardware="h100", input=2048, output_tokens=256, tpot="20ms"
    ).axes
    points = {line.get_label(): line for line in front_axes.lines}
    x, y = points["Pareto front"].get_data()
    assert len(x) == len(answer.pareto_front)
    assert list(x) == sorted(x)
    assert list(y) == sorted(y)
    for index in {index for index, _ in answer.pareto_front}:
        curve = points[layout_text(answer.servers[index])]
        assert list(curve.get_ydata()) == [point.tokens_per_second_per_device for point in answer.load_curves[index]]
    chosen = answer.chosen_server
    (estimate,) = (line for line in load_axes.lines if line.get_label() == "estimate")
    assert list(estimate.get_xdata()) == [point.concurrency for point in answer.load_curves[chosen.server_index]]
    assert load_axes.collections[0].get_label() == "range"
    assert [line.get_ydata()[0] for line in load_axes.lines if line.get_label() == "limit of TPOT"] == [20.0]


def test_without_a_server_that_keeps_the_limits_the_best_one_is_drawn() -> None:
    answer = llmcalc.serve("llama3-8b", **SERVED, devices=1, tpot="1ms").result
    assert answer.chosen_server is None
    figure = servers.plot_servers("title", "aside", answer, LatencyLimits(tpot=1e-3))
    assert servers.shown_server_index(answer) == answer.pareto_front[-1][0]
    assert not any("chosen" in str(line.get_label()) for line in figure.axes[0].lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("roofline gpt2 --hardware h100 --phase training", "--phase training: has no roofline"),
        ("roofline bert-base --hardware h100 --phase decode", "bert-base: --phase decode: "),
        ("serve llama3-70b --hardware l4 --input 2k --output 256 --devices 1", "no server fits"),
        ("time gpt2", "--hardware: missing"),
        ("time gpt2 --hardware h100 --by-node 9", "--by-node"),
    ],
)
def test_bad_input_is_one_line_and_writes_no_file(line: str, message: str, run: Any, tmp_path: Path) -> None:
    assert message in run("plot", *line.split(), "-o", str(tmp_path / "x.svg")).error
    assert not (tmp_path / "x.svg").exists()

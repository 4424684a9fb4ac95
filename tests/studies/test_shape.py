"""`llmcalc shape`: one family with three equal evaluations; budgets and ratios are kept; every option has an effect; no
NumPy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import llmcalc
from llmcalc.cli.main import app
from llmcalc.components.layers.gemma4_layer import Gemma4Layer
from llmcalc.components.layers.hybrid_block import HybridBlock
from llmcalc.components.layers.shortcut_layer import ShortcutLayer
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.moe import MoE
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.errors import InputError, MissingExtra
from llmcalc.model import ModelSpec
from llmcalc.studies.literature import compare_with_studies, critical_depth, kaplan_range, scaled_optimum
from llmcalc.studies.shape import (
    FEWEST_ALLOWED_WIDTHS,
    HEAD_SIZES,
    LEAST_ASPECT,
    MAX_ASPECT,
    SMALL_BUDGET_PARAMETERS,
    CostBudget,
    ShapeFamily,
    allowed_widths,
    budget_for,
    build_family,
    find_shapes,
    nearest_depth,
    parse_ratio,
    refine_step,
    search_shapes,
    spread_evenly,
    standard_preset,
)
from llmcalc.studies.sweep import sweep
from tests.builders import run_config
from tests.contracts.test_parts import decoder
from tests.samples import in_one_test

STANDARD = llmcalc.load("llama3-8b").model
DECODERS = ["llama3-8b", "gpt2", "mixtral-8x7b", "gemma2-9b", "gpt-oss-20b", "falcon-7b", "qwen2.5-72b"]


def run(*args: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["shape", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def document(*args: str) -> dict[str, Any]:
    found = json.loads(run(*args, "--format", "json"))
    assert isinstance(found, dict)
    return found


def members(name: str, **changes: Any) -> ShapeFamily:
    return build_family(llmcalc.load(name).model, **changes)


def grid(of: ShapeFamily) -> tuple[Any, Any]:
    widths = of.width_step * np.array([1, 2, 3, 5, 8, 13], dtype=np.int64)
    depths = of.least_depth + np.array([0, 1, 2, 7, 30, 61], dtype=np.int64)
    h, layers = np.meshgrid(widths, depths)
    return h, layers


@pytest.mark.parametrize("name", DECODERS)
def test_arrays_count_what_ints_count(name: str) -> None:
    """Every element of the array equals the count of the spec with ints, by the same closed form."""
    of = members(name)
    h, layers = grid(of)
    arrays = of.scaled_to(h, layers)
    workload = run_config(batch=1, seq=300, phase="training")
    totals, steps = params(arrays).total, flops(arrays, workload).total
    held = kv(arrays).tree
    assert held is not None
    assert totals.shape == h.shape
    for i, j in np.ndindex(h.shape):
        one = of.scaled_to(int(h[i, j]), int(layers[i, j]))
        assert totals[i, j] == params(one).total
        assert steps[i, j] == flops(one, workload).total


@pytest.mark.parametrize("name", DECODERS)
def test_every_member_is_a_model_that_the_spec_accepts(name: str) -> None:
    of = members(name)
    for h in (of.width_step, 3 * of.width_step, 8 * of.width_step):
        spec = of.scaled_to(h, of.least_depth + 3)
        assert params(ModelSpec.model_validate(spec.model_dump())).total == params(spec).total


@pytest.mark.parametrize("name", DECODERS)
def test_a_family_holds_its_own_model(name: str) -> None:
    preset = llmcalc.load(name)
    own = preset.model
    again = members(name).scaled_to(own.hidden_size, own.main.num_hidden_layers)
    assert params(again).total == params(own).total
    workload = run_config(batch=2, seq=77, phase="training")
    assert flops(again, workload).total == flops(own, workload).total
    assert kv(again).bytes_per_token == kv(own).bytes_per_token


@pytest.mark.parametrize("name", DECODERS)
def test_the_budget_is_kept_and_the_model_marked(name: str) -> None:
    own = llmcalc.load(name).model
    budget = budget_for(own)
    assert budget == CostBudget("parameters", params(own).total)
    shape_study = find_shapes(build_family(own), budget, own)
    assert 2 <= len(shape_study.shapes) <= 12
    assert all(abs(s.parameters / budget.value - 1) <= 0.02 for s in shape_study.shapes)
    assert all(s.cost_difference == s.parameters / budget.value - 1 for s in shape_study.shapes)
    ratios = [s.stack.aspect_ratio for s in shape_study.shapes]
    assert ratios == sorted(ratios)
    (marked,) = [s for s in shape_study.shapes if s.is_target]
    assert (marked.stack.hidden_size, marked.stack.num_hidden_layers) == (own.hidden_size, own.main.num_hidden_layers)
    assert marked.cost_difference == 0


def test_head_sizes_divide() -> None:
    for shape in find_shapes(members("gpt2"), CostBudget("parameters", 124_000_000), row_count=256).shapes:
        h = shape.stack.hidden_size
        assert shape.head_sizes == tuple(d for d in (64, 96, 128, 256) if h % d == 0)
        assert {d for d in HEAD_SIZES if h % d} == {*HEAD_SIZES} - {*shape.head_sizes}


def test_proportions_are_kept() -> None:
    for shape in find_shapes(members("llama3-8b"), CostBudget("parameters", 8_000_000_000)).shapes:
        s = shape.stack
        assert (s.feed_forward_ratio, s.head_dim, s.kv_ratio, s.head_ratio) == (3.5, 128, 0.25, 1.0)
        assert shape.spec.vocab_size == 128256


def test_one_kv_head_stays_one() -> None:
    assert {
        s.stack.num_key_value_heads
        for s in find_shapes(members("falcon-7b"), CostBudget("parameters", 7_000_000_000)).shapes
    } == {1}


def test_each_override_acts() -> None:
    budget = CostBudget("parameters", 8_000_000_000)
    shape = find_shapes(members("llama3-8b", head_dim=64), budget).shapes[0].stack
    assert (shape.head_dim, shape.head_ratio, shape.kv_ratio) == (64, 1.0, 0.25)
    assert find_shapes(members("llama3-8b", kv_ratio=Fraction(1, 8)), budget).shapes[0].stack.kv_ratio == 0.125
    assert find_shapes(members("llama3-8b", ffn_ratio=Fraction(4)), budget).shapes[0].stack.feed_forward_ratio == 4
    for third in (shape.stack for shape in find_shapes(members("llama3-8b", ffn_ratio=Fraction(8, 3)), budget).shapes):
        assert third.feed_forward_width is not None
        assert third.feed_forward_width % 64 == 0
        assert abs(third.feed_forward_width - third.hidden_size * 8 / 3) <= 32  # the nearest multiple of 64
    small = find_shapes(members("llama3-8b", vocab_size=32000), budget).shapes[0]
    assert small.spec.vocab_size == 32000
    assert small.parameters == params(small.spec).total


def test_experts_widen_and_keep_their_number() -> None:
    of = members("mixtral-8x7b")
    mixing = of.scaled_to(2048, 4).main.block.feed_forward
    assert isinstance(mixing, MoE)
    assert (mixing.num_experts, mixing.num_experts_per_tok, mixing.expert.intermediate_size) == (8, 2, 7168)


@pytest.mark.parametrize("layer", [Gemma4Layer.examples()[1], ShortcutLayer.examples()[1]], ids=["gemma4", "shortcut"])
def test_a_dense_network_beside_the_experts_widens_too(layer: Any) -> None:
    """At twice the hidden size every FFN has twice the width."""
    wide = build_family(decoder(block=layer)).scaled_to(48, 2)
    found, own = wide.main.block, layer
    assert found.dense.intermediate_size == 2 * own.dense.intermediate_size
    assert found.feed_forward.expert.intermediate_size == 2 * own.feed_forward.expert.intermediate_size
    assert ModelSpec.model_validate(wide.model_dump()) == wide


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (decoder(block=HybridBlock.examples()[0]), "a state-space part beside attention"),
        (decoder(feed_forward=next(e for e in MoE.examples() if e.latent is not None)), "no latent"),
        (
            decoder(attention=next(e for e in Attention.examples() if e.block_indexer is not None)),
            "without block_indexer",
        ),
    ],
)
def test_what_does_not_scale_is_refused(spec: ModelSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_family(spec)


def test_training_flops_as_the_budget() -> None:
    """With D tokens: D × FLOPs per token. Without: 20 tokens per parameter."""
    budget = budget_for(None, train_flops=10**21, tokens=10**11, seq=512)
    for shape in find_shapes(build_family(STANDARD, vocab_size=32000), budget).shapes:
        exact = 10**11 * flops(shape.spec, run_config(batch=1, seq=512, phase="training")).total // 512
        assert (shape.train_flops, shape.tokens) == (exact, 10**11)
        assert abs(exact / 10**21 - 1) <= 0.02
    optimal = find_shapes(build_family(STANDARD, vocab_size=32000), budget_for(None, train_flops=10**21)).shapes
    assert all(s.tokens == 20 * s.parameters for s in optimal)


def test_a_budget_past_64_bits_is_counted_in_ints() -> None:
    shape_study = find_shapes(build_family(STANDARD), CostBudget("train_flops", 10**26), row_count=3)
    assert shape_study.shapes
    assert all(isinstance(s.train_flops, int) and s.train_flops > 2**63 for s in shape_study.shapes)
    huge = find_shapes(build_family(STANDARD), CostBudget("parameters", 10**16), row_count=3)
    assert all(abs(s.parameters / 10**16 - 1) <= 0.02 for s in huge.shapes)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("gpt2", CostBudget("parameters", 30_000_000)),
        pytest.param("gpt2", CostBudget("parameters", 300_000_000), marks=pytest.mark.exhaustive),
        pytest.param("gemma2-9b", CostBudget("parameters", 2_000_000_000), marks=pytest.mark.exhaustive),
        pytest.param("gpt2", CostBudget("train_flops", 10**17), marks=pytest.mark.exhaustive),
        pytest.param("gpt2", CostBudget("train_flops", 10**17, tokens=10**9), marks=pytest.mark.exhaustive),
    ],
)
def test_search_finds_what_counting_every_shape_finds(name: str, budget: CostBudget) -> None:
    """Counts every hidden size beyond the largest allowed one, and every depth with an h/L in range."""
    of = members(name)
    found, counted = search_shapes(of, budget, 0.02)
    every, widest = {}, found[-1][0] + 3 * of.width_step
    for h in range(of.width_step, widest + 1, of.width_step):
        depths = range(max(of.least_depth, -(-h // MAX_ASPECT)), min(h // LEAST_ASPECT, 200) + 1)
        off = {n: abs(budget.cost_of(of.scaled_to(h, n)) - budget.value) for n in depths}
        if off and min(off.values()) <= 0.02 * budget.value:
            every[h] = min(off, key=lambda n, off=off: (off[n], n))  # type: ignore[misc]
    assert dict(found) == every
    assert counted < 8 * len(allowed_widths(of, budget, 0.02)) + 40


@pytest.mark.parametrize("tolerance", [0.02, 0.4])
def test_the_allowed_widths_are_those_between_the_deepest_and_the_shallowest(tolerance: float) -> None:
    of, value = members("gpt2"), 100_000_000
    counts = {h: [params(of.scaled_to(h, n)).total for n in (h // 8, -(-h // 1024))] for h in range(64, 4096, 64)}
    least, most = value * (1 - tolerance), value * (1 + tolerance)
    expected = [h for h, (deepest, shallowest) in counts.items() if deepest >= least and shallowest <= most]
    assert list(allowed_widths(of, CostBudget("parameters", value), tolerance)) == expected


@pytest.mark.parametrize("unit", [1, 10**30])
def test_the_nearest_depth_of_any_growing_cost(unit: int) -> None:
    """Every cost that grows by 0, 1 or 3 at each of six depths, every value; exactly, also past 2^63."""
    for steps in product((0, 1, 3), repeat=6):
        costs = {5 + i: 1 + unit * cost for i, cost in enumerate(accumulate(steps))}
        for value in (1 + unit * half // 2 for half in range(2 * sum(steps) + 3)):
            found = nearest_depth(costs.__getitem__, value, 5, 10)
            assert abs(costs[found] - value) == min(abs(cost - value) for cost in costs.values())


def test_a_nearest_depth_takes_few_counts() -> None:
    """A linear cost takes both ends, one interpolation and its neighbour; the steepest curve at most two bisections."""
    for cost, most in ((lambda n: 7 + 3 * n, 5), (lambda n: n**8, 40)):
        asked: list[int] = []

        def count(n: int, cost: Any = cost, asked: list[int] = asked) -> int:
            asked.append(n)
            return int(cost(n))

        assert nearest_depth(count, cost(777), 1, 65536) == 777
        assert len(asked) <= most


@pytest.mark.parametrize("budget", ["10M", "30M", "100M", "350M", "1B", "3B", "8B", "70B", "1T"])
def test_a_budget_alone_gives_shapes_whose_count_is_exact(budget: str) -> None:
    """Each row is built again from its printed sizes and counted by hand.

    Heads of d, k of them for keys and values, three matrices of a gated FFN, two norms per layer and a final norm; an
    untied head.
    """
    found = document("--params", budget)
    value, v = found["budget"]["value"], found["proportions"]["vocab_size"]
    tied = found["proportions"]["tie_word_embeddings"]
    assert len(found["shapes"]) >= 2
    for row in found["shapes"]:
        h, layers, width = row["hidden_size"], row["num_hidden_layers"], row["feed_forward_width"]
        a, k, d = row["num_attention_heads"], row["num_key_value_heads"], row["head_dim"]
        assert all(isinstance(n, int) for n in (h, layers, width, a, k, d))
        assert (a * d, a % k) == (h, 0)
        by_hand = layers * (2 * h * a * d + 2 * h * k * d + 3 * h * width + 2 * h) + h + v * h * (1 if tied else 2)
        assert row["parameters"] == by_hand
        block = STANDARD.main.block.model_dump()
        block["attention"] |= {"num_attention_heads": a, "num_key_value_heads": k, "head_dim": d}
        block["feed_forward"]["intermediate_size"] = width
        decoder = {"num_hidden_layers": layers, "block": block, "final_norm": {"type": "rmsnorm"}}
        again = {"vocab_size": v, "hidden_size": h, "tie_word_embeddings": tied, "decoder": decoder}
        assert params(ModelSpec.model_validate(again)).total == by_hand
        assert row["budget_difference"] == by_hand / value - 1
        assert abs(by_hand - value) <= 0.02 * value


def test_the_standard_depends_on_the_size_of_the_budget() -> None:
    assert [standard_preset(n) for n in (10**7, SMALL_BUDGET_PARAMETERS - 1, SMALL_BUDGET_PARAMETERS, 10**12)] == [
        "smollm2-135m"
    ] * 2 + ["llama3-8b"] * 2
    assert standard_preset() == "llama3-8b"
    # C = 6ND: 500 M parameters on 20 tokens per parameter are 120 × (5·10^8)² = 3·10^19 FLOPs
    assert [standard_preset(None, c) for c in (3 * 10**19 - 10**12, 3 * 10**19)] == ["smollm2-135m", "llama3-8b"]
    assert [
        standard_preset(None, c, 10**9)
        for c in (6 * SMALL_BUDGET_PARAMETERS * 10**9 - 6 * 10**9, 6 * SMALL_BUDGET_PARAMETERS * 10**9)
    ] == [
        "smollm2-135m",
        "llama3-8b",
    ]
    assert [document("--params", n)["ratios_of"] for n in ("499M", "500M")] == ["smollm2-135m", "llama3-8b"]
    small = document("--params", "135M")
    assert (small["proportions"]["vocab_size"], small["proportions"]["kv_ratio"]) == (49152, 1 / 3)
    own = llmcalc.load("smollm2-135m").model
    assert params(build_family(own).scaled_to(576, 30)).total == 134_515_008  # as published


def test_a_small_budget_has_finer_steps() -> None:
    """Head sizes are halved until the budget allows six hidden sizes, or down to 16; an option holds them fixed."""
    of, wide, small = members("llama3-8b"), CostBudget("parameters", 8 * 10**9), CostBudget("parameters", 10**9)
    assert refine_step(of, wide, 0.02, keep_heads=False) == of
    finer = refine_step(of, small, 0.02, keep_heads=False)
    assert (of.width_step, finer.width_step, finer.head_divisor) == (512, 256, 2)
    assert len(allowed_widths(of, small, 0.02)) < FEWEST_ALLOWED_WIDTHS <= len(allowed_widths(finer, small, 0.02))
    assert refine_step(of, small, 0.02, keep_heads=True) == of  # 512 is a multiple of 64: no smaller unit helps
    fixed = document("--params", "1B", "--head-dim", "128")
    assert {s["head_dim"] for s in fixed["shapes"]} == {128}
    assert fixed["proportions"]["hidden_size_step"] == 512
    assert len(fixed["shapes"]) < len(document("--params", "1B")["shapes"])
    assert "head_dim is 64 instead of 128" in run("--params", "1B")
    assert "instead of" not in run("--params", "8B", "--notes")
    assert members("gpt-j-6b").finer_family(keep_heads=True) is None
    rotary = members("gpt-j-6b").finer_family(keep_heads=False)  # RoPE has 64 of 256 dimensions: two halvings
    assert rotary is not None
    second = rotary.finer_family(keep_heads=False)
    assert second is not None
    assert (rotary.width_step, second.width_step, second.finer_family(keep_heads=False)) == (128, 64, None)


def test_a_models_own_budget_keeps_its_heads() -> None:
    found = document("llama3.2-1b")
    assert found["proportions"]["head_dim"] == 64
    assert sum(s["target"] for s in found["shapes"]) == 1


def test_tie_vocab_and_set_act_on_a_budget_and_on_a_target() -> None:
    for target in ([], ["llama3-8b"]):
        plain = document(*target, "--params", "1B")
        tied = document(*target, "--params", "1B", "--tie")
        small = document(*target, "--params", "1B", "--vocab", "32000")
        changed = document(*target, "--params", "1B", "--set", "tie_word_embeddings=true", "--set", "vocab_size=32000")
        assert [one["proportions"]["tie_word_embeddings"] for one in (plain, tied, small, changed)] == [
            False,
            True,
            False,
            True,
        ]
        assert [one["proportions"]["vocab_size"] for one in (plain, tied, small, changed)] == [128256] * 2 + [32000] * 2
        both = document(*target, "--params", "1B", "--vocab", "32000", "--tie")
        assert both["shapes"] == changed["shapes"]
        assert tied["shapes"] != plain["shapes"] != small["shapes"]
    untied = document("--params", "100M", "--no-tie", "--tolerance", "5")
    assert untied["proportions"]["tie_word_embeddings"] is False
    biased = document("--params", "1B", "--set", "q_bias=true", "--rows", "3")["shapes"][0]
    h, layers = biased["hidden_size"], biased["num_hidden_layers"]
    plain_spec = refine_step(build_family(STANDARD), CostBudget("parameters", 10**9), 0.02, False).scaled_to(h, layers)
    assert biased["parameters"] == params(plain_spec).total + layers * h  # one bias for each of a·d = h outputs


def test_another_vocabulary_keeps_the_models_own_budget() -> None:
    """--vocab and --tie change the shapes, --set changes the model itself."""
    own = params(llmcalc.load("gpt2").model).total
    assert document("gpt2", "--vocab", "20000")["budget"]["value"] == own
    assert document("gpt2", "--no-tie")["budget"]["value"] == own
    assert document("gpt2", "--set", "vocab_size=20000")["budget"]["value"] == own - (50257 - 20000) * 768


def test_literature_is_printed_where_it_is_asked_for() -> None:
    plain, with_studies = run("--params", "8B", "--notes"), run("--params", "8B", "--literature")
    assert "Kaplan" not in plain
    assert "--literature adds" in plain
    assert "--literature adds" not in with_studies
    assert with_studies.startswith(plain.partition("  --literature")[0])
    data, with_citations = document("--params", "8B"), document("--params", "8B", "--literature")
    assert len(with_citations.pop("notes")) > len(data.pop("notes"))
    assert data == with_citations
    assert len(data["literature"]) == 4


@pytest.mark.parametrize(
    ("args", "tokens"),
    [
        (("llama3-8b",), "160.61 B"),  # 20 × 8,030,261,248, the model's, not the 8.05 B of its deepest shape
        (("--params", "8B"), "160.00 B"),
        (("llama3-8b", "--params", "16B"), "320.00 B"),
        (("mixtral-8x7b",), "257.60 B"),  # 20 × 12,879,925,248 active
    ],
)
def test_tokens_are_those_of_the_model_or_of_the_budget(args: tuple[str, ...], tokens: str) -> None:
    text = " ".join(run(*args, "--literature").split())
    assert f"20 tokens per parameter are {tokens} tokens here" in text


def test_words() -> None:
    text = " ".join(run("--params", "1B", "--notes").split())
    assert "same ratios as Llama 3 8B" in text
    assert "held fixed: d_ff = 3.50 h" in text
    assert "so that head counts stay integers" in text


def test_spread_keeps_ends_and_the_model() -> None:
    sizes = [(64 * i, 500 // i) for i in range(1, 60)]
    chosen = spread_evenly(sizes, 5, required_size=(640, 50))
    assert len(chosen) == 5
    assert (640, 50) in chosen
    assert sizes[0] in chosen
    assert spread_evenly(sizes, 5)[-1] == sizes[-1]
    assert spread_evenly(sizes[:3], 5) == sizes[:3]


def test_rows_and_tolerance_act() -> None:
    assert len(document("gpt2", "--rows", "4")["shapes"]) == 4
    tight = document("llama3-8b", "--tolerance", "0.3")
    assert all(abs(s["budget_difference"]) <= 0.003 for s in tight["shapes"])
    assert len(tight["shapes"]) < len(document("llama3-8b")["shapes"])


def test_the_command_line_acts() -> None:
    plain = document("--params", "8e9")
    assert "model" not in plain
    assert plain["budget"]["value"] == 8_000_000_000
    changed = document(
        "--params",
        "8B",
        "--vocab",
        "32000",
        "--head-dim",
        "64",
        "--kv-ratio",
        "1/8",
        "--ffn-ratio",
        "4",
        "--dtype",
        "fp8",
        "--seq",
        "100",
    )
    assert changed["proportions"] == {
        "feed_forward_ratio": 4.0,
        "head_dim": 64,
        "head_ratio": 1.0,
        "kv_ratio": 0.125,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "hidden_size_step": 512,
    }
    first = changed["shapes"][0]
    assert first["kv_bytes_per_token"] == first["num_hidden_layers"] * 2 * first["num_key_value_heads"] * 64
    same_shape = find_shapes(
        build_family(STANDARD, 64, Fraction(1, 8), Fraction(4), 32000), CostBudget("parameters", 8_000_000_000), seq=100
    ).shapes[0]
    assert (
        first["flops_per_token"]
        == same_shape.forward_flops_per_token
        == flops(same_shape.spec, run_config(batch=1, seq=100)).total / 100
    )
    target = document("llama3-8b", "--set", "tie_word_embeddings=true", "--params", "7.5B")
    assert target["proportions"]["tie_word_embeddings"] is True
    assert [f["key"] for f in target["literature"]] == ["kaplan", "chinchilla", "tay", "depth_delusion"]
    assert all(f["source"] and f["arxiv"] and f["limits"] for f in target["literature"])


def test_the_table_fits_80_columns_and_names_its_sources() -> None:
    for args in (["llama3-8b"], ["llama3.1-405b"], ["--flops", "1e24"], ["gpt2", "--rows", "30"]):
        text = run(*args, "--literature")
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
        for number in ("2001.08361", "2203.15556", "2109.10686", "2601.20994"):
            assert number in text.replace("\n  ", "")
        assert "Limits:" in text
    assert "→" in run("llama3-8b")
    heading, *rows = run("gpt2", "--format", "csv").splitlines()
    assert heading.startswith("target,is_target,num_hidden_layers,hidden_size,")
    assert sum(r.startswith("gpt2,True,") for r in rows) == 1


def test_what_the_literature_says() -> None:
    least, most = kaplan_range()
    assert (round(least, 1), round(most, 1)) == (33.3, 714.7)  # 1600/48 and 4288/6
    assert critical_depth(512) == 16
    assert critical_depth(1024) == pytest.approx(16 * 2**0.44)
    assert compare_with_studies(1600, 48).in_kaplan_range
    assert not compare_with_studies(1600, 49).in_kaplan_range
    assert compare_with_studies(512, 17).past_critical
    assert not compare_with_studies(512, 16).past_critical
    assert not compare_with_studies(4096, 36).past_tay
    assert compare_with_studies(4096, 37).past_tay
    assert scaled_optimum(1000, 10, 1) == (1000, 10)
    assert scaled_optimum(1000, 10, 100) == pytest.approx((1000 * 100**0.34, 10 * 100**0.12))


def test_published_exponents_start_at_the_model() -> None:
    own = llmcalc.load("llama3-8b").model
    assert (
        find_shapes(build_family(own), budget_for(own), own).scaled_target is None
    )  # its own budget: nothing to scale
    scaled = find_shapes(build_family(own), CostBudget("parameters", 10 * params(own).total), own).scaled_target
    assert scaled is not None
    assert scaled == pytest.approx(
        (4096 * 100**0.34, 32 * 100**0.12, 100)
    )  # ten times the parameters on ten times the tokens
    assert "scaled_from_target" in document("llama3-8b", "--params", "80e9")["literature"][-1]


@in_one_test
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected a TARGET, --params N or --flops C"),
        (["--params", "8e9", "--flops", "1e24"], "one budget, not both"),
        (["--params", "8e9", "--tokens", "1e12"], "--tokens: only a budget of training FLOPs"),
        (["--params", "many"], "--params: 'many'"),
        (["--params", "1000"], "expected another budget, a smaller --vocab or a wider --tolerance"),
        (["--params", "4M", "--no-tie"], "expected another budget, --tie, a smaller --vocab"),
        (["--params", "8e9", "--head-dim", "4096"], "a smaller --head-dim"),
        (["--params", "8e9", "--set", "nothing=9"], "the model has no field 'nothing'"),
        (["--params", "8e9", "--set", "hidden_size=512"], "shape chooses hidden_size and num_hidden_layers"),
        (["--params", "8e9", "--set", "decoder.num_hidden_layers=5"], "shape chooses hidden_size"),
        (["--params", "8e9", "--vocab", "5", "--set", "vocab_size=9"], "--vocab and --set vocab_size=9: both set"),
        (["gpt2", "--tie", "--set", "tie_word_embeddings=false"], "--tie and --set tie_word_embeddings=false"),
        (["gpt2", "--no-tie", "--set", "tie_word_embeddings=true"], "--no-tie and --set"),
        (["gpt2", "--head-dim", "32", "--set", "head_dim=64"], "--head-dim and --set head_dim=64"),
        (["--params", "8e9", "--kv-ratio", "1", "--set", "num_key_value_heads=4"], "--kv-ratio and --set"),
        (["--params", "8e9", "--ffn-ratio", "4", "--set", "intermediate_size=4"], "--ffn-ratio and --set"),
        (["--params", "8e9", "--vocab", "1e18"], "vocab_size: 1000000000000000000 is too large"),
        (["llama3-8b", "--head-dim", "7"], "RoPE would rotate 7"),
        (["gpt2", "--tie", "--set", "head.type=none"], "--tie: this model has no language-model head"),
        (["deepseek-v3"], "attention of type 'mla' has sizes beside its heads"),
        (["bert-base"], "only decoders are supported, and this model is an encoder;"),
        (["bart-large"], "only decoders are supported, and this model is an encoder-decoder;"),
        (["gpt-j-6b", "--head-dim", "32"], "--head-dim: 32 is less than the 64"),
        (["mixtral-8x7b", "--ffn-ratio", "4"], "--ffn-ratio: a mixture of experts"),
        (["llama3-8b", "--kv-ratio", "2/3"], "--kv-ratio: 2/3 is not one over"),
        (["llama3-8b", "--ffn-ratio", "nan"], "--ffn-ratio: 'nan'"),
    ],
)
def test_bad_input_is_one_clear_line(args: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, ["shape", *args], catch_exceptions=False, standalone_mode=False)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@in_one_test
@pytest.mark.parametrize("text", ["0", "-1", "x", "1/0", "inf", "1e9", ""])
def test_a_proportion_is_positive(text: str) -> None:
    with pytest.raises(InputError, match="--kv-ratio"):
        parse_ratio(text, "--kv-ratio")
    assert parse_ratio("0.125", "") == Fraction(1, 8)
    assert parse_ratio(None, "") is None


def test_a_head_size_that_does_not_divide_the_models_width() -> None:
    """Once raised ArithmeticError: 48 does not divide GPT-2 medium's 1,024, so its own shape is not in the family."""
    shape_study = find_shapes(
        build_family(llmcalc.load("gpt2-medium").model, 48), budget_for(llmcalc.load("gpt2-medium").model)
    )
    assert {s.stack.head_dim for s in shape_study.shapes} == {48}
    assert "do not meet this budget" in run("gpt2-medium", "--head-dim", "48", "--notes")


def test_a_sweep_counts_what_ints_count() -> None:
    of = members("gemma2-9b")
    h, layers = grid(of)
    totals = sweep(of, h, layers)
    assert totals.dtype == np.int64
    for i, j in np.ndindex(h.shape):
        assert totals[i, j] == params(of.scaled_to(int(h[i, j]), int(layers[i, j]))).total
    assert sweep(of, [of.width_step], [of.least_depth]).tolist() == [
        params(of.scaled_to(of.width_step, of.least_depth)).total
    ]


@pytest.mark.parametrize(
    ("sizes", "depths", "message"),
    [
        ([512, 700], [4, 4], "expected multiples of 512"),
        ([0], [4], "hidden_sizes: expected whole numbers of at least 512"),
        ([512.0], [4], "hidden_sizes: expected whole numbers"),
        ([512], [0], "depths: expected whole numbers of at least 1"),
        ([], [], "hidden_sizes: expected whole numbers"),
        ([2**30], [2**20], "more than 2\\^63 parameters"),
    ],
)
def test_a_sweep_refuses_what_it_cannot_count(sizes: list[Any], depths: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep(members("llama3-8b"), sizes, depths)


def test_a_sweep_without_numpy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"^a sweep needs numpy: pip install .*\[sweep\]'$"):
        sweep(members("gpt2"), [64], [1])


@pytest.mark.parametrize("args", [["--params", "1B"], ["gpt2"], ["--flops", "1e24", "--literature"]])
def test_it_runs_where_numpy_is_not_installed(args: list[str]) -> None:
    code = (
        f"import sys\nsys.modules['numpy'] = None\nsys.argv = ['llmcalc', 'shape', *{args!r}]\n"
        "from llmcalc.cli.main import main\nmain()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "same ratios as" in result.stdout


def test_importing_it_imports_no_numpy() -> None:
    code = (
        "import sys, llmcalc.cli.shape, llmcalc.cli.compare; sys.exit(bool({'numpy', 'torch', 'sympy'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

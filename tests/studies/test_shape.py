"""`llmcalc shape`: one family, three evaluations alike; budgets kept; proportions kept; every option acts."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import llmcalc
from llmcalc.cli.main import app
from llmcalc.components.layers.gemma4 import Gemma4Layer
from llmcalc.components.layers.hybrid import HybridBlock
from llmcalc.components.layers.shortcut import ShortcutLayer
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.moe import MoE
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.studies.literature import critical_depth, kaplan_range, scaled_optimum, verdicts
from llmcalc.studies.shape import HEAD_SIZES, Budget, Family, budget_for, family, proportion, search, spread, study
from tests.builders import sight
from tests.contracts.test_parts import decoder

DECODERS = ["llama3-8b", "gpt2", "mixtral-8x7b", "gemma2-9b", "gpt-oss-20b", "falcon-7b", "qwen2.5-72b"]


def run(*args: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["shape", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def document(*args: str) -> dict[str, Any]:
    found = json.loads(run(*args, "--format", "json"))
    assert isinstance(found, dict)
    return found


def members(name: str, **changes: Any) -> Family:
    return family(llmcalc.load(name).model, **changes)


def grid(of: Family) -> tuple[Any, Any]:
    widths = of.step * np.array([1, 2, 3, 5, 8, 13], dtype=np.int64)
    depths = of.least_depth + np.array([0, 1, 2, 7, 30, 61], dtype=np.int64)
    h, layers = np.meshgrid(widths, depths)
    return h, layers


@pytest.mark.parametrize("name", DECODERS)
def test_arrays_count_what_ints_count(name: str) -> None:
    """One closed form: every element of the array is the count of the int spec."""
    of = members(name)
    h, layers = grid(of)
    arrays = of.at(h, layers)
    workload = sight(batch=1, seq=300, phase="train")
    totals, steps = params(arrays).total, flops(arrays, workload).total
    held = kv(arrays).tree
    assert held is not None
    assert totals.shape == h.shape
    for i, j in np.ndindex(h.shape):
        one = of.at(int(h[i, j]), int(layers[i, j]))
        assert totals[i, j] == params(one).total
        assert steps[i, j] == flops(one, workload).total


@pytest.mark.parametrize("name", DECODERS)
def test_every_member_is_a_model_that_the_spec_accepts(name: str) -> None:
    of = members(name)
    for h in (of.step, 3 * of.step, 8 * of.step):
        spec = of.at(h, of.least_depth + 3)
        assert params(ModelSpec.model_validate(spec.model_dump())).total == params(spec).total


@pytest.mark.parametrize("name", DECODERS)
def test_a_family_holds_its_own_model(name: str) -> None:
    preset = llmcalc.load(name)
    own = preset.model
    again = members(name).at(own.hidden_size, own.main.num_hidden_layers)
    assert params(again).total == params(own).total
    workload = sight(batch=2, seq=77, phase="train")
    assert flops(again, workload).total == flops(own, workload).total
    assert kv(again).bytes_per_token == kv(own).bytes_per_token


@pytest.mark.parametrize("name", DECODERS)
def test_the_budget_is_kept_and_the_model_marked(name: str) -> None:
    own = llmcalc.load(name).model
    budget = budget_for(own)
    assert budget == Budget("parameters", params(own).total)
    found = study(family(own), budget, own)
    assert 2 <= len(found.shapes) <= 12
    assert all(abs(s.parameters / budget.value - 1) <= 0.02 for s in found.shapes)
    assert all(s.difference == s.parameters / budget.value - 1 for s in found.shapes)
    ratios = [s.stack.aspect_ratio for s in found.shapes]
    assert ratios == sorted(ratios)
    (marked,) = [s for s in found.shapes if s.target]
    assert (marked.stack.hidden_size, marked.stack.num_hidden_layers) == (own.hidden_size, own.main.num_hidden_layers)
    assert marked.difference == 0


def test_head_sizes_divide() -> None:
    for shape in study(members("gpt2"), Budget("parameters", 124_000_000), rows=256).shapes:
        h = shape.stack.hidden_size
        assert shape.head_sizes == tuple(d for d in (64, 96, 128, 256) if h % d == 0)
        assert {d for d in HEAD_SIZES if h % d} == {*HEAD_SIZES} - {*shape.head_sizes}


def test_proportions_are_kept() -> None:
    for shape in study(members("llama3-8b"), Budget("parameters", 8_000_000_000)).shapes:
        s = shape.stack
        assert (s.feed_forward_ratio, s.head_dim, s.kv_ratio, s.head_ratio) == (3.5, 128, 0.25, 1.0)
        assert shape.spec.vocab_size == 128256


def test_one_kv_head_stays_one() -> None:
    assert {
        s.stack.num_key_value_heads for s in study(members("falcon-7b"), Budget("parameters", 7_000_000_000)).shapes
    } == {1}


def test_each_override_acts() -> None:
    budget = Budget("parameters", 8_000_000_000)
    shape = study(members("llama3-8b", head_dim=64), budget).shapes[0].stack
    assert (shape.head_dim, shape.head_ratio, shape.kv_ratio) == (64, 1.0, 0.25)
    assert study(members("llama3-8b", kv_ratio=Fraction(1, 8)), budget).shapes[0].stack.kv_ratio == 0.125
    assert study(members("llama3-8b", ffn_ratio=Fraction(4)), budget).shapes[0].stack.feed_forward_ratio == 4
    third = study(members("llama3-8b", ffn_ratio=Fraction(8, 3)), budget).shapes[0].stack
    assert third.feed_forward_width is not None
    assert third.feed_forward_width % 64 == 0
    assert abs(third.feed_forward_width - third.hidden_size * 8 / 3) <= 32  # the nearest multiple of 64
    small = study(members("llama3-8b", vocab_size=32000), budget).shapes[0]
    assert small.spec.vocab_size == 32000
    assert small.parameters == params(small.spec).total


def test_experts_widen_and_keep_their_number() -> None:
    of = members("mixtral-8x7b")
    mixing = of.at(2048, 4).main.block.feed_forward
    assert isinstance(mixing, MoE)
    assert (mixing.num_experts, mixing.num_experts_per_tok, mixing.expert.intermediate_size) == (8, 2, 7168)


@pytest.mark.parametrize("layer", [Gemma4Layer.examples()[1], ShortcutLayer.examples()[1]], ids=["gemma4", "shortcut"])
def test_a_dense_network_beside_the_experts_widens_too(layer: Any) -> None:
    """At twice the width every network is twice as wide."""
    wide = family(decoder(block=layer)).at(48, 2)
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
        family(spec)


def test_training_flops_as_the_budget() -> None:
    """With D tokens: D × FLOPs of a token. Without: 20 for each parameter."""
    budget = budget_for(None, train_flops=10**21, tokens=10**11, seq=512)
    for shape in study(family(None, vocab_size=32000), budget).shapes:
        exact = 10**11 * flops(shape.spec, sight(batch=1, seq=512, phase="train")).total // 512
        assert (shape.train_flops, shape.tokens) == (exact, 10**11)
        assert abs(exact / 10**21 - 1) <= 0.02
    optimal = study(family(None, vocab_size=32000), budget_for(None, train_flops=10**21)).shapes
    assert all(s.tokens == 20 * s.parameters for s in optimal)


def test_a_budget_past_64_bits_is_counted_in_ints() -> None:
    found = study(family(None), Budget("train_flops", 10**26), rows=3)
    assert found.shapes
    assert all(isinstance(s.train_flops, int) and s.train_flops > 2**63 for s in found.shapes)
    huge = study(family(None), Budget("parameters", 10**16), rows=3)
    assert all(abs(s.parameters / 10**16 - 1) <= 0.02 for s in huge.shapes)


def test_search_takes_the_nearest_depth() -> None:
    of, budget = members("gpt2"), Budget("parameters", 300_000_000)
    found, counted = search(of, budget, 0.05)
    assert counted > 1000
    for h, layers in found[:5]:
        off = [abs(params(of.at(h, n)).total - budget.value) for n in (layers - 1, layers, layers + 1)]
        assert off[1] == min(off)


def test_spread_keeps_ends_and_the_model() -> None:
    sizes = [(64 * i, 500 // i) for i in range(1, 60)]
    chosen = spread(sizes, 5, keep=(640, 50))
    assert len(chosen) == 5
    assert (640, 50) in chosen
    assert sizes[0] in chosen
    assert spread(sizes, 5)[-1] == sizes[-1]
    assert spread(sizes[:3], 5) == sizes[:3]


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
    one = study(
        family(None, 64, Fraction(1, 8), Fraction(4), 32000), Budget("parameters", 8_000_000_000), seq=100
    ).shapes[0]
    assert (
        first["flops_per_token"] == one.forward_flops_per_token == flops(one.spec, sight(batch=1, seq=100)).total / 100
    )
    target = document("llama3-8b", "--set", "tie_word_embeddings=true", "--params", "7.5B")
    assert target["proportions"]["tie_word_embeddings"] is True
    assert [f["key"] for f in target["literature"]] == ["kaplan", "chinchilla", "tay", "depth_delusion"]
    assert all(f["source"] and f["arxiv"] and f["limits"] for f in target["literature"])


def test_the_table_fits_80_columns_and_names_its_sources() -> None:
    for args in (["llama3-8b"], ["llama3.1-405b"], ["--flops", "1e24"], ["gpt2", "--rows", "30"]):
        text = run(*args)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
        for number in ("2001.08361", "2203.15556", "2109.10686", "2601.20994"):
            assert number in text.replace("\n  ", "")
        assert "Limits:" in text
    assert "→" in run("llama3-8b")
    heading, *rows = run("gpt2", "--format", "csv").splitlines()
    assert heading.startswith("target,num_hidden_layers,hidden_size,")
    assert sum(r.startswith("True,") for r in rows) == 1


def test_what_the_literature_says() -> None:
    least, most = kaplan_range()
    assert (round(least, 1), round(most, 1)) == (33.3, 714.7)  # 1600/48 and 4288/6
    assert critical_depth(512) == 16
    assert critical_depth(1024) == pytest.approx(16 * 2**0.44)
    assert verdicts(1600, 48).in_kaplan_range
    assert not verdicts(1600, 49).in_kaplan_range
    assert verdicts(512, 17).past_critical
    assert not verdicts(512, 16).past_critical
    assert not verdicts(4096, 36).past_tay
    assert verdicts(4096, 37).past_tay
    assert scaled_optimum(1000, 10, 1) == (1000, 10)
    assert scaled_optimum(1000, 10, 100) == pytest.approx((1000 * 100**0.34, 10 * 100**0.12))


def test_published_exponents_start_at_the_model() -> None:
    own = llmcalc.load("llama3-8b").model
    assert study(family(own), budget_for(own), own).scaled is None  # its own budget: nothing to scale
    scaled = study(family(own), Budget("parameters", 10 * params(own).total), own).scaled
    assert scaled is not None
    assert scaled == pytest.approx(
        (4096 * 100**0.34, 32 * 100**0.12, 100)
    )  # ten times the parameters on ten times the tokens
    assert "scaled_from_target" in document("llama3-8b", "--params", "80e9")["literature"][-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected a TARGET, --params N or --flops C"),
        (["--params", "8e9", "--flops", "1e24"], "one budget, not both"),
        (["--params", "8e9", "--tokens", "1e12"], "--tokens: only a budget of training FLOPs"),
        (["--params", "many"], "--params: 'many'"),
        (["--params", "1000"], "expected a wider --tolerance"),
        (["--params", "8e9", "--set", "vocab_size=9"], "--set: there is no model"),
        (["deepseek-v3"], "'mla' does not scale"),
        (["bert-base"], "an encoder has"),
        (["bart-large"], "an encoder-decoder has"),
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


@pytest.mark.parametrize("text", ["0", "-1", "x", "1/0", "inf", "1e9", ""])
def test_a_proportion_is_positive(text: str) -> None:
    with pytest.raises(InputError, match="--kv-ratio"):
        proportion(text, "--kv-ratio")
    assert proportion("0.125", "") == Fraction(1, 8)
    assert proportion(None, "") is None


def test_importing_it_imports_no_numpy() -> None:
    code = (
        "import sys, llmcalc.cli.shape, llmcalc.cli.compare; sys.exit(bool({'numpy', 'torch', 'sympy'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

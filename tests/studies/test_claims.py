"""Common claims about the sizes and costs of transformers, checked against exact counts.

Each test states a claim, its source, and its error. If a claim is exact under its own assumptions (no biases, no
norms), the test asserts that on a spec with these assumptions; presets show its error in practice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.flow.program import Step
from llmcalc.flow.tree import Node
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout, stages
from llmcalc.parallel.schedules import PassDurations, Pipeline, pipeline, timetable
from llmcalc.reports.expression import write_expression
from llmcalc.simulator.autograd import record
from llmcalc.simulator.tensor import BOOL, Tensor
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.studies.compare import stack_shape
from llmcalc.studies.literature import kaplan_range
from llmcalc.studies.model_selection import attention_kinds
from llmcalc.symbolic.activations import ActivationFormulas
from llmcalc.symbolic.explain import explain
from llmcalc.symbolic.formulas import Formula, Formulas, FormulaSetting, RecomputeChoice, TrainingSetting
from llmcalc.symbolic.saved_bytes import NodeTrackingEager
from tests.builders import recorded, run_config
from tests.samples import in_one_test

H, LAYERS, VOCAB, T = 4096, 32, 32000, 2048
BARE = Norm(type="layernorm", weight=False)


def decoder(
    attention: Attention | None = None,
    feed_forward: FeedForward | None = None,
    hidden_size: int = H,
    layers: int = LAYERS,
) -> ModelSpec:
    """Pre-norm MHA with a non-gated FFN with d_ff = 4h: no biases, no norm weights, untied."""
    attention = attention or Attention(num_attention_heads=32)
    feed_forward = feed_forward or FeedForward(intermediate_size=4 * hidden_size, hidden_act="gelu")
    block = Block(attention=attention, feed_forward=feed_forward, norm=BARE, norm_placement="pre")
    return ModelSpec(
        vocab_size=VOCAB,
        hidden_size=hidden_size,
        tie_word_embeddings=False,
        decoder=Stack(num_hidden_layers=layers, block=block),
    )


def part(spec: ModelSpec, name: str) -> Node:
    """One part of a layer, or of the model."""
    return next(place.node for place in spec.tree().walk() if place.node.name == name)


def size(spec: ModelSpec, name: str) -> int:
    count: int = part(spec, name).cost_per_repeat(lambda use: use.params())
    return count


def flops_a_token(spec: ModelSpec, name: str, seq: int = T) -> Fraction:
    return Fraction(
        part(spec, name).cost_per_repeat(lambda use: use.forward_flops(), run_config(batch=1, seq=seq)), seq
    )


# --- parameters -------------------------------------------------------------------------------------------------------


def test_12lh2_and_2vh() -> None:
    """Kaplan 2020, §2.1: N ≈ 12·L·h². Exact for MHA and a non-gated FFN with d_ff = 4h, plus V·h each for embedding and
    head.
    """
    assert llmcalc.params(decoder()).total == 12 * LAYERS * H**2 + 2 * VOCAB * H


@pytest.mark.parametrize(
    ("name", "tables", "off"),
    [
        ("gpt3-175b", 1, -0.0002321),  # tied; left out: positions 25.2 M and biases and norms 15.4 M of 174.6 B
        ("gpt2", 1, -0.007295),  # positions are 0.6 % of so small a model
        ("llama2-7b", 2, -0.005019),  # 3 × 2.6875h gated is 8.06h², not 8h²
        ("llama2-70b", 2, -0.05839),  # GQA saves 1.75h², a gated FFN of 3.5h adds 2.5h²
        ("llama3-8b", 2, -0.06689),  # GQA saves 1.5h², a gated FFN of 3.5h adds 2.5h²: 13h² per layer
        ("palm-540b", 1, -0.101),  # MQA, but heads of 256 × 48 = 0.67h and a gated FFN of 12h²
        ("qwen3-32b", 2, -0.338),  # attention of width 1.6h and a gated FFN of 15h²
        ("mixtral-8x7b", 2, -0.8564),  # eight FFNs where the rule has one
    ],
)
def test_what_12lh2_is_worth_on_real_models(name: str, tables: int, off: float) -> None:
    """The rule is far from exact if the FFN is not 8h² or attention is not 4h²."""
    spec = llmcalc.load(name).model
    h, rule = spec.hidden_size, 12 * spec.main.num_hidden_layers * spec.hidden_size**2
    rule += tables * spec.vocab_size * h
    assert rule / llmcalc.params(spec).total - 1 == pytest.approx(off, rel=2e-4)


def test_a_feed_forward_network_is_two_thirds_of_a_layer_and_attention_one_third() -> None:
    """8h² and 4h² of 12h²: exact. Llama 3 8B has 81 % and 19 %; a mixture of experts is nearly all FFN."""
    assert size(decoder(), "mlp") * 3 == size(decoder(), "layers") * 2
    assert size(decoder(), "self_attn") * 3 == size(decoder(), "layers")
    shares = {
        name: size(spec, "mlp") / size(spec, "layers")
        for name in ("gpt3-175b", "llama3-8b", "mixtral-8x7b")
        for spec in [llmcalc.load(name).model]
    }
    assert shares == pytest.approx({"gpt3-175b": 0.66666, "llama3-8b": 0.80766, "mixtral-8x7b": 0.97109}, abs=5e-5)


def test_a_gated_width_of_8h_over_3_keeps_8h2() -> None:
    """Shazeer 2020, §3: three matrices of 2/3 the width. Exact if 3 divides 8h; Llama rounds up to 256."""
    plain, gated = (
        FeedForward(intermediate_size=4 * 4608, hidden_act="gelu"),
        FeedForward(intermediate_size=8 * 4608 // 3, hidden_act="silu", gated=True),
    )
    assert [sum(n.op.params() for n in recorded(f, 4608).children) for f in (plain, gated)] == [8 * 4608**2] * 2
    llama = llmcalc.load("llama2-7b").model
    assert size(llama, "mlp") == 3 * H * 11008
    assert size(llama, "mlp") / (8 * H**2) == pytest.approx(1.0078, abs=5e-5)  # 11008, not 10922.67: +0.8 %


def test_mixtral_8x7b_is_47b_of_which_13b_are_active() -> None:
    """Jiang 2024: 47B and 13B. It is not 8 × 7B = 56B, because attention, embeddings and head exist once. 12.88 B
    active, 27.6 %.
    """
    count = llmcalc.params(llmcalc.load("mixtral-8x7b"))
    assert (count.total, count.active) == (46_702_792_704, 12_879_925_248)
    assert count.active / count.total == pytest.approx(0.2758, abs=5e-5)
    assert count.by_component["experts"] / count.total == pytest.approx(0.9656, abs=5e-5)


def test_llama_3_8b_is_7b_of_layers_and_1b_of_tables() -> None:
    """6.98 B in the layers, 525 M each in embedding and head: 13.1 % are the vocabulary, compared with 3.9 % in Llama 2
    7B.
    """
    spec = llmcalc.load("llama3-8b").model
    count = llmcalc.params(spec)
    assert size(spec, "layers") * 32 == 6_979_584_000
    assert count.by_component["embedding"] == count.by_component["lm_head"] == 128_256 * 4096 == 525_336_576
    assert 2 * 525_336_576 / count.total == pytest.approx(0.1308, abs=5e-5)
    two = llmcalc.params(llmcalc.load("llama2-7b"))
    assert 2 * two.embedding / two.total == pytest.approx(0.0389, abs=5e-5)


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def test_attention_is_8h2_and_4th_flops_a_token() -> None:
    """Projections 2 · 4h², scores and mixing 2 · 2·T·h (Kaplan 2020, table 1; full pairs). Exact."""
    assert flops_a_token(decoder(), "self_attn") == 8 * H**2 + 4 * T * H
    assert flops_a_token(decoder(), "core") == 4 * T * H


def test_causal_masks_halve_scores_and_mixing() -> None:
    """Nearly half: 2·(T + 1)·h per token, which is half plus 2h (+0.05 % at 2,048 tokens)."""
    causal = part(decoder(), "core").cost_per_repeat(
        lambda use: use.forward_flops(), run_config(batch=1, seq=T, pairs="causal")
    )
    assert Fraction(causal, T) == 2 * (T + 1) * H
    assert Fraction(causal, T) / flops_a_token(decoder(), "core") - Fraction(1, 2) == Fraction(1, 2 * T)


def test_scores_cost_as_much_as_projections_at_two_hidden_sizes() -> None:
    """8h² = 4·T·h at T = 2h; attention scores are half of a whole layer's products only at T = 6h. Exact."""
    assert flops_a_token(decoder(), "core", 2 * H) * 2 == flops_a_token(decoder(), "self_attn", 2 * H)
    assert flops_a_token(decoder(), "core", 6 * H) * 2 == flops_a_token(decoder(), "layers", 6 * H)


def test_an_ungated_4h_feed_forward_network_is_16h2_flops_a_token() -> None:
    """2 FLOPs per multiply-add of 8h² parameters. Exact; a gated FFN of 8h/3 has the same."""
    assert flops_a_token(decoder(), "mlp") == 16 * H**2


def test_logits_are_2vh_flops_a_token() -> None:
    """Exact, tied or not; 7.0 % of Llama 3 8B's forward pass without attention scores, 31.2 % of GPT-2 small's."""
    assert flops_a_token(decoder(), "lm_head") == 2 * VOCAB * H
    share = {}
    for name in ("llama3-8b", "gpt2"):
        spec = llmcalc.load(name).model
        whole = flops_a_token(spec, "model") - spec.main.num_hidden_layers * flops_a_token(spec, "core")
        assert flops_a_token(spec, "lm_head") == 2 * spec.vocab_size * spec.hidden_size
        share[name] = float(flops_a_token(spec, "lm_head") / whole)
    assert share == pytest.approx({"llama3-8b": 0.0700, "gpt2": 0.3124}, abs=5e-5)


def test_a_forward_pass_is_2n_flops_a_token() -> None:
    """Without scores, 2 FLOPs per parameter except the input embedding: exact on the bare decoder; scores add 4LTh."""
    count, spec = llmcalc.params(decoder()), decoder()
    assert flops_a_token(spec, "model") == 2 * (count.total - count.embedding) + 4 * LAYERS * T * H
    gpt3 = llmcalc.load("gpt3-175b")
    total = llmcalc.flops(gpt3, seq=T).total
    assert total / (2 * llmcalc.params(gpt3).total * T) - 1 == pytest.approx(
        0.0274, abs=5e-5
    )  # at 2,048 tokens 2N is 2.7 % short


def test_explain_prints_these_formulas() -> None:
    """The same claims as symbolic formulas: 12Lh² + 2Vh, 24Lh² + 4LSh + 2Vh."""
    model = explain(decoder(), formula_setting=FormulaSetting(seq=T)).sections[-1]
    h, layers, vocab, keys = (
        s for letter in "hLVS" for s, m in explain(decoder()).formulas.meanings.items() if m.name == letter
    )
    found = {f.quantity: f.hidden_expression for f in model.formulas}
    assert found["params"] - (12 * layers * h**2 + 2 * vocab * h) == 0
    assert found["flops"] - (24 * layers * h**2 + 4 * layers * keys * h + 2 * vocab * h) == 0


# --- cache ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv_heads", "divisor"), [(32, 1), (8, 4), (1, 32)])
def test_grouped_queries_shrink_the_cache_by_heads_over_kv_heads(kv_heads: int, divisor: int) -> None:
    """Ainslie 2023: the cache of MHA, 2 · 2 · L · h bytes per token in bf16, divided by heads/kv_heads.

    Exact, also for the K/V projections.
    """
    spec = decoder(Attention(num_attention_heads=32, num_key_value_heads=kv_heads))
    assert llmcalc.kv(spec, seq=T).bytes * divisor == 4 * LAYERS * H * T
    assert size(spec, "k_proj") * divisor == H**2


def test_known_caches() -> None:
    """Llama 3 8B: 128 KiB per token.

    DeepSeek-V3: 70,272 bytes, 1/57 of the cache of its 128 heads of 192 + 128 (DeepSeek-V2, §2.1.4).
    """
    assert llmcalc.kv(llmcalc.load("llama3-8b")).bytes_per_token == 128 * 1024
    latent = llmcalc.kv(llmcalc.load("deepseek-v3")).bytes_per_token
    assert latent == 61 * (512 + 64) * 2 == 70_272
    assert Fraction(61 * 128 * (192 + 128) * 2, latent) == Fraction(
        640, 9
    )  # 71 with keys of 192; 57 with all heads of 128
    assert Fraction(61 * 128 * (128 + 128) * 2, latent) == Fraction(512, 9)


# --- activations ------------------------------------------------------------------------------------------------------


class Megatron(NodeTrackingEager):
    """The kernels of Korthikanti et al. 2022: masked softmax as one kernel in the dtype of the scores, and dropout with
    masks of one byte an element, on the shares of attention and on the outputs of both sublayers.
    """

    def dropout(self, x: Tensor) -> Tensor:
        mask = self.aten.new_tensor(x.shape, BOOL)
        return record(
            self.graph, "dropout", (x,), self.aten.new_like(x), lambda g, _, mask: (self.aten.new_like(g, mask),), mask
        )

    def compute_attention(self, q: Tensor, k: Tensor, v: Tensor, *masked: Any) -> Tensor:
        scores = self.aten.scale(self.aten.matmul(q, self.aten.transpose(k, -1, -2)))
        return self.aten.matmul(self.dropout(self.aten.softmax(scores)), v)

    def linear_output(self, step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = super().linear_output(step, x, weight, bias)
        return self.dropout(y) if step.name in ("o_proj", "down_proj") else y


def saved_activations(
    spec: ModelSpec, training: TrainingSetting, kernels: type[NodeTrackingEager] = NodeTrackingEager
) -> ActivationFormulas:
    return ActivationFormulas(Formulas(spec, FormulaSetting(seq=T)), training, kernels)


def formula(found: ActivationFormulas, path: str) -> Formula:
    (node,) = [node for node in found.formulas.nodes() if node.name == path]
    return found.section(node).formulas[0]


MEGATRON = TrainingSetting(batch=4, norm="fused", dtype="float16")
RECOMPUTED: tuple[RecomputeChoice, RecomputeChoice] = ("none", "attention")


@pytest.mark.parametrize(
    ("recompute", "layer", "attention", "mlp"),
    [
        ("none", "B·S·(5·S·a + 34·h + 16)", "B·S·(5·S·a + 11·h)", "19·B·S·h"),  # 2 + 4 + 2 + 2 + 1; 2 + 8 + 8 + 1
        ("attention", "B·S·(34·h + 16)", "11·B·S·h", "19·B·S·h"),
    ],
)
def test_a_layer_keeps_34sbh_and_5as2b(recompute: RecomputeChoice, layer: str, attention: str, mlp: str) -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), §4.1: s·b·h·(34 + 5·a·s/h) bytes per layer, 11sbh + 5as²b of them in
    attention and 19sbh in the MLP; §5: 34sbh with selective recomputation.

    Exact under its assumptions: activations in 16 bits, MHA, a GELU MLP of 4h, dropout with masks of one byte, and
    norms that keep their input. The paper leaves out small buffers: here the mean and the deviation of every row in
    both norms, 2 · 2 · 4 bytes per token.
    """
    found = saved_activations(decoder(), replace(MEGATRON, recompute=recompute), Megatron)
    in_hidden = {path: formula(found, f"layers{path}").hidden_expression for path in ("", ".mlp")}
    assert write_expression(in_hidden[""]) == layer
    assert write_expression(in_hidden[".mlp"]) == mlp
    assert write_expression(formula(found, "layers.self_attn").expression) == attention


def test_selective_recomputation_saves_70_percent_of_gpt3() -> None:
    """Korthikanti et al. 2022, §5: with a = 96, s = 2048 and h = 12288, 5as/h = 80 of 34 + 80."""
    gpt3 = llmcalc.load("gpt3-175b").model
    whole, selective = (
        formula(saved_activations(gpt3, replace(MEGATRON, recompute=recompute), Megatron), "layers").value
        for recompute in RECOMPUTED
    )
    tokens = 4 * 2048
    assert whole - selective == 5 * 96 * 2048 * tokens == 80 * 12288 * tokens
    assert (whole - selective) / whole == pytest.approx(80 / 114, rel=1e-4)
    eager, less = (
        formula(saved_activations(gpt3, TrainingSetting(batch=4, recompute=recompute)), "layers").value
        for recompute in RECOMPUTED
    )
    assert 1 - less / eager == pytest.approx(0.7060, abs=5e-5)  # softmax in float32, no dropout, norms step by step


def test_recomputing_whole_layers_keeps_their_input() -> None:
    """Korthikanti et al. 2022, §5: 2sbh bytes per layer."""
    found = saved_activations(decoder(), TrainingSetting(batch=4, recompute="full"))
    assert write_expression(formula(found, "layers").expression) == "2·B·S·h"


def test_attention_keeps_btd_3bhtd_and_bht2_elements() -> None:
    """As lectures on transformers count it: the input, queries, keys and values, and a score per pair in every head.

    Exact in float32 but for what they leave out: the input of the output projection, as large as the queries, and a
    mask of one byte per pair for all sequences and heads. In 16 bits eager attention keeps each share twice, in float32
    for softmax and in 16 bits for the product with V.
    """
    found = saved_activations(
        decoder(Attention(num_attention_heads=32, head_dim=64)), TrainingSetting(batch=4, dtype="float32")
    )
    assert write_expression(formula(found, "layers.self_attn").expression) == "B·S·(16·a·d + 4·S·a + 4·h) + S²"
    half = saved_activations(decoder(Attention(num_attention_heads=32, head_dim=64)), TrainingSetting(batch=4))
    assert write_expression(formula(half, "layers.self_attn").expression) == "B·S·(8·a·d + 6·S·a + 2·h) + S²"


# --- pipelines --------------------------------------------------------------------------------------------------------


def most_in_flight(micro_batches: int, **layout: Any) -> list[int]:
    """The most micro-batches in flight on every rank, each counted in every chunk that has it."""
    order = pipeline(Layout(**layout), micro_batches)
    return [order.most_in_flight(rank) for rank in range(order.ranks)]


def layers_held(order: Pipeline, rank: int) -> int:
    """Layers of `decoder` on a rank."""
    each = {
        stage.chunk_index * order.ranks + stage.pipeline_rank: len(stage.layers)
        for stage in stages(Layout(pp=order.ranks), LAYERS)
    }
    return sum(each[order.stage(rank, chunk)] for chunk in range(order.chunk_count))


def test_the_first_stage_of_1f1b_keeps_as_much_as_all_layers_do() -> None:
    """Korthikanti et al. 2022, §4.2.3: p micro-batches of L/p layers, whatever p is. Exact from p micro-batches on; the
    stages after it keep one micro-batch less each.
    """
    for p in (2, 4, 8, 16):
        assert most_in_flight(2 * p, pp=p) == list(range(p, 0, -1))
        assert most_in_flight(2 * p, pp=p)[0] * (LAYERS // p) == LAYERS
        assert most_in_flight(p // 2, pp=p)[0] == p // 2


def test_interleaving_keeps_1_plus_p_minus_1_over_pm_times_as_much() -> None:
    """Korthikanti et al. 2022, §4.2.3: L·(1 + (p − 1)/(p·m)) layers with m chunks per rank. Exact on the first rank."""
    for p, chunks in ((2, 2), (4, 2), (8, 4)):
        kept = Fraction(most_in_flight(2 * p, pp=p, vpp=chunks)[0] * LAYERS, p * chunks)
        assert kept == LAYERS * (1 + Fraction(p - 1, p * chunks))


def test_1f1b_waits_p_minus_1_over_m_and_interleaving_divides_it_by_v() -> None:
    """Narayanan 2021, §2.2: idle time over ideal time. Exact if all stages take equally long and sends take nothing."""
    for p, v, m in ((4, 2, 8), (8, 4, 64)):
        plain, chunked = (timetable(pipeline(Layout(pp=p, vpp=vpp), m)) for vpp in (1, v))
        assert Fraction(plain.idle_time) / Fraction(plain.total_time - plain.idle_time) == Fraction(p - 1, m)
        assert Fraction(chunked.idle_time) / Fraction(chunked.total_time - chunked.idle_time) == Fraction(p - 1, m * v)


def test_zero_bubble_h1_waits_a_third_as_long_in_the_same_memory() -> None:
    """Qi 2023, §2.1 and table 2: (p − 1)·(F + B − W), with p micro-batches in flight. A third only if all three passes
    take equally long. On the last rank p − 1 of the p only wait for the backward pass of the weights.
    """
    p, m = 8, 32
    plain, zero = (timetable(pipeline(Layout(pp=p, schedule=one), m)) for one in ("1f1b", "zb-h1"))
    assert zero.idle_time * 3 == plain.idle_time
    assert most_in_flight(m, pp=p, schedule="zb-h1") == [p] * p
    slow = timetable(
        pipeline(Layout(pp=p, schedule="zb-h1"), m), PassDurations(forward=1, backward_inputs=2, backward_weights=1)
    )
    assert slow.idle_time == (p - 1) * (1 + 2 - 1)


def test_dualpipe_holds_twice_the_parameters_and_p_plus_1_micro_batches() -> None:
    """DeepSeek-V3 (arXiv:2412.19437), table 2. Exact, on every rank."""
    p, m = 8, 20
    plain, dual = (pipeline(Layout(pp=p, schedule=one), m) for one in ("1f1b", "dualpipe"))
    for rank in range(p):
        assert layers_held(dual, rank) == 2 * layers_held(plain, rank) == 2 * LAYERS // p
    assert most_in_flight(m, pp=p, schedule="dualpipe") == [p + 1] * p
    assert timetable(dual).idle_time == (p // 2 - 1) * (3 + 2 - 3)  # F&B + B − 3W of equal passes


# --- shapes -----------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[Fraction, Fraction]] = {
    # d_ff/h, h/L
    "gpt2": (Fraction(4), Fraction(64)),
    "gpt2-xl": (Fraction(4), Fraction(100, 3)),
    "gpt3-175b": (Fraction(4), Fraction(128)),
    "opt-175b": (Fraction(4), Fraction(128)),
    "bloom-176b": (Fraction(4), Fraction(1024, 5)),
    "gopher-280b": (Fraction(4), Fraction(1024, 5)),
    "palm-540b": (Fraction(4), Fraction(9216, 59)),
    "t5-11b": (Fraction(64), Fraction(128, 3)),
    "llama-65b": (Fraction(43, 16), Fraction(512, 5)),
    "llama2-7b": (Fraction(43, 16), Fraction(128)),
    "llama2-13b": (Fraction(27, 10), Fraction(128)),
    "llama2-70b": (Fraction(7, 2), Fraction(512, 5)),
    "llama3-8b": (Fraction(7, 2), Fraction(128)),
    "llama3-70b": (Fraction(7, 2), Fraction(512, 5)),
    "llama3.1-405b": (Fraction(13, 4), Fraction(8192, 63)),
    "mistral-7b": (Fraction(7, 2), Fraction(128)),
    "mixtral-8x7b": (Fraction(7, 2), Fraction(128)),
    "gemma-7b": (Fraction(8), Fraction(768, 7)),
    "gemma2-27b": (Fraction(8), Fraction(2304, 23)),
    "qwen2.5-7b": (Fraction(37, 7), Fraction(128)),
    "qwen3-32b": (Fraction(5), Fraction(80)),
    "deepseek-v3": (Fraction(18, 7), Fraction(7168, 61)),
    "gpt-oss-20b": (Fraction(1), Fraction(120)),
    "smollm2-135m": (Fraction(8, 3), Fraction(96, 5)),
}


def shape(name: str) -> tuple[Fraction, Fraction]:
    """(d_ff/h of the dense FFN or of one expert, h/L)."""
    spec = llmcalc.load(name).model
    network = spec.main.block.feed_forward
    width = network.expert.intermediate_size if isinstance(network, MoE) else network.intermediate_size
    return Fraction(width, spec.hidden_size), Fraction(spec.hidden_size, spec.main.num_hidden_layers)


@in_one_test
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_known_models(name: str) -> None:
    """Fractions from the sizes in each model's paper or config."""
    assert shape(name) == SHAPES[name]


@cache
def dense_decoders() -> dict[str, ModelSpec]:
    """Every preset that is a decoder of attention and dense FFNs."""
    specs = {name: load_preset(name).model for name in model_names()}
    heads = {"mha", "gqa", "mqa", "mla", "sliding"}
    return {
        name: spec
        for name, spec in specs.items()
        if spec.kind == "decoder" and not spec.has_experts and attention_kinds(spec) <= heads
    }


def test_every_dense_decoder_has_the_shape_of_a_language_model() -> None:
    """Kaplan 2020, fig. 5: the loss hardly depends on the shape. Published models have d_ff/h of 2 to 8 and h/L of 15
    to 210.
    """
    shapes = {name: stack_shape(spec.main, spec.hidden_size) for name, spec in dense_decoders().items()}
    assert len(shapes) >= 290
    assert all(2 <= one.feed_forward_ratio <= 8 and 15 <= one.aspect_ratio <= 210 for one in shapes.values())


def test_most_large_decoders_are_about_100_to_130_times_as_wide_as_deep() -> None:
    """Of 179 dense decoders of at least 6 B parameters, 123 are in that range; the others are deeper (Qwen3 32B: 80) or
    wider (Gopher, BLOOM: 204.8).
    """
    large = [spec for spec in dense_decoders().values() if llmcalc.params(spec).total >= 6e9]
    inside = [spec for spec in large if 100 <= stack_shape(spec.main, spec.hidden_size).aspect_ratio <= 130]
    assert len(large) >= 170
    assert 0.6 <= len(inside) / len(large) <= 0.75


# --- common errors in published tables --------------------------------------------------------------------------------


def test_mixtral_8x7b_has_32_layers() -> None:
    """Not 56 layers, which is 8x22B."""
    assert llmcalc.load("mixtral-8x7b").model.main.num_hidden_layers == 32
    assert llmcalc.load("mixtral-8x22b").model.main.num_hidden_layers == 56


def test_gpt2_large_has_36_layers_and_gpt2_small_is_not_117m() -> None:
    """Radford 2019 states 117M, 345M, 762M and 1542M; the released weights have 124, 355, 774 and 1558."""
    assert llmcalc.load("gpt2-large").model.main.num_hidden_layers == 36
    totals = [llmcalc.params(llmcalc.load(name)).total for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")]
    assert totals == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]


def test_heads_that_are_not_hidden_over_heads() -> None:
    """PaLM's heads are 256 (18432/48 is 384), Gemma 7B's 256 (192), Qwen3 32B's 128 (80), T5-11B's 128 (8)."""
    for name, head_dim, quotient in [
        ("palm-540b", 256, 384),
        ("gemma-7b", 256, 192),
        ("qwen3-32b", 128, 80),
        ("t5-11b", 128, 8),
    ]:
        spec = llmcalc.load(name).model
        attention = spec.main.block.attention
        assert isinstance(attention, Attention)
        assert attention.sizes(spec.hidden_size)[2] == head_dim
        assert spec.hidden_size // attention.num_attention_heads == quotient


def test_falcon_7b_has_71_heads_of_64_and_one_for_keys_and_values() -> None:
    attention = llmcalc.load("falcon-7b").model.main.block.attention
    assert isinstance(attention, Attention)
    assert attention.sizes(4544) == (71, 1, 64)


# --- regularization, stability, depth ---------------------------------------------------------------------------------


def test_biases_of_linear_layers_are_9h_a_layer_of_gpt3() -> None:
    """Queries, keys, values and their product with 4·h, the network's two layers with 5·h: 0.006 % of the model."""
    spec = llmcalc.load("gpt3-175b").model
    biases = 9 * spec.hidden_size * spec.decoder.num_hidden_layers
    fields = [f"attention.{name}_bias" for name in "qkvo"] + ["feed_forward.up_bias", "feed_forward.down_bias"]
    changes = {f"decoder.block.{field}": False for field in fields}
    without = llmcalc.load("gpt3-175b", **changes).model
    assert llmcalc.params(spec).total - llmcalc.params(without).total == biases == 10_616_832


def test_qk_norm_has_2d_parameters_a_layer() -> None:
    spec = llmcalc.load("qwen3-8b").model
    changed = spec.decoder.block.attention.model_copy(update={"qk_norm": None})
    block = spec.decoder.block.model_copy(update={"attention": changed})
    without = spec.model_copy(update={"decoder": spec.decoder.model_copy(update={"block": block})})
    head_dim = spec.hidden_size // spec.decoder.block.attention.num_attention_heads
    norms = 2 * head_dim * spec.decoder.num_hidden_layers
    assert llmcalc.params(spec).total - llmcalc.params(without).total == norms == 9216


def test_mixtures_of_experts_are_shallower_at_the_same_total() -> None:
    from tests.prose import median_depth

    for least, most in ((1e10, 1e11), (1e11, 1e13)):
        assert median_depth(True, least, most) < median_depth(False, least, most)


def test_sparse_attention_reads_2048_keys_and_scores_the_others_17_times_as_cheaply() -> None:
    """DeepSeek-AI 2025, arXiv:2512.02556, §2.1: per layer 2·a·(2c + r)·2048 + 2·64·128·T instead of 2·a·(2c + r)·T."""
    seq, layers, heads, latent, rotary = 131072, 61, 128, 512, 64
    full, sparse = (llmcalc.flops(name, phase="decode", seq=seq).per_token for name in ("deepseek-v3", "deepseek-v3.2"))
    per_key = 2 * heads * (2 * latent + rotary)
    saved = layers * (per_key * (seq - 2048) - 2 * 64 * 128 * seq)
    assert float(full - sparse) == pytest.approx(saved, rel=2e-3)  # the indexer's own projections
    assert per_key / (2 * 64 * 128) == 17
    keys = layers * 128 * 2  # of the indexer, in bf16
    assert llmcalc.kv("deepseek-v3.2", seq=seq).bytes - llmcalc.kv("deepseek-v3", seq=seq).bytes == seq * keys


# --- positions, norms, experts: what the handbook says ----------------------------------------------------------------


def test_the_slowest_pair_of_rope_turns_once_in_54410_tokens() -> None:
    """2π·b^((d − 2)/d) for d = 128 and b = 10,000, and 2,559,196 for the 500,000 of Llama 3: of the frequencies that
    transformers makes of the models' configs.
    """
    for base, tokens in ((10_000.0, 54_410), (500_000.0, 2_559_196)):
        assert round(2 * math.pi / float(frequencies(base)[-1])) == tokens


def frequencies(base: float, **scaling: Any) -> Any:
    """The angles per token of a head of 128, as transformers computes them."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(rotary_config(rope_theta=base, **scaling)).inv_freq


def rotary_config(**rope: Any) -> Any:
    from transformers import LlamaConfig

    rope = {"rope_type": "default", **rope}
    return LlamaConfig(hidden_size=256, num_attention_heads=2, max_position_embeddings=16384, rope_parameters=rope)


def test_interpolation_ntk_and_yarn_change_the_angles_alone() -> None:
    """Chen 2023: all angles / s. NTK: with the base b·s^(d/(d − 2)) the slowest is divided by s, the fastest is kept.
    Peng 2023, §3.2 and §3.4: fast pairs kept, slow ones divided, logits times (0.1·ln s + 1)²: 1.296 for s = 4.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain, factor = frequencies(10_000.0), 4.0
    ratios = plain / frequencies(10_000.0, rope_type="linear", factor=factor)
    assert ratios.tolist() == pytest.approx([factor] * len(plain))
    stretched = frequencies(10_000.0 * factor ** (128 / 126))
    assert float(plain[-1] / stretched[-1]) == pytest.approx(factor, rel=1e-5)
    assert float(plain[0] / stretched[0]) == 1
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 4096}
    ratios = plain / frequencies(10_000.0, **yarn)
    assert (float(ratios[0]), float(ratios[-1])) == (pytest.approx(1), pytest.approx(factor))
    assert bool((ratios.diff() >= -1e-4).all())
    scale = ROPE_INIT_FUNCTIONS["yarn"](rotary_config(rope_theta=10_000.0, **yarn), "cpu")[1]
    assert scale**2 == pytest.approx(1.296, abs=5e-4)


def test_sinusoids_and_rotations_depend_on_the_distance() -> None:
    """Vaswani 2017, §3.5; Su 2021, §3.4.1."""
    import torch

    angles = frequencies(10_000.0).double()

    def vector(position: int) -> Any:
        return torch.cat([torch.sin(position * angles), torch.cos(position * angles)])

    def turned(pairs: Any, position: int) -> Any:
        return pairs * torch.exp(1j * position * angles)

    assert float(vector(7) @ vector(19)) == pytest.approx(float(torch.cos(12 * angles).sum()))
    torch.manual_seed(0)
    query, key = torch.randn(2, 64, dtype=torch.complex128)
    scores = [(turned(query, m).conj() * turned(key, m + 12)).sum().real for m in (0, 7, 3000)]
    assert [float(score) for score in scores] == pytest.approx([float(scores[0])] * 3)


def test_norms_take_as_long_as_a_copy() -> None:
    """An H100 computes 20 operations in fp32 in the time in which it moves a byte, so 80 for the 4 bytes of a number
    that a norm reads and writes in bf16; RMSNorm does 4 operations with it, LayerNorm 7.
    """
    from llmcalc.sources.hardware import find_hardware

    device = find_hardware("h100-sxm")
    per_byte = device.peak_flops["float32"] / device.memory_bandwidth
    assert round(per_byte) == 20
    assert max(4, 7) < 4 * per_byte / 10


def test_the_critical_depth_of_4096_lies_between_32_and_64_layers() -> None:
    """Fahim & Karim 2026: depth grows as C^0.12 and width as C^0.34, 2.8 times as fast in the exponent; beyond a depth
    that grows as h^0.44 more layers raise the loss, as of 64 against 32 layers.
    """
    shapes = llmcalc.shape("llama3-8b", literature=True).report().data["shapes"]
    (own,) = [shape for shape in shapes if shape["num_hidden_layers"] == 32]
    assert own["literature"]["critical_depth"] == pytest.approx(16 * (4096 / 512) ** 0.44)
    assert 32 < own["literature"]["critical_depth"] < 64
    assert round(0.34 / 0.12, 1) == 2.8


def test_a_balancing_loss_is_least_when_experts_are_chosen_alike() -> None:
    """Fedus 2021, §2.2: α·E·Σ f_i·P_i is α for an even router and α·E for one that has collapsed; transformers' own
    function counts t choices a token.
    """
    import torch
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    experts = 8
    even = torch.eye(experts).repeat(4, 1) * 1e-3
    collapsed = torch.zeros(32, experts)
    collapsed[:, 0] = 50
    losses = [float(load_balancing_loss_func((logits,), experts, top_k=1)) for logits in (even, collapsed)]
    assert losses == pytest.approx([1, experts], rel=1e-3)


def test_capacity_drops_what_comes_beyond_it() -> None:
    """With a capacity of 1.25, an expert that is asked for twice its share drops 37.5 % of its tokens."""
    tokens, experts, top, capacity = 1024, 8, 2, Fraction(5, 4)
    share = Fraction(top * tokens, experts)
    assert (2 * share - capacity * share) / (2 * share) == Fraction(3, 8)


def test_weight_decay_forgets_in_33333_steps() -> None:
    """Loshchilov & Hutter 2019, algorithm 2: w ← w − η·λ·w, for η = 3e-4 and λ = 0.1 without gradients."""
    import torch

    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    weight.grad = torch.zeros(1, dtype=torch.float64)
    torch.optim.AdamW([weight], lr=3e-4, weight_decay=0.1).step()
    assert float(weight.detach()) ** round(1 / (3e-4 * 0.1)) == pytest.approx(math.exp(-1), rel=1e-4)


def test_kaplans_two_shapes_have_one_size_and_ratios_21_times_apart() -> None:
    """Kaplan 2020, §3.1: (L, h) = (6, 4288) is within 3 % of the loss of (48, 1600). Their 12·L·h² are within 10 %, and
    their h/L of 715 and 33 are the ends of the range of `shape --literature`; the factor of 40 is of its figure 5.
    """
    for layers, hidden_size in ((6, 4288), (48, 1600)):
        spec = decoder(Attention(num_attention_heads=hidden_size // 64), None, hidden_size, layers)
        assert layers * size(spec, "layers") == 12 * layers * hidden_size**2
    wide, deep = size(decoder(None, None, 4288, 6), "layers"), size(decoder(None, None, 1600, 48), "layers")
    assert 6 * wide == pytest.approx(48 * deep, rel=0.11)
    lowest, highest = kaplan_range()
    assert (lowest, highest) == pytest.approx((1600 / 48, 4288 / 6))
    assert highest / lowest == pytest.approx(21.4, abs=0.1)


@pytest.mark.parametrize(
    ("layers", "hidden_size", "heads", "millions"),
    [(22, 512, 8, 178.04), (32, 256, 4, 67.06), (12, 768, 12, 222.93)],
)
def test_deep_and_narrow_t5_have_fewer_parameters(layers: int, hidden_size: int, heads: int, millions: float) -> None:
    """Tay 2021: depth before width; T5-base's quality with half its parameters, trained 40 % faster.

    The released t5-efficient-small-nl22, -tiny-nl32 and -base; the published numbers count the unused table too.
    """
    changes = [f"hidden_size={hidden_size}"] + [
        f"{stack}.{field}"
        for stack in ("encoder", "decoder")
        for field in (
            f"num_hidden_layers={layers}",
            f"relative_bias.num_attention_heads={heads}",
            f"block.attention.num_attention_heads={heads}",
            f"block.feed_forward.intermediate_size={4 * hidden_size}",
        )
    ]
    changes.append(f"decoder.block.cross_attention.num_attention_heads={heads}")
    assert llmcalc.params("t5-small", set=changes).total / 1e6 == pytest.approx(millions, rel=2e-3)


def test_at_the_same_parameters_depth_costs_flops() -> None:
    """What DeepNarrow saves comes from fewer parameters: of one size, 59 layers cost 4 % more than Llama 3 8B's 32."""
    shapes = llmcalc.shape("llama3-8b").report().data["shapes"]
    flops = {shape["num_hidden_layers"]: shape["flops_per_token"] for shape in shapes}
    assert flops[59] / flops[32] == pytest.approx(1.041, abs=2e-3)


def test_relative_bias_has_buckets_times_heads_and_alibi_has_nothing() -> None:
    """Raffel 2020, §2.1: 32 buckets a head, a table for each stack. Press 2022: fixed slopes."""
    nodes = [place.node for place in llmcalc.load("t5-11b").model.tree().walk() if place.node.name == "relative_bias"]
    assert [node.cost_per_repeat(lambda use: use.params()) for node in nodes] == [32 * 128, 32 * 128]
    bloom = llmcalc.load("bloom-176b").model
    assert not [place for place in bloom.tree().walk() if "posit" in place.node.name or "alibi" in place.node.name]


def test_logits_in_bf16_are_coarse_and_caps_bound_them() -> None:
    """Beside 256 the next number of bf16 is 258; Gemma 2 caps scores at 50 and logits at 30 with c·tanh(x/c)."""
    import torch

    step = torch.tensor(256.0, dtype=torch.bfloat16)
    assert (step + torch.tensor(1.0, dtype=torch.bfloat16)).item() == 256
    assert torch.nextafter(step, torch.tensor(torch.inf, dtype=torch.bfloat16)).item() == 258
    spec = llmcalc.load("gemma2-9b").model
    assert (spec.decoder.block.attention.attn_logit_softcapping, spec.head.logit_softcapping) == (50.0, 30.0)
    assert all(abs(cap * math.tanh(score / cap)) <= cap for cap in (50, 30) for score in (-1e4, 3.0, 1e4))


def test_vocabularies_have_grown() -> None:
    """The median of decoders and encoder-decoders, by year of release, does not fall from 2021 on."""
    from statistics import median_low

    from tests.prose import vocabularies

    medians = [median_low(vocabularies(year)) for year in range(2021, 2027)]
    assert medians == sorted(medians)
    assert medians[0] < 33_000
    assert medians[-1] > 150_000

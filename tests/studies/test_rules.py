"""Rules of thumb: each against the figures in its paper, and against the exact count of the architecture it was made
for.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import llmcalc
from llmcalc.cli import main as cli
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.costs.flops import FlopCount, flops, run_config_of
from llmcalc.costs.params import params
from llmcalc.model import ModelSpec
from llmcalc.studies.flop_rules import (
    FlopRule,
    ModelSizes,
    chinchilla_appendix_f,
    flop_rules_for,
    kaplan_table_1,
    megatron_flops,
    palm_appendix_b,
    sizes_of_model,
)
from llmcalc.workload.workload import Phase
from tests.contracts.test_parts import decoder, encoder_decoder
from tests.samples import in_one_test


def rules(count: FlopCount) -> dict[str, FlopRule]:
    found = flop_rules_for(count)
    assert len({rule.key for rule in found}) == len(found)
    return {rule.key: rule for rule in found}


def counted(spec: ModelSpec, **settings: Any) -> FlopCount:
    return flops(spec, run_config_of(spec, **settings))


def gpt(layers: int = 3, h: int = 32, heads: int = 4, vocab: int = 60) -> ModelSpec:
    """The architecture that the rules assume: MHA, a non-gated FFN with d_ff = 4h, no biases, norms without weights."""
    block = Block(
        attention=Attention(num_attention_heads=heads),
        feed_forward=FeedForward(intermediate_size=4 * h, hidden_act="gelu"),
        norm=Norm(type="rmsnorm", weight=False),
        norm_placement="pre",
    )
    return ModelSpec(
        vocab_size=vocab, hidden_size=h, tie_word_embeddings=True, decoder=Stack(num_hidden_layers=layers, block=block)
    )


# Against the papers

CHINCHILLA_TABLE_A4 = [
    # N, half of its last digit, layers, d_model, ffw_size, heads, k/q size, "FLOP ratio (ours / 6ND)"
    (73e6, 0.5e6, 10, 640, 2560, 10, 64, 1.03),
    (305e6, 0.5e6, 20, 1024, 4096, 16, 64, 1.10),
    (552e6, 0.5e6, 24, 1280, 5120, 10, 128, 1.08),
    (1.1e9, 0.05e9, 26, 1792, 7168, 14, 128, 1.04),
    (1.6e9, 0.05e9, 28, 2048, 8192, 16, 128, 1.03),
    (6.8e9, 0.05e9, 40, 3584, 14336, 28, 128, 0.99),
]


@in_one_test
@pytest.mark.parametrize("row", CHINCHILLA_TABLE_A4, ids=lambda row: f"{row[0]:.0e}")
def test_chinchilla_against_its_own_table(row: tuple[float, ...]) -> None:
    """The paper's ratios result at 2048 tokens without the embedding and logits terms that its text lists, so V = 0
    here.
    """
    n, half, layers, h, inner, heads, size, printed = row
    d = ModelSizes(int(h), int(layers), int(layers * heads), int(layers * heads * size), int(layers * inner), vocab=0)
    ratio = 3 * chinchilla_appendix_f(d, 2048) / (6 * n * 2048)
    assert ratio == pytest.approx(printed, abs=0.005 + ratio * half / n)  # both are rounded


def test_chinchilla_counts_embedding_and_logits_alike() -> None:
    d = ModelSizes(width=8, layers=1, total_heads=2, total_key_width=8, feed_forward=32, vocab=100)
    without = ModelSizes(8, 1, 2, 8, 32, 0)
    assert chinchilla_appendix_f(d, 5) - chinchilla_appendix_f(without, 5) == 2 * (2 * 5 * 100 * 8)


def test_megatron_at_gpt3() -> None:
    """Narayanan 2021, §5: 175 B parameters, 1,536 sequences of 2,048 tokens: 8·T·P is the same within a few percent."""
    d = sizes_of_model(llmcalc.load("gpt3-175b").model)
    b, s, h, layers, v = 1536, 2048, 12288, 96, d.vocab
    assert (d.width, d.layers) == (h, layers)
    with_recompute, without = megatron_flops(d, b, s, True), megatron_flops(d, b, s, False)
    assert with_recompute == pytest.approx(
        96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)), rel=1e-12
    )
    assert without == pytest.approx(72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)), rel=1e-12)
    assert with_recompute == pytest.approx(8 * b * s * 175e9, rel=0.04)


def test_kaplan_and_palm_by_hand() -> None:
    assert (
        kaplan_table_1(parameter_count=1000, key_width=3 * 32, context_tokens=50) == 2 * 1000 + 2 * 3 * 50 * 32
    )  # 2N + 2·n_layer·n_ctx·d_attn
    assert (
        palm_appendix_b(parameter_count=1000, key_width=3 * 4 * 8, seq=50) == 6 * 1000 + 12 * 3 * 4 * 8 * 50
    )  # 6N + 12LHQT


# Against the exact count


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_what_each_rule_leaves_out_of_the_model_it_was_made_for(phase: Phase) -> None:
    spec, b, s = gpt(), 2, 10
    count = counted(spec, batch=b, seq=s, phase=phase)
    found, times, tokens = rules(count), 3 if phase == "training" else 1, b * s
    logits, softmax = 2 * 32 * 60, 3 * 3 * 4 * s  # per token
    assert found["megatron"].total == count.full
    assert found["megatron"].error_full == 0
    assert found["chinchilla_f"].total - count.full == times * tokens * (
        logits + softmax
    )  # the embedding as a matrix product, and softmax
    assert found["palm_b"].total == count.full  # N includes the tied embedding: 2Vh once, equal to the logits
    assert count.full - found["kaplan_table_1"].total == times * tokens * (logits + 2 * 3 * s * 32)  # half of the pairs
    assert params(spec).non_embedding == 12 * 3 * 32**2  # Kaplan's 2·d_model·n_layer·(2·d_attn + d_ff)


def test_recomputation_belongs_to_narayanan() -> None:
    count = counted(gpt(), batch=2, seq=10, phase="training", recompute="full")
    found = rules(count)
    assert found["megatron_recompute"].total == count.full  # 4 passes over the layers, 3 over the logits
    assert found["megatron"].total == count.full - count.recomputed


def test_errors_are_against_the_exact_count() -> None:
    count = llmcalc.flops(llmcalc.load("llama3-8b"), seq=2048)
    for rule in flop_rules_for(count):
        assert rule.total == pytest.approx(count.full * (1 + rule.error_full), rel=1e-12)
        assert rule.total == pytest.approx(count.causal * (1 + rule.error_causal), rel=1e-12)
    found = rules(count)
    assert (found["exact_full"].error_full, found["exact_causal"].error_causal) == (0, 0)
    assert found["kaplan_2n"].total == 2 * 2048 * (8_030_261_248 - 2 * 128256 * 4096)
    assert found["total_2n"].total == 2 * 2048 * 8_030_261_248
    assert set(rules(llmcalc.flops(llmcalc.load("llama3-8b"), seq=8, phase="training"))) >= {
        "kaplan_6n",
        "total_6n",
        "megatron_recompute",
    }


def test_a_mixture_of_experts_has_more_than_one_n() -> None:
    found = rules(llmcalc.flops(llmcalc.load("mixtral-8x7b"), seq=64))
    assert found["kaplan_2n"].total < found["active_2n"].total < found["total_2n"].total
    assert abs(found["active_2n"].error_full) < 0.05
    assert found["total_2n"].error_full > 2
    part = next(part for part in MoE.examples() if part.shared_expert is not None and part.num_experts_per_tok == 3)
    assert sizes_of_model(decoder(feed_forward=part)).feed_forward == 2 * (
        3 * 16 + 28
    )  # in each of 2 layers, 3 experts of 16 and a shared one of 28


def test_decoding_counts_all_tokens_in_reach() -> None:
    count = counted(gpt(), phase="decode", context=99)
    assert rules(count)["megatron"].total == count.full  # one token against 100


def test_an_encoder_decoder_has_rules_in_n_alone() -> None:
    found = rules(counted(encoder_decoder(Block.examples()[-1]), seq=8))
    assert set(found) == {"exact_full", "exact_causal", "kaplan_2n", "total_2n"}


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*words: str) -> str:
        monkeypatch.setattr(
            sys, "argv", ["llmcalc", "flops", "deepseek-v3", "--phase", "training", "--conventions", *words]
        )
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out

    listed = json.loads(run("--format", "json"))["flops"]["conventions"]
    assert {"key", "formula", "source", "total", "error_full", "error_causal"} <= set(listed[0])
    monkeypatch.setenv("COLUMNS", "80")
    text = run()
    assert max(len(line) for line in text.splitlines()) <= 80
    for formula in (
        "6N + 6·n_layer·n_ctx·d_attn",
        "6N + 12LHQT",
        "72Bsℓh²(1+s/6h+V/12ℓh)",
        "96Bsℓh²(1+s/6h+V/16ℓh)",
        "embed+ℓ(attn+dense)+logits",
    ):
        assert formula in text
    assert run("--format", "csv").splitlines()[0] == "target,rule,formula,flops,error_full,error_causal"

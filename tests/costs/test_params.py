"""Parameters of one op, and active parameters per token, by hand."""

from __future__ import annotations

import pytest

import llmcalc
from llmcalc.ops import Linear
from tests.families import shapes_of


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_linear_layer_has_a_bias_alone(tied: bool, bias: bool) -> None:
    layer = Linear(5, 3, bias=bias, is_tied=tied)
    assert layer.params() == 15 * (not tied) + 3 * bias
    assert [tensor.shape for tensor in layer.tensors()] == [(3, 5)] * (not tied) + [(3,)] * bias


def test_an_untied_head_adds_a_table() -> None:
    tied, untied = (llmcalc.params(f"gpt2?tie_word_embeddings={value}").total for value in ("true", "false"))
    assert untied - tied == 50257 * 768


def test_experts_of_images_are_held_and_no_token_of_text_passes_them() -> None:
    """ERNIE 4.5 VL: three layers with 2 of 6 experts of width 12 for text and as many of width 5 for images."""
    config = shapes_of("ernie4_5_vl_moe_text")[0]
    count = llmcalc.params(config)
    text, images = 3 * 32 * 12, 3 * 32 * 5  # gate, up and down of one expert
    router = 6 * 32 + 6  # a score per expert and its correction
    assert count.by_component["experts"] == 3 * 6 * (text + images)
    assert count.by_component["router"] == 3 * 2 * router
    assert count.total - count.active == 3 * (4 * text + 6 * images + router)

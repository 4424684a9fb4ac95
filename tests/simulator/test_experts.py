"""Mixtures of experts whose rows outweigh everything else hold what torch holds, to the byte."""

from __future__ import annotations

import pytest

from llmcalc.components.mixers.moa import MixtureOfAttention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import IdentityExperts, Latent, MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.model import ModelSpec
from llmcalc.simulator.lowering import Unsupported
from tests.contracts.test_parts import decoder
from tests.simulator.models import by_torch, without_values

NARROW = FeedForward(intermediate_size=24, hidden_act="silu", gated=True)
WIDE = FeedForward(intermediate_size=224, hidden_act="silu", gated=True)
PLAIN = FeedForward(intermediate_size=256, hidden_act="relu2", up_bias=True, down_bias=True)
SIGMOID = LinearRouter(scoring_func="sigmoid", score_correction="buffer")

MODELS = {
    "few wide experts": decoder(hidden_size=64, feed_forward=MoE(num_experts=8, num_experts_per_tok=2, expert=WIDE)),
    "many narrow experts": decoder(
        hidden_size=64, feed_forward=MoE(num_experts=64, num_experts_per_tok=8, expert=NARROW)
    ),
    "a shared expert beside many": decoder(
        hidden_size=112,
        feed_forward=MoE(num_experts=32, num_experts_per_tok=6, expert=NARROW, shared_expert=WIDE, router=SIGMOID),
    ),
    "biases and one expert per token": decoder(
        hidden_size=64, feed_forward=MoE(num_experts=4, num_experts_per_tok=1, expert=PLAIN)
    ),
    "a latent width": decoder(
        hidden_size=128,
        feed_forward=MoE(
            num_experts=16, num_experts_per_tok=4, expert=PLAIN, latent=Latent(moe_latent_size=32), shared_expert=WIDE
        ),
    ),
    "identity experts": decoder(
        hidden_size=64,
        feed_forward=MoE(
            num_experts=8, num_experts_per_tok=4, expert=WIDE, identity_experts=IdentityExperts(zero_expert_num=4)
        ),
    ),
    "attention heads of experts": decoder(
        hidden_size=64,
        attention=MixtureOfAttention(num_experts=8, num_experts_per_tok=3, num_key_value_heads=4, head_dim=16),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_experts_hold_what_torch_holds(name: str) -> None:
    spec: ModelSpec = MODELS[name]
    assert without_values(spec, batch=3, seq=96) == by_torch(spec, batch=3, seq=96)


def test_a_width_that_a_grouped_product_refuses_is_named() -> None:
    odd = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
    spec = decoder(feed_forward=MoE(num_experts=4, num_experts_per_tok=2, expert=odd))
    with pytest.raises(Unsupported, match=r"gate_proj: 20 elements of bfloat16 are 40 bytes; .* a multiple of 16"):
        without_values(spec)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        by_torch(spec)

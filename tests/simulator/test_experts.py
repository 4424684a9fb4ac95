"""Mixtures of experts whose rows outweigh everything else hold what torch holds, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llmcalc.components.mixers.mixture_of_attention import MixtureOfAttention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import IdentityExperts, Latent, MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
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
            num_experts=16,
            num_experts_per_tok=4,
            expert=PLAIN,
            latent=Latent(moe_latent_size=32),
            shared_expert=WIDE,
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
    with pytest.raises(
        UnsupportedKernel, match=r"gate_proj: 20 elements of bfloat16 are 40 bytes; .* a multiple of 16"
    ):
        without_values(spec)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        by_torch(spec)


class WholeTensors(TorchDispatchMode):
    """Writes down the operations whose results have at least as many elements as the weight of all experts."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.operations: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        output = function(*arguments, **(options or {}))
        if isinstance(output, torch.Tensor) and output.numel() >= self.elements and not output._is_view():
            self.operations.append(function.overloadpacket.__name__)
        return output


def test_the_gradients_of_two_slices_are_added_to_a_third_tensor() -> None:
    weight, rows = torch.randn(4 * 3, 2, requires_grad=True), torch.randn(5, 2)
    outputs = [rows @ weight.view(4, 3, 2)[torch.tensor(expert)].T for expert in range(4)]
    with WholeTensors(weight.numel()) as recorded:
        torch.stack(outputs).sum().backward()
    names = [name for name in recorded.operations if name in ("select_backward", "add")]
    assert names[:3] == ["select_backward", "select_backward", "add"]


def test_slices_of_experts_have_gradients_of_all_experts() -> None:
    """At the peak of the layer's backward pass there are two more tensors of the size of a matrix of all experts."""
    expert = FeedForward(intermediate_size=512, hidden_act="silu", gated=True)
    whole, sliced = (
        without_values(
            decoder(feed_forward=MoE(num_experts=64, num_experts_per_tok=2, expert=expert, expert_loop=True, **fields)),
            seq=1,
            choices=KernelChoices(matches_transformers=True),
        )
        for fields in ({}, {"sliced_experts": True})
    )
    matrix = 64 * 512 * decoder().hidden_size
    assert sliced.backward - whole.backward == pytest.approx(2 * 2 * matrix, rel=0.02)
    assert sliced.live == whole.live

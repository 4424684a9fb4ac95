"""Experts give the same numbers and gradients with rows sorted by expert as one expert at a time."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from llmcalc.components.base import Component
from llmcalc.components.layers.gemma4_layer import Gemma4Layer
from llmcalc.components.layers.shortcut_layer import ShortcutLayer
from llmcalc.components.mixers.mixture_of_attention import MixtureOfAttention
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.expert_dispatch import (
    capacity_dispatch_class,
    expert_dispatch_class,
    expert_group_ends,
)
from llmcalc.components.networks.moe import MoE
from tests.contracts.test_parts import around_a_model

EXAMPLES = [
    pytest.param(example, id=f"{part.__name__}-{i}")
    for part in (MoE, MixtureOfAttention, ShortcutLayer, Gemma4Layer)
    for i, example in enumerate(part.examples())
]


def outputs(net: Any, ids: torch.Tensor, **how: bool) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Logits and gradients, in float32: on a CPU, rows of a multiple of 4 elements fit a grouped product."""
    net.zero_grad()
    logits = net(ids, **how)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return logits.detach(), [None if p.grad is None else p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_grouped_experts_give_what_separate_experts_give(example: Component) -> None:
    torch.manual_seed(0)
    spec = around_a_model(example)
    net, ids = spec.reference(), torch.randint(0, spec.vocab_size, (2, 9))
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)  # biases begin at 0, which would hide a bias of the wrong expert
    separate, grouped = outputs(net, ids), outputs(net, ids, grouped_experts=True)
    torch.testing.assert_close(grouped, separate, atol=2e-5, rtol=1e-4)


def test_prediction_modules_use_grouped_experts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    Dispatch = expert_dispatch_class()
    begin = Dispatch.__init__
    monkeypatch.setattr(
        Dispatch, "__init__", lambda self, c, grouped, *rest: (seen.append(grouped), begin(self, c, grouped, *rest))[1]
    )
    spec = around_a_model(MoE.examples()[0]).model_copy(update={"mtp": MultiTokenPrediction.examples()[0]})
    net, ids = spec.reference(), torch.randint(0, spec.vocab_size, (2, 9))
    grouped, separate = (net(ids, with_mtp=True, grouped_experts=how) for how in (True, False))
    assert seen == [True] * 4 + [False] * 4  # two layers and two prediction modules
    torch.testing.assert_close(grouped, separate, atol=2e-5, rtol=1e-4)


def test_rows_go_to_the_experts_in_order_and_back() -> None:
    chosen = torch.tensor([[[2, 0], [0, 3], [2, 3]]])
    sent = expert_dispatch_class()(chosen, True)
    assert sent.expert.tolist() == [0, 0, 2, 2, 3, 3]
    assert sent.token.tolist() == [0, 1, 0, 2, 1, 2]
    assert expert_group_ends(sent.expert, 5).tolist() == [2, 2, 4, 6, 6]  # no token chooses experts 1 and 4
    rows = torch.randn(6, 4)
    assert torch.equal(sent.sort_by_token(sent.sort_by_expert(rows)), rows)


@pytest.mark.parametrize("example", [MoE.examples()[i] for i in (0, 1, 4, 8)])
def test_experts_with_room_for_all_tokens_give_what_separate_experts_give(example: MoE) -> None:
    torch.manual_seed(0)
    spec = around_a_model(example)
    net, ids = spec.reference(), torch.randint(0, spec.vocab_size, (2, 9))
    enough = Fraction(example.num_experts, example.num_experts_per_tok)
    torch.testing.assert_close(net(ids, expert_capacity=enough), net(ids), atol=2e-5, rtol=1e-4)
    scarce = net(ids, expert_capacity=enough / 6)
    assert not torch.allclose(scarce, net(ids), atol=2e-3)


def test_experts_of_a_fixed_capacity_take_the_rows_of_the_highest_weights() -> None:
    """4 tokens, 2 experts, all choose the first: ⌈4 · 1 / 2 · 1⌉ = 2 rows each, and the second expert's are padding."""
    chosen, weights = torch.zeros(1, 4, 1, dtype=torch.int64), torch.tensor([[[0.1], [0.4], [0.2], [0.3]]])
    capped = capacity_dispatch_class()(weights, chosen, 2, Fraction(1))
    assert capped.weight.tolist() == [[pytest.approx(0.4), pytest.approx(0.3)], [0, 0]]
    assert capped.token[:2].tolist() == [1, 3]
    x = torch.eye(4)[None]
    assert torch.equal(
        capped.combine_outputs(capped.copy_rows_to_experts(x), weights),
        x * torch.tensor([0, 0.4, 0, 0.3])[None, :, None],
    )

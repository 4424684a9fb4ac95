"""Experts give the same numbers and gradients with rows sorted by expert as one expert at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmcalc.components.base import Component
from llmcalc.components.layers.gemma4 import Gemma4Layer
from llmcalc.components.layers.shortcut import ShortcutLayer
from llmcalc.components.mixers.moa import MixtureOfAttention
from llmcalc.components.mtp import MultiTokenPrediction
from llmcalc.components.networks.moe import MoE, dispatch_class, ends_of_groups
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
    Dispatch = dispatch_class()
    begin = Dispatch.__init__
    monkeypatch.setattr(
        Dispatch, "__init__", lambda self, c, grouped: (seen.append(grouped), begin(self, c, grouped))[1]
    )
    spec = around_a_model(MoE.examples()[0]).model_copy(update={"mtp": MultiTokenPrediction.examples()[0]})
    net, ids = spec.reference(), torch.randint(0, spec.vocab_size, (2, 9))
    grouped, separate = (net(ids, with_mtp=True, grouped_experts=how) for how in (True, False))
    assert seen == [True] * 4 + [False] * 4  # two layers and two prediction modules
    torch.testing.assert_close(grouped, separate, atol=2e-5, rtol=1e-4)


def test_rows_go_to_the_experts_in_order_and_back() -> None:
    chosen = torch.tensor([[[2, 0], [0, 3], [2, 3]]])
    sent = dispatch_class()(chosen, True)
    assert sent.expert.tolist() == [0, 0, 2, 2, 3, 3]
    assert sent.token.tolist() == [0, 1, 0, 2, 1, 2]
    assert ends_of_groups(sent.expert, 5).tolist() == [2, 2, 4, 6, 6]  # no token chooses experts 1 and 4
    rows = torch.randn(6, 4)
    assert torch.equal(sent.to_tokens(sent.to_experts(rows)), rows)

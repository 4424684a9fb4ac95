"""A class that computes gate and up projection as one product keeps the product until its network returns."""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.simulator.kernel_choices import KernelChoices
from tests.contracts.test_parts import decoder
from tests.simulator.passes import BATCH, without_values

WIDTH, INTERMEDIATE = 512, 256
"""A network holds most at its down projection where it is no wider than its output."""


def most_held(network: torch.nn.Module, x: torch.Tensor) -> int:
    """Returns the most bytes that a network holds beside its input, without gradients."""
    with torch.profiler.profile(profile_memory=True) as profile, torch.no_grad():
        network(x)
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def held_at_down_projection(**fields: Any) -> int:
    """Returns the bytes that the token after a prompt holds when the last layer's down projection has run."""
    network = FeedForward(intermediate_size=INTERMEDIATE, hidden_act="silu", gated=True, **fields)
    log: list[str] = []
    without_values(
        decoder(hidden_size=WIDTH, feed_forward=network), log=log, choices=KernelChoices(matches_transformers=True)
    )
    last_line = next(line for line in reversed(log) if line.startswith("+") and line.endswith("layers.mlp"))
    return int(last_line[13:26].replace(",", ""))


@pytest.mark.parametrize("class_name", ["phi3.modeling_phi3.Phi3MLP", "glm4.modeling_glm4.Glm4MLP"])
def test_a_class_holds_product_result_and_output(class_name: str) -> None:
    """In the down projection: both halves, their product and what comes out; no more at the multiplication."""
    module_name, _, name = class_name.rpartition(".")
    config = SimpleNamespace(hidden_size=WIDTH, intermediate_size=INTERMEDIATE, hidden_act="silu")
    network = getattr(import_module(f"transformers.models.{module_name}"), name)(config)
    tokens = 64
    most_saved_bytes = most_held(network, torch.zeros(1, tokens, WIDTH))
    assert most_saved_bytes == 4 * tokens * (3 * INTERMEDIATE + WIDTH)


def test_the_product_lives_until_the_network_returns() -> None:
    """Apart, both projections are gone when the down projection runs."""
    product_bytes = 2 * BATCH * 2 * INTERMEDIATE
    assert held_at_down_projection(fused_gate=True) - held_at_down_projection() == product_bytes

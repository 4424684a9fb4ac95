"""Networks with a clamped gate compute what the classes of transformers compute, and keep as much for the backward
pass. `swiglu_limit`, which changes no count, is set to the limit of the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from llmcalc.components.networks.feed_forward import FeedForward, activate
from llmcalc.components.networks.moe import MoE
from tests.builders import spec_of
from tests.families import shapes_of

CLASSES = {"hy_v4": "HYV4", "glm5_next_text": "Glm5NextText", "deepseek_v4": "DeepseekV4"}
"""Model type → how the names of its classes begin."""


def experts_of(model_type: str) -> MoE:
    """Returns the first mixture of experts of the family's first small config."""
    stack = spec_of(shapes_of(model_type)[0]).decoder
    assert stack is not None
    networks = (stack.layer(name).feed_forward for name in stack.layer_names())
    return next(network for network in networks if isinstance(network, MoE))


def class_gate(model_type: str) -> Callable[[Tensor], Tensor]:
    """Returns what the class of a family's experts does with the product of gate and up projections."""
    folder = model_type.removesuffix("_text")
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    experts: Any = getattr(module, f"{CLASSES[model_type]}Experts")
    instance = experts.__new__(experts)
    torch.nn.Module.__init__(instance)
    instance.swiglu_limit = instance.limit = 7.0
    instance.act_fn = torch.nn.functional.silu
    gate: Callable[[Tensor], Tensor] = instance._apply_gate
    return gate


def value_and_kept_bytes(gate: Callable[[Tensor], Tensor], product: Tensor) -> tuple[Tensor, int]:
    """Returns a gate's output, and the bytes of all storages that its backward pass reads."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = gate(product.requires_grad_())
    return output, sum(kept.values())


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_clamped_gate_is_that_of_its_class(model_type: str) -> None:
    expert: FeedForward = experts_of(model_type).expert

    def reference_gate(product: Tensor) -> Tensor:
        gate, up = product.chunk(2, -1)
        return activate(expert.hidden_act, gate) * activate(expert.up_act, up)

    product = 20 * torch.randn(6, 2 * expert.intermediate_size, generator=torch.Generator().manual_seed(0))
    ours, theirs = (value_and_kept_bytes(gate, product.clone()) for gate in (reference_gate, class_gate(model_type)))
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize(("model_type", "activation"), [("hy_v4", "silu"), ("glm5_next_text", "clamped_silu")])
def test_a_shared_expert_is_clamped_where_its_class_clamps_it(model_type: str, activation: str) -> None:
    """HYV4MLP multiplies plain SiLU; Glm5NextTextMLP clamps as its experts do."""
    shared_expert = experts_of(model_type).shared_expert
    assert isinstance(shared_expert, FeedForward)
    assert shared_expert.hidden_act == activation
    assert (shared_expert.up_act == "clamped") == (activation == "clamped_silu")

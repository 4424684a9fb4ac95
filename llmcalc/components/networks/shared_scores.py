"""Scores that weight shared experts: one score per shared expert, computed from the router's input.

The scores are normalised together with those of the chosen experts, and one learned factor scales all weights; both act
elementwise and are left out. transformers: models/inkling (`InklingTopkRouter`, `InklingSharedExperts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Experts, ModelProperties, Part, PartWitness
from ..runtime import vector_module
from .feed_forward import FeedForward

if TYPE_CHECKING:
    from torch import nn


class SharedScores(Part):
    """A linear layer that computes one score per shared expert; each score multiplies the expert's hidden units.

    shared_experts: the number of shared experts; it divides their total width.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "router"

    shared_experts: Experts

    def flow(self, recorder: Flow, shared_network: FeedForward, x: Value) -> Value:
        """Returns the weighted sum of all shared experts' outputs.

        shared_network: all shared experts as a single gated network.
        """
        expert_axis = Axis("shared_experts", self.shared_experts)
        ffn_axis = Axis("shared_ffn", shared_network.intermediate_size // self.shared_experts)
        logits = recorder.linear("shared_router", x, expert_axis, kind="router")
        expert_weights = recorder.mul(
            recorder.act(logits, "sigmoid"), recorder.vector("shared_scale", Axis("one", 1), kind="router")
        )
        recorder.hold(shares=expert_weights)
        with recorder.scope("shared_expert", kind="shared_expert", source="Dai et al. 2024, §3.2"):
            gate_units = recorder.act(recorder.linear("gate_proj", x, expert_axis, ffn_axis), shared_network.hidden_act)
            gate_units = recorder.mul(gate_units, recorder.linear("up_proj", x, expert_axis, ffn_axis))
            return recorder.linear("down_proj", recorder.mul(gate_units, expert_weights), *x.axes)

    def reference(self, model_properties: ModelProperties) -> Mapping[str, nn.Module]:
        """Builds the linear layer of the scores and the scaling factor, as named modules."""
        import torch
        from torch import nn

        router = nn.Linear(model_properties.hidden_size, self.shared_experts, bias=False)
        return {"shared_router": router, "shared_scale": vector_module(torch.ones(1))}

"""Weights of shared experts: a score for each of them, of the same input as those of the routed experts.

The scores are normalised together with those of the chosen experts, and one learned factor scales all weights; both act
elementwise and are left out. transformers: models/inkling (`InklingTopkRouter`, `InklingSharedExperts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import BY_TORCH, Context, Experts, Part, PartWitness
from ..runtime import vector
from .feed_forward import FeedForward

if TYPE_CHECKING:
    from torch import nn


class SharedScores(Part):
    """A score for each shared expert, which weighs its part of the hidden units.

    shared_experts: the number of shared experts; it divides their total width.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    kind: ClassVar[str] = "router"

    shared_experts: Experts

    def flow(self, f: Flow, expert: FeedForward, x: Value) -> Value:
        """Returns the weighted output of all shared experts. expert: all of them as one gated network."""
        experts = Axis("shared_experts", self.shared_experts)
        width = Axis("shared_ffn", expert.intermediate_size // self.shared_experts)
        logits = f.linear("shared_router", x, experts, kind="router")
        shares = f.mul(f.act(logits, "sigmoid"), f.vector("shared_scale", Axis("one", 1), kind="router"))
        f.hold(shares=shares)
        with f.scope("shared_expert", kind="shared_expert", source="Dai et al. 2024, §3.2"):
            y = f.act(f.linear("gate_proj", x, experts, width), expert.hidden_act)
            y = f.mul(y, f.linear("up_proj", x, experts, width))
            return f.linear("down_proj", f.mul(y, shares), *x.axes)

    def reference(self, context: Context) -> Mapping[str, nn.Module]:
        """Builds the layer of the scores and the factor, under their names in the mixture."""
        import torch
        from torch import nn

        router = nn.Linear(context.hidden_size, self.shared_experts, bias=False)
        return {"shared_router": router, "shared_scale": vector(torch.ones(1))}

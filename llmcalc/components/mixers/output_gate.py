"""A gate on the heads' output: the sigmoid of a projection of the layer's input.

Qiu et al. 2025 (arXiv:2505.06708). In Qwen3-Next, q_proj contains that projection; transformers: models/qwen3_next.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import BY_TORCH, Flag, ModelProperties, Part, PartWitness
from ..runtime import vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class OutputGate(Part):
    """The gate on the output of attention. Its projection is named `gate_proj` in the attention module.

    per: one gate value per `element` of the heads' output, or one per `head`.
    bias: whether the projection has a bias, false by default. `head` adds one number per head (Beam).
    """

    witness: ClassVar[PartWitness] = BY_TORCH

    per: Literal["element", "head"]
    bias: Flag | Literal["head"] = False

    def flow(self, recorder: Flow, x: Value, y: Value) -> Value:
        """Records the gate. x: the layer's input. y: the output of the heads, with axes (heads, size)."""
        gates = y.axes if self.per == "element" else y.axes[:1]
        if self.bias != "head":
            return recorder.mul(y, recorder.act(recorder.linear("gate_proj", x, *gates, bias=self.bias), "sigmoid"))
        with recorder.scope("gate_proj"):
            gate = recorder.add(recorder.linear("", x, *gates), recorder.vector("head_bias", *y.axes[:1]))
        return recorder.mul(y, recorder.act(gate, "sigmoid"))

    def reference(self, model_properties: ModelProperties, heads: int, head_dim: int) -> nn.Module:
        """Builds the projection, to [..., heads * size] or [..., heads]."""
        from torch import nn

        width = heads * head_dim if self.per == "element" else heads
        if self.bias == "head":
            gate: nn.Module = _biased_by_head()(model_properties.hidden_size, width, heads)
            return gate
        return nn.Linear(model_properties.hidden_size, width, bias=bool(self.bias))


@cache
def _biased_by_head() -> type[nn.Module]:
    import torch
    from torch import nn

    class GateBiasedByHead(nn.Linear):
        """A projection without an element-wise bias; a single bias per head is added to all outputs of the head."""

        def __init__(self, hidden: int, width: int, heads: int) -> None:
            super().__init__(hidden, width, bias=False)
            self.head_bias = vector(torch.zeros(heads))

        def forward(self, x: Tensor) -> Tensor:
            gates_of_heads = super().forward(x).unflatten(-1, (self.head_bias.weight.shape[0], -1))
            gates: Tensor = (gates_of_heads + self.head_bias.weight[:, None]).flatten(-2)
            return gates

    return GateBiasedByHead

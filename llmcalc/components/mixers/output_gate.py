"""A gate on the heads' output: an activation, mostly the sigmoid, of a projection of the layer's input.

Qiu et al. 2025 (arXiv:2505.06708). In Qwen3-Next, q_proj contains that projection; transformers: models/qwen3_next.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, ModelProperties, Part, PartWitness
from ..runtime import vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class OutputGate(Part):
    """The gate on attention's output, whose projection has the name `gate_proj` in the attention module.

    per: one gate value per `element` of the heads' output, or one per `head`.
    bias: whether the projection has a bias, false by default. `head` adds one number per head (Beam).
    gate_func: the function of the projection, `sigmoid` by default. K2 Horizon's `softplus` is that of base 2.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    per: Literal["element", "head"]
    bias: Flag | Literal["head"] = False
    gate_func: Literal["sigmoid", "silu", "softplus"] = "sigmoid"

    def flow(self, recorder: Flow, x: Value, attn_output: Value) -> Value:
        """Records the gate's operations; returns the gated output. x: the layer's input. attn_output: (heads, size)."""
        gate_axes = attn_output.axes if self.per == "element" else attn_output.axes[:1]
        if self.bias != "head":
            gate = recorder.linear("gate_proj", x, *gate_axes, bias=self.bias)
            return recorder.mul(attn_output, recorder.act(gate, self.gate_func))
        with recorder.scope("gate_proj"):
            gate = recorder.add(recorder.linear("", x, *gate_axes), recorder.vector("head_bias", *attn_output.axes[:1]))
        return recorder.mul(attn_output, recorder.act(gate, self.gate_func))

    def reference(self, model_properties: ModelProperties, heads: int, head_dim: int) -> nn.Module:
        """Builds the gate's projection to [..., heads * size] or [..., heads]."""
        from torch import nn

        heads_width = heads * head_dim if self.per == "element" else heads
        if self.bias == "head":
            return _gate_class_with_head_bias()(model_properties.hidden_size, heads_width, heads)
        return nn.Linear(model_properties.hidden_size, heads_width, bias=bool(self.bias))


def gate_values(gate_func: str, projected_x: Tensor) -> Tensor:
    """Returns the gate's values. projected_x: the output of the gate's projection."""
    from torch.nn import functional as F

    if gate_func == "softplus":
        return F.softplus(projected_x, beta=math.log(2))
    return F.silu(projected_x) if gate_func == "silu" else projected_x.sigmoid()


@cache
def _gate_class_with_head_bias() -> type[nn.Module]:
    import torch
    from torch import nn

    class GateBiasedByHead(nn.Linear):
        """A linear projection whose bias is one number per head, added to all of the head's outputs."""

        def __init__(self, hidden_size: int, gate_width: int, heads: int) -> None:
            super().__init__(hidden_size, gate_width, bias=False)
            self.head_bias = vector_module(torch.zeros(heads))

        def forward(self, x: Tensor) -> Tensor:
            head_gates = super().forward(x).unflatten(-1, (self.head_bias.weight.shape[0], -1))
            return (head_gates + self.head_bias.weight[:, None]).flatten(-2)

    return GateBiasedByHead

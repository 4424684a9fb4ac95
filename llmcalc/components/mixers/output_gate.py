"""A gate on the heads' output: the sigmoid of a projection of the layer's input.

Qiu et al. 2025 (arXiv:2505.06708). In Qwen3-Next, q_proj contains that projection; transformers: models/qwen3_next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import BY_TORCH, Context, Flag, Part

if TYPE_CHECKING:
    from torch import nn


class OutputGate(Part):
    """The gate on attention's output. Its projection is named `gate_proj` in the attention module.

    per: one gate value per `element` of the heads' output, or one per `head`.
    bias: whether the projection has a bias, false by default.
    """

    witness = BY_TORCH

    per: Literal["element", "head"]
    bias: Flag = False

    def flow(self, f: Flow, x: Value, y: Value) -> Value:
        """Records the gate. x: the layer's input. y: the output of the heads, with axes (heads, size)."""
        gates = y.axes if self.per == "element" else y.axes[:1]
        return f.mul(y, f.act(f.linear("gate_proj", x, *gates, bias=self.bias), "sigmoid"))

    def reference(self, context: Context, heads: int, size: int) -> nn.Module:
        """Builds the projection, to [..., heads * size] or [..., heads]."""
        from torch import nn

        return nn.Linear(context.hidden_size, heads * size if self.per == "element" else heads, bias=self.bias)

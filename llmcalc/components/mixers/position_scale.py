"""A factor on the queries that depends on the position, learned per head: scale · ln(position + 1) + bias.

The bias starts at 1 and the scale at 0. transformers: models/mistral_large4 (`MistralLarge4TextSoftmaxScaling`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..runtime import PassState, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


def record_position_scale(recorder: Flow, q: Value, heads: Axis) -> Value:
    """Records the queries [tokens, heads, size], multiplied by the factor of their head and position."""
    with recorder.scope("position_scale"):
        return recorder.act(q, "log_position", recorder.vector("scale", heads), recorder.vector("bias", heads))


@cache
def position_scale_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PositionScale(nn.Module):
        """Scales queries by position. x: [batch, heads, tokens, size] → same shape."""

        def __init__(self, heads: int) -> None:
            super().__init__()
            self.scale, self.bias = vector_module(torch.zeros(heads)), vector_module(torch.ones(heads))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            positions = pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + x.shape[-2], x.device)
            log_positions = (positions + 1).float().log().to(x.dtype)
            position_factor = self.scale.weight[:, None] * log_positions + self.bias.weight[:, None]
            return x * position_factor[..., None]

    return PositionScale

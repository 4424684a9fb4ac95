"""A causal depthwise convolution over the last tokens, added to its input: x + conv(x), without a bias.

transformers: models/inkling (`InklingShortConvolution`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ..algebra import Number
from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from .runtime import PassState, causal_conv_class, recurrent_state_class

if TYPE_CHECKING:
    from torch import Tensor, nn


def record_causal_convolution(
    recorder: Flow, conv_name: str, x: Value, *channels: Axis | JoinedShapes, kernel_size: Number, **node_fields: Any
) -> Value:
    """Records a depthwise convolution over the last `kernel_size` tokens, and its state, the last inputs."""
    conv_output = recorder.conv(
        conv_name, x, *channels, kernel=kernel_size, groups=x.width, padding=kernel_size - 1, **node_fields
    )
    recorder.state("conv_state", *channels, Axis("kernel", kernel_size), state_kind="conv_state")
    return conv_output


def record_residual_convolution(recorder: Flow, conv_name: str, x: Value, kernel_size: Number) -> Value:
    """Records x + conv(x) for a convolution module. kernel_size: the width of the convolution in tokens."""
    with recorder.scope(conv_name):
        conv_output = record_causal_convolution(
            recorder, "conv", x, *x.axes, kernel_size=kernel_size, state_name="conv_state", kind="convolution"
        )
        return recorder.add(conv_output, x)


@cache
def residual_convolution_class() -> type[nn.Module]:
    from torch import nn

    class ResidualConvolution(nn.Module):
        """The convolution plus its input. x: [batch, tokens, width] → same shape."""

        def __init__(self, channels: int, kernel_size: int) -> None:
            super().__init__()
            self.conv, self.conv_state = causal_conv_class()(channels, kernel_size, False), recurrent_state_class()()

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            conv_output: Tensor = self.conv(x.transpose(1, 2), pass_state, self.conv_state).transpose(1, 2)
            return conv_output + x

    return ResidualConvolution

"""The convolution of JetBlock, whose filters are computed for each token.

Source: NVlabs/Jet-Nemotron at 94cbd12, jetai/modeling/hf/dconv_fwdbwd.py (`DynamicConvTritonFunc`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..aten import Aten
from ..tensor import OptionalGradient, Tensor
from .autograd_function import record_function


def dynamic_conv(aten: Aten, x: Tensor, filters: Tensor) -> Tensor:
    """Convolves each token with its own filters. x: [B, T, channels]; filters: [B, T, channels · width]."""

    def backward(_dy: Tensor, x: Tensor, filters: Tensor) -> Sequence[OptionalGradient]:
        _dense = aten.contiguous(_dy)
        return aten.new_like(x), aten.new_like(filters)

    with aten.graph.no_grad():
        dense_x, dense_filters = aten.contiguous(x), aten.contiguous(filters)
        y = aten.new_like(dense_x)
    return record_function(aten, "DynamicConvTritonFunc", (x, filters), y, backward, (dense_x, dense_filters))

"""RWKV-4's weighted average with the published CUDA training kernel.

Source: transformers 5.23, models/rwkv/modeling_rwkv.py:57 (`RwkvLinearAttention`), with the kernel of BlinkDL/RWKV-LM.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..aten import Aten
from ..tensor import BFLOAT16, FLOAT16, FLOAT32, OptionalGradient, Tensor
from .autograd_function import record_function


def rwkv_linear_attention(
    aten: Aten, decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, returns_state: bool = False
) -> Tensor:
    """Computes RWKV-4's weighted average of values by the published CUDA kernel.

    key, value: [batch, tokens, channels]; decay, time_first: [channels].

    returns_state: whether the kernel reads and writes a state, as it does without gradients; false by default.
    """
    dtype = key.dtype

    def forward(decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        decay = aten.scale(aten.exp(aten.contiguous(aten.to(decay, FLOAT32))))
        if dtype is FLOAT16:
            time_first, key, value = aten.to(time_first, FLOAT32), aten.to(key, FLOAT32), aten.to(value, FLOAT32)
        time_first, key, value = aten.contiguous(time_first), aten.contiguous(key), aten.contiguous(value)
        output = aten.new_tensor(key.shape, key.dtype)
        _state = aten.new_tensor((key.shape[0], key.shape[2], 3), FLOAT32) if returns_state else None
        return aten.to(output, dtype), decay, time_first, key, value, output

    def backward(
        g: Tensor, decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, _: Tensor
    ) -> Sequence[OptionalGradient]:
        g_decay = aten.new_like(decay, dtype=BFLOAT16 if dtype is BFLOAT16 else FLOAT32)
        g_first, g_key, g_value = aten.new_like(time_first), aten.new_like(key), aten.new_like(value)
        if dtype is FLOAT16:
            g = aten.to(g, FLOAT32)
        aten.contiguous(g)
        return aten.to(g_decay, dtype), aten.to(g_first, dtype), aten.to(g_key, dtype), aten.to(g_value, dtype)

    with aten.graph.no_grad():
        y, *saved_tensors = forward(decay, time_first, key, value)
    return record_function(aten, "RwkvLinearAttention", (decay, time_first, key, value), y, backward, saved_tensors)

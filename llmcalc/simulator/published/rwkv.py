"""RWKV-4's weighted average by its CUDA training kernel.

Source: transformers 5.23, models/rwkv/modeling_rwkv.py:57 (`RwkvLinearAttention`), with the kernel of BlinkDL/RWKV-LM.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..aten import Aten
from ..tensor import BFLOAT16, FLOAT16, FLOAT32, Gradient, Tensor
from .function import record_function


def rwkv_linear_attention(
    t: Aten, decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, with_state: bool = False
) -> Tensor:
    """Runs RWKV-4's kernel. key, value: [batch, tokens, channels]; decay, time_first: [channels].

    with_state: whether the kernel reads and writes a state, as it does without gradients; false by default.
    """
    graph, dtype = t.graph, key.dtype

    def forward(decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        decay = t.scale(t.exp(t.contiguous(t.to(decay, FLOAT32))))
        if dtype is FLOAT16:
            time_first, key, value = t.to(time_first, FLOAT32), t.to(key, FLOAT32), t.to(value, FLOAT32)
        time_first, key, value = t.contiguous(time_first), t.contiguous(key), t.contiguous(value)
        output = t.new(key.shape, key.dtype)
        _state = t.new((key.shape[0], key.shape[2], 3), FLOAT32) if with_state else None
        return t.to(output, dtype), decay, time_first, key, value, output

    def backward(
        g: Tensor, decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, _: Tensor
    ) -> Sequence[Gradient]:
        g_decay = t.like(decay, dtype=BFLOAT16 if dtype is BFLOAT16 else FLOAT32)
        g_first, g_key, g_value = t.like(time_first), t.like(key), t.like(value)
        if dtype is FLOAT16:
            g = t.to(g, FLOAT32)
        t.contiguous(g)
        return t.to(g_decay, dtype), t.to(g_first, dtype), t.to(g_key, dtype), t.to(g_value, dtype)

    with graph.no_grad():
        y, *saves = forward(decay, time_first, key, value)
    return record_function(graph, "RwkvLinearAttention", (decay, time_first, key, value), y, backward, saves)

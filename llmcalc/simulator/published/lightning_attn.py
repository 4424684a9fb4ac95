"""Lightning attention with the authors' training kernel.

Source: OpenNLPLab/lightning-attention at d15c3852, lightning_attn/ops/lightning_attn_interface.py and
triton/lightning_attn2.py. q, k, v: [batch, heads, tokens, size].
"""

from __future__ import annotations

from collections.abc import Sequence

from ..aten import Aten
from ..tensor import OptionalGradient, Tensor
from .autograd_function import next_power_of_two, record_function

LARGEST_HEAD = 128
"""Largest head size of the kernel; larger heads are computed in parts, whose results are added."""


def lightning_attn_func(aten: Aten, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Runs lightning attention with heads of any size (lightning_attn_interface.py:16). slopes: each head's decay."""
    head_size, width = q.shape[-1], v.shape[-1]
    padded_width = next_power_of_two(width)
    if padded_width != width:
        v = aten.pad(v, padded_width)
    if head_size <= LARGEST_HEAD:
        o = lightning_attn2(aten, q, k, v, slopes)
    else:
        value_block = next(block_size for block_size in (64, 32, 16) if head_size % block_size == 0)
        o = lightning_attn2(aten, aten.slice(q, value_block), aten.slice(k, value_block), v, slopes)
        o = aten.add_number(o)  # 0 + o
        for _ in range(1, head_size // value_block):
            o = aten.add_to(o, lightning_attn2(aten, aten.slice(q, value_block), aten.slice(k, value_block), v, slopes))
    return aten.slice(o, width) if padded_width != width else o


def lightning_attn2(aten: Aten, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Runs the kernel of lightning attention for heads up to `LARGEST_HEAD` (triton/lightning_attn2.py:432)."""

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Sequence[OptionalGradient]:
        do = aten.contiguous(do)
        return aten.new_like(q), aten.new_like(k), aten.new_like(v), None

    with aten.graph.no_grad():
        dense_inputs = [aten.contiguous(x) for x in (q, k, v, slopes)]
        o = aten.new_tensor((*q.shape[:3], v.shape[-1]), q.dtype)
    return record_function(aten, "LightningAttention2", (q, k, v, slopes), o, backward, dense_inputs)

"""Grouped-query attention that blends each token's keys and values with the previous token's, per head.

Baichuan-M1 (Wang et al. 2025, arXiv:2502.12671): a convolution over two tokens with one pair of weights per key head
and one per value head, before RoPE. The cache keeps the blended keys and values, and a state the last key and value
before. Source: modeling_baichuan.py of baichuan-inc/Baichuan-M1-14B-Base.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import HeadDim, Heads, KVHeads, ModelProperties, Window
from ..rope import Rope
from ..runtime import (
    PassState,
    attention_mask,
    recurrent_state_class,
    softmax_core_class,
    tensor_cache_class,
    vector_module,
)
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn

BLENDED_TOKENS = 2
"""The number of tokens that a key or a value is blended from."""


class BlendedAttention(WindowedMixer):
    """Grouped-query attention with keys and values that are weighted sums over two tokens.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads, each with two weights for keys and two for values.
    head_dim: the size of a head.
    sliding_window: the number of tokens that each token attends to, itself included; all by default.
    position: RoPE on queries and blended keys.
    """

    formula_source: ClassVar[str] = "Wang et al. 2025 (Baichuan-M1), §2"

    type: Literal["blended"] = "blended"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    sliding_window: Window | None = None
    position: Rope = Rope()

    def report_label(self) -> str:
        return "full" if self.sliding_window is None else "sliding"

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, window = Axis("head_dim", self.head_dim), self.sliding_window
        q = recorder.rope(recorder.linear("q_proj", x, heads, head_dim), self.position)
        k = recorder.rope(
            self._blend_with_previous_row(recorder, "k", recorder.linear("k_proj", x, kv_heads, head_dim)),
            self.position,
        )
        v = self._blend_with_previous_row(recorder, "v", recorder.linear("v_proj", x, kv_heads, head_dim))
        k, v = recorder.cache("cache", self.cache_kind, k, v, token_limit=window)
        recorder.mask(q, k, causal=True, window=window)
        recorder.hold(q=q, k=k, v=v)
        k, v = recorder.repeat(k, heads), recorder.repeat(v, heads)
        recorder.hold(k=k, v=v)
        attn_output = recorder.attention("core", q, k, v, causal=True, window=window)
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes)

    def _blend_with_previous_row(self, recorder: Flow, projection_letter: str, x: Value) -> Value:
        """Records a weighted sum of each token's and the previous token's keys or values. x: the keys or values."""
        kv_heads, _ = x.axes
        previous_rows = recorder.shift(x, state_name=f"last_{projection_letter}")
        recorder.state(f"last_{projection_letter}", *x.axes, state_kind="conv_state")
        conv_weights = recorder.vector(f"conv_{projection_letter}", Axis("steps", BLENDED_TOKENS), kv_heads)
        return recorder.add(
            recorder.mul(previous_rows, recorder.take(conv_weights, kv_heads)),
            recorder.mul(x, recorder.take(conv_weights, kv_heads)),
        )

    def describe(self, hidden_size: int) -> str:
        return self._attention_heading("blended GQA")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=6),
            cls(num_attention_heads=2, num_key_value_heads=1, head_dim=8, sliding_window=5),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class BlendedAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Attends with keys and values blended over two tokens. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: BlendedAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            kv_heads = spec.num_key_value_heads
            self.conv_k, self.conv_v = vector_module(torch.ones(2, kv_heads)), vector_module(torch.ones(2, kv_heads))
            self.last_k, self.last_v = recurrent_state_class()(), recurrent_state_class()()
            self.core, self.cache = softmax_core_class()(), tensor_cache_class()(spec.sliding_window)

        def _blend_with_previous_row(
            self, x: Tensor, conv_weights: Tensor, state_module: Any, pass_state: PassState
        ) -> Tensor:
            """Returns the weighted sums over two tokens. x: [batch, kv_heads, tokens, d] → same shape."""
            stored_row = state_module.load(pass_state)
            previous_row = torch.zeros_like(x[:, :, :1]) if stored_row is None else stored_row[0][:, :, None]
            state_module.keep(pass_state, x[:, :, -1])
            previous_rows = torch.cat([previous_row, x[:, :, :-1]], 2)
            return previous_rows * conv_weights[0, :, None, None] + x * conv_weights[1, :, None, None]

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            q = spec.position.rotate_heads(self._split_heads("q", x), pass_state, pass_state.past_tokens)
            k = self._blend_with_previous_row(self._split_heads("k", x), self.conv_k.weight, self.last_k, pass_state)
            k = spec.position.rotate_heads(k, pass_state, pass_state.past_tokens)
            v = self._blend_with_previous_row(self._split_heads("v", x), self.conv_v.weight, self.last_v, pass_state)
            k, v = self.cache(pass_state, k, v)
            mask = attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window)
            k, v = self._repeat_for_query_heads(k, v)
            return self.o_proj(self.core(q, k, v, mask).transpose(1, 2).flatten(2))

    return BlendedAttentionReference

"""A toy attention: grouped-query attention with a learned temperature for each head.

`tests/contracts/test_toy_part.py` puts it into a copy of the package: a part is one file and one line.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import HeadDim, Heads, HeadSizes, KVHeads, ModelProperties, TokenMixer, Window
from ..runtime import PassState, attention_mask, tensor_cache_class, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class TemperedAttention(TokenMixer):
    """Grouped-query attention whose scores are multiplied by a learned temperature for each head.

    sliding_window: number of tokens that a token attends to, itself included.
    """

    node_name: ClassVar[str] = "self_attn"
    kind: ClassVar[str] = "attention"

    type: Literal["tempered"] = "tempered"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    sliding_window: Window | None = None

    def head_sizes(self, width: Number) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    def cost_thresholds(self) -> tuple[int, ...]:
        return () if self.sliding_window is None else (self.sliding_window,)

    def with_kv_heads(self, number: int, width: int) -> Self:
        return self.model_copy(update={"num_key_value_heads": number})

    def without_window(self) -> Self:
        return self.model_copy(update={"sliding_window": None})

    def with_heads(self, sizes: HeadSizes) -> Self:
        fields = {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
        return self.model_copy(update=fields)

    def describe(self, hidden_size: int) -> str:
        return f"tempered GQA {self.num_attention_heads}/{self.num_key_value_heads} × {self.head_dim}"

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        dim, window = Axis("head_dim", self.head_dim), self.sliding_window
        q, k, v = (
            recorder.linear("q_proj", x, heads, dim),
            recorder.linear("k_proj", x, kv_heads, dim),
            recorder.linear("v_proj", x, kv_heads, dim),
        )
        k, v = recorder.cache(
            "cache", "full_attention" if window is None else "sliding_attention", k, v, token_limit=window
        )
        q = recorder.mul(q, recorder.vector("temperature", heads))
        y = recorder.attention(
            "core", q, recorder.repeat(k, heads), recorder.repeat(v, heads), causal=recorder.causal, window=window
        )
        return recorder.linear("o_proj", y, *x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8),
            cls(num_attention_heads=4, num_key_value_heads=1, head_dim=6, sliding_window=5),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Core(nn.Module):
        """q: [batch, heads, queries, d], k and v: [batch, heads, keys, d] → [batch, heads, queries, d]."""

        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
            return torch.softmax(scores, -1) @ v

    class TemperedReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: TemperedAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, self.causal, hidden = spec, model_properties.is_causal, model_properties.hidden_size
            a, k, d = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
            self.q_proj, self.k_proj = nn.Linear(hidden, a * d, bias=False), nn.Linear(hidden, k * d, bias=False)
            self.v_proj, self.o_proj = nn.Linear(hidden, k * d, bias=False), nn.Linear(a * d, hidden, bias=False)
            self.temperature: Any = vector_module(torch.ones(a))
            self.core, self.cache = Core(), tensor_cache_class()(spec.sliding_window)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            def heads(y: Tensor) -> Tensor:
                return y.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)

            k, v = self.cache(pass_state, heads(self.k_proj(x)), heads(self.v_proj(x)))
            group = self.spec.num_attention_heads // self.spec.num_key_value_heads
            mask = attention_mask(pass_state, x, k, causal=self.causal, window=self.spec.sliding_window)
            q = heads(self.q_proj(x)) * self.temperature.weight[:, None, None]
            y = self.core(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), mask)
            out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
            return out

    return TemperedReference

"""Attention with a mask learned from the values: Doge's dynamic mask attention (Shi et al. 2024, arXiv:2412.11834).

A small projection of every cached value, softplus and one weight per head give each key a strength, which is added to
its scores. Among the keys that a token may attend to, only the keep_window_size strongest are kept. Strengths are not
cached: every pass projects all values again, including those of earlier tokens. The mask is dense: scores of all keys
are computed and then masked, in decoding too. transformers: models/doge.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.rows_with_past import RowsWithPast
from ..base import TORCH_WITNESS, Flag, HeadDim, Heads, KVHeads, ModelProperties, PartWitness, Window
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, apply_dropout, attention_mask, tensor_cache_class, vector_module
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class DynamicMaskAttention(WindowedMixer):
    """Attention with a mask learned from the values.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    keep_window_size: the largest number of keys that a token attends to.
    sliding_window: the number of tokens that each token may attend to, itself included; the keys are selected among
        them. All by default.
    attention_bias: whether all projections have a bias, false by default.
    norm: the norm on each query and key head, before RoPE.
    position: RoPE on queries and keys.
    """

    formula_source: ClassVar[str] = "Shi et al. 2024 (Doge)"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["dynamic_mask"] = "dynamic_mask"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    keep_window_size: Window
    sliding_window: Window | None = None
    attention_bias: Flag = False
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    def cost_thresholds(self) -> tuple[int, ...]:
        return (self.keep_window_size, *super().cost_thresholds())

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, has_bias, window = Axis("head_dim", self.head_dim), self.attention_bias, self.sliding_window
        q = recorder.norm(
            "q_norm", recorder.linear("q_proj", x, heads, head_dim, bias=has_bias), self.norm, (head_dim,)
        )
        q = recorder.rope(q, self.position)
        k = recorder.norm(
            "k_norm", recorder.linear("k_proj", x, kv_heads, head_dim, bias=has_bias), self.norm, (head_dim,)
        )
        k, v = recorder.rope(k, self.position), recorder.linear("v_proj", x, kv_heads, head_dim, bias=has_bias)
        k, v = recorder.cache("cache", self.cache_kind, k, v, token_limit=window)
        key_limits: dict[str, Any] = {"window": window, "key_limit": self.keep_window_size}
        recorder.hold(q=q, k=k, v=v)
        recorder.mask(q, k, causal=True, window=window)
        with recorder.function():
            key_rows = RowsWithPast(source_rows=x.rows, window=window)
            step_sizes = recorder.act(recorder.linear("dt_proj", v, kv_heads, bias=has_bias, rows=key_rows), "softplus")
            recorder.hold(steps=step_sizes)
            key_strength = recorder.act(recorder.mul(step_sizes, recorder.vector("A", kv_heads)), "exp")
            recorder.hold(strength=key_strength)
            mask = recorder.strongest(key_strength, q, k, **key_limits)
        recorder.hold(mask=mask)
        k, v, mask = (recorder.repeat(tensor, heads) for tensor in (k, v, mask))
        recorder.hold(k=k, v=v, mask=mask)
        attn_output = recorder.attention(
            "core", q, k, v, core=ops.MaskedAttentionCore, bias=mask, masked=False, **key_limits
        )
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=has_bias)

    def describe(self, hidden_size: int) -> str:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        window_text = "" if self.sliding_window is None else f", window {self.sliding_window}"
        heads_text = str(heads) if heads == kv_heads else f"{heads}/{kv_heads}"
        return (
            f"{'MHA' if heads == kv_heads else 'GQA'} {heads_text} × {self.head_dim}, "
            f"{self.keep_window_size} keys kept{window_text}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=6, keep_window_size=64),
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8, keep_window_size=3, attention_bias=True),
            cls(num_attention_heads=4, num_key_value_heads=1, head_dim=8, keep_window_size=4, sliding_window=6),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class DynamicMaskCore(nn.Module):
        """Softmax attention with a mask. mask: the term added to the scores, [batch, heads, queries, keys]."""

        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask.to(q.dtype)
            return apply_dropout(self, "attention", torch.softmax(scores.float(), -1).to(v.dtype)) @ v

    class DynamicMaskAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Attends with a mask learned from the values. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: DynamicMaskAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size, spec.attention_bias)
            kv_heads, head_dim = spec.num_key_value_heads, spec.head_dim
            self.q_norm, self.k_norm = norm_reference(spec.norm, head_dim), norm_reference(spec.norm, head_dim)
            self.cache, self.core = tensor_cache_class()(spec.sliding_window), DynamicMaskCore()
            self.A = vector_module(torch.randn(kv_heads) * 0.5)
            self.dt_proj = nn.Linear(kv_heads * head_dim, kv_heads, bias=spec.attention_bias)

        def _learned_mask(self, v: Tensor, causal_mask: Tensor) -> Tensor:
            """Computes the mask from values [batch, heads, keys, d]: a selected key's strength, else −∞."""
            step_sizes = nn.functional.softplus(self.dt_proj(v.transpose(1, 2).flatten(2)))
            key_strength = (step_sizes * self.A.weight).exp().transpose(1, 2)[:, :, None]
            mask: Tensor = key_strength.expand(-1, -1, causal_mask.shape[0], -1).masked_fill(
                ~causal_mask, float("-inf")
            )
            if mask.shape[-1] <= self.spec.keep_window_size:
                return mask
            # repeated tokens have equal values up to rounding: of equal keys, the first are selected
            rounded_mask = mask.round(decimals=4)
            strongest_keys = rounded_mask.sort(dim=-1, descending=True, stable=True).indices[
                ..., : self.spec.keep_window_size
            ]
            return torch.full_like(mask, float("-inf")).scatter(-1, strongest_keys, mask.gather(-1, strongest_keys))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            q = spec.position.rotate_heads(self.q_norm(self._split_heads("q", x)), pass_state, pass_state.past_tokens)
            k = spec.position.rotate_heads(self.k_norm(self._split_heads("k", x)), pass_state, pass_state.past_tokens)
            k, v = self.cache(pass_state, k, self._split_heads("v", x))
            mask = self._learned_mask(v, attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window))
            k, v, mask = self._repeat_for_query_heads(k, v, mask)
            attn_output = self.core(q, k, v, mask)
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return DynamicMaskAttentionReference

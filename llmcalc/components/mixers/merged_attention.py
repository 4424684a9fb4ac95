"""Merged self-attention and cross-attention: the same projections for the decoder's tokens and the encoder's output.

T5Gemma 2 (Zhang et al. 2025): one softmax covers both. Only the decoder's own tokens have positions and a window.
transformers: models/t5gemma2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import ConcatenatedRows
from ...workload.rows import SOURCE_TOKENS
from ..base import (
    TORCH_WITNESS,
    FiniteNumber,
    Flag,
    HeadDim,
    Heads,
    KVHeads,
    ModelProperties,
    PartWitness,
    StackPosition,
    Window,
)
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState, apply_dropout, attention_mask, attention_products_class, tensor_cache_class
from .two_key_sets import TwoKeySetsMixer, two_key_sets_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class MergedAttention(TwoKeySetsMixer):
    """Decoder attention to decoder tokens and the encoder's output in one softmax.

    The encoder must have the decoder's width.
    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    sliding_window: limits only the decoder's own tokens: the number that each token attends to, itself included. All by
        default.
    attention_bias: whether all projections have a bias, false by default.
    attn_logit_softcapping: the soft cap of the scores, none by default.
    norm: the norm on each query and key head, before RoPE.
    position: RoPE on queries and on the decoder's own keys.
    """

    formula_source: ClassVar[str] = "Zhang et al. 2025 (T5Gemma 2)"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("decoder",)

    reads_encoder: ClassVar[bool] = True

    type: Literal["merged"] = "merged"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    sliding_window: Window | None = None
    attention_bias: Flag = False
    attn_logit_softcapping: FiniteNumber | None = Field(default=None, gt=0)
    norm: Norm | None = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        if stack_position.source_width != stack_position.width:
            raise ValueError(
                f"{stack_position.error_path}.type: 'merged' requires an encoder of the decoder's width; expected one, "
                "and no cross_attention"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records one softmax over the scores of the decoder's tokens and of the encoder's output."""
        memory = Value(SOURCE_TOKENS, x.axes) if recorder.encoder_output is None else recorder.encoder_output
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, has_bias, window = Axis("head_dim", self.head_dim), self.attention_bias, self.sliding_window
        q = self._normalize(recorder, "q_norm", recorder.linear("q_proj", x, heads, head_dim, bias=has_bias), head_dim)
        q = recorder.rope(q, self.position)
        self_and_memory_rows = ConcatenatedRows(first_rows=x.rows, second_rows=memory.rows)
        keys = recorder.linear("k_proj", x, kv_heads, head_dim, bias=has_bias, counted_rows=self_and_memory_rows)
        normed_keys = self._normalize(recorder, "k_norm", keys, head_dim)
        self_keys = recorder.rope(normed_keys, self.position)
        values = recorder.linear("v_proj", x, kv_heads, head_dim, bias=has_bias, counted_rows=self_and_memory_rows)
        self_keys, self_values = recorder.cache("cache", self.cache_kind, self_keys, values, token_limit=window)
        memory_keys = recorder.apply_again(memory, keys, has_bias)
        if self.norm is not None:
            memory_keys = recorder.normalized(memory_keys, self.norm, (head_dim,), weight_owner=normed_keys)
        memory_keys, memory_values = recorder.cache(
            "cross_cache", "cross_attention", memory_keys, recorder.apply_again(memory, values, has_bias)
        )
        recorder.hold(q=q, k=self_keys, v=self_values, far_k=memory_keys, far_v=memory_values)
        self_keys, self_values, memory_keys, memory_values = (
            recorder.repeat(v, heads) for v in (self_keys, self_values, memory_keys, memory_values)
        )
        recorder.hold(k=self_keys, v=self_values, far_k=memory_keys, far_v=memory_values)
        self_scores = recorder.scores("core", q, self_keys, values=self_values, window=window)
        memory_scores = recorder.scores("cross_core", q, memory_keys, values=memory_values, is_cross_attention=True)
        attn_weights = recorder.joint_softmax(
            q, self_values, self_scores, memory_scores, cap=self.attn_logit_softcapping, window=window
        )
        recorder.hold(weights=attn_weights)
        attn_output = recorder.add(
            recorder.weighted(attn_weights, self_values), recorder.weighted(attn_weights, memory_values)
        )
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=has_bias)

    def describe(self, hidden_size: int) -> str:
        return self._heading_of_attended_keys("with the encoder's keys")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=6, norm=None),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                attention_bias=True,
                attn_logit_softcapping=30.0,
            ),
            cls(num_attention_heads=4, num_key_value_heads=1, head_dim=8, sliding_window=5),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class MergedAttentionReference(two_key_sets_reference_class()):  # type: ignore[misc]
        """Attends to decoder tokens and encoder output in one softmax. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: MergedAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            self.cross_core, self.cross_cache = attention_products_class()(), tensor_cache_class()()

        def _memory_keys_and_values(self, pass_state: PassState) -> tuple[Tensor, ...]:
            cached_tensors = (
                None if pass_state.cached_tensors is None else pass_state.cached_tensors.get(self.cross_cache)
            )
            if cached_tensors is not None:
                return cached_tensors
            assert pass_state.encoder_output is not None, (
                "merged attention needs the encoder's output or a filled cache"
            )
            return self.cross_cache(
                pass_state,
                self._split_heads("k", pass_state.encoder_output),
                self._split_heads("v", pass_state.encoder_output),
            )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, token_count = self.spec, x.shape[1]
            q, k = (
                spec.position.rotate_heads(self._split_heads(projection_letter, x), pass_state, pass_state.past_tokens)
                for projection_letter in ("q", "k")
            )
            k, v = self.cache(pass_state, k, self._split_heads("v", x))
            memory_k, memory_v = self._memory_keys_and_values(pass_state)
            k, v, memory_k, memory_v = self._repeat_for_query_heads(k, v, memory_k, memory_v)
            scores = torch.cat([self.core(q, k.transpose(-1, -2)), self.cross_core(q, memory_k.transpose(-1, -2))], -1)
            scores = scores * spec.head_dim**-0.5
            if spec.attn_logit_softcapping is not None:
                scores = spec.attn_logit_softcapping * torch.tanh(scores / spec.attn_logit_softcapping)
            mask = attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window)
            mask = torch.cat([mask, mask.new_ones(token_count, memory_k.shape[-2])], -1)
            scores = scores.masked_fill(~mask, float("-inf"))
            attn_weights = apply_dropout(self, "attention", torch.softmax(scores.float(), -1).to(v.dtype))
            attn_output = self.core(attn_weights[..., : k.shape[-2]], v) + self.cross_core(
                attn_weights[..., k.shape[-2] :], memory_v
            )
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return MergedAttentionReference

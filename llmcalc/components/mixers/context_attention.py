"""Attention of a block of draft tokens to the target model's hidden states and, bidirectionally, to one another.

DFlash (Chen 2026, arXiv:2602.06036): queries are of the block; keys and values, by the same projections, of the context
and of the block. Only those of the context are cached. Source: `Qwen3DFlashAttention` in
specforge/modeling/draft/dflash.py of sgl-project/SpecForge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import ConcatenatedRows, RowsOfThisPass
from ..base import Flag, HeadDim, Heads, KVHeads, ModelProperties, Window
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState, append_sink_scores, attention_products_class, vector_module
from ..target_states import DFLASH_SOURCE
from .two_key_sets import TwoKeySetsMixer, two_key_sets_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ContextAttention(TwoKeySetsMixer):
    """Attention to the projected hidden states of a target model, and to all tokens of the current pass.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    sliding_window: the number of last context tokens that a token attends to; all by default.
    attention_bias: whether all projections have a bias, false by default.
    sinks: whether each head has one more key, with a learned score and no value; false by default.
    norm: the norm on each query and key head, before RoPE.
    position: RoPE on queries and keys.
    """

    formula_source: ClassVar[str] = DFLASH_SOURCE
    attends_to_whole_pass: ClassVar[bool] = True

    type: Literal["context"] = "context"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    sliding_window: Window | None = None
    attention_bias: Flag = False
    sinks: Flag = False
    norm: Norm | None = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": {"type": "target_states", "start": "embedding"}}

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records attention to the target's hidden states and to the draft block, with one softmax over both."""
        target_states: Value = recorder.layer_memo.get("target_states", x)  # x itself where the part is recorded alone
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, bias = Axis("head_dim", self.head_dim), self.attention_bias
        q = recorder.rope(
            self._normalize(recorder, "q_norm", recorder.linear("q_proj", x, heads, head_dim, bias=bias), head_dim),
            self.position,
        )
        block_and_target_rows = ConcatenatedRows(first_rows=x.rows, second_rows=target_states.rows)
        keys = recorder.linear("k_proj", x, kv_heads, head_dim, bias=bias, counted_rows=block_and_target_rows)
        normed_keys = self._normalize(recorder, "k_norm", keys, head_dim)
        values = recorder.linear("v_proj", x, kv_heads, head_dim, bias=bias, counted_rows=block_and_target_rows)
        context_keys = recorder.apply_again(target_states, keys, bias)
        if self.norm is not None:
            context_keys = recorder.normalized(context_keys, self.norm, (head_dim,), weight_owner=normed_keys)
        context_keys, context_values = recorder.cache(
            "cache",
            self.cache_kind,
            recorder.rope(context_keys, self.position),
            recorder.apply_again(target_states, values, bias),
            token_limit=self.sliding_window,
        )
        core_sizes = heads.size, head_dim.size, head_dim.size
        context_core = ops.AttentionCore(*core_sizes, causal=False, window=self.sliding_window, rows=x.rows)
        block_core = ops.AttentionCore(*core_sizes, causal=False, rows=x.rows, keys=RowsOfThisPass(source_rows=x.rows))
        attn_output = recorder.core("core", context_core, q, context_keys, context_values, axes=(heads, head_dim))
        block_keys = recorder.rope(normed_keys, self.position)
        attn_output = recorder.add(
            attn_output, recorder.core("block_core", block_core, q, block_keys, values, axes=(heads, head_dim))
        )
        if self.sinks:
            recorder.vector("sinks", heads)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=bias)

    def describe(self, hidden_size: int) -> str:
        return self._heading_of_attended_keys("of a block")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8),
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=6, norm=None, attention_bias=True),
            cls(num_attention_heads=4, num_key_value_heads=1, head_dim=8, sliding_window=5, sinks=True),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class ContextAttentionReference(two_key_sets_reference_class()):  # type: ignore[misc]
        """Attends to a target's states and to the draft block. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ContextAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            self.block_core = attention_products_class()()
            self.sinks = vector_module(torch.zeros(spec.num_attention_heads)) if spec.sinks else None

        def _project_heads(self, projection_letter: str, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns the projection of x as heads; queries and keys also get RoPE."""
            heads: Tensor = self._split_heads(projection_letter, x)
            if projection_letter == "v":
                return heads
            return self.spec.position.rotate_heads(heads, pass_state, pass_state.past_tokens)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, target_states = self.spec, pass_state.shared_values["target_states"]
            q, k, v = (self._project_heads(projection_letter, x, pass_state) for projection_letter in "qkv")
            context_k, context_v = self.cache(
                pass_state,
                self._project_heads("k", target_states, pass_state),
                self._project_heads("v", target_states, pass_state),
            )
            k, v, context_k, context_v = self._repeat_for_query_heads(k, v, context_k, context_v)
            scores = torch.cat([self.core(q, context_k.transpose(-1, -2)), self.block_core(q, k.transpose(-1, -2))], -1)
            scores = scores * spec.head_dim**-0.5
            if self.sinks is not None:
                scores = append_sink_scores(scores, self.sinks.weight)
            attn_weights = torch.softmax(scores.float(), -1).to(v.dtype)
            context_weights, block_weights = attn_weights[..., : context_k.shape[-2] + k.shape[-2]].split(
                (context_k.shape[-2], k.shape[-2]), -1
            )
            attn_output = self.core(context_weights, context_v) + self.block_core(block_weights, v)
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return ContextAttentionReference

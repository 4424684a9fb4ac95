"""Latent attention of a block of draft tokens to the target model's hidden states and to one another.

DFlash with multi-head latent attention (DeepSeek-V2 2024, §2.1): one projection makes the latents and rotary keys of
the context and of the block, and those of the context are cached. Scores are taken on the latents, with the expansion's
weights applied to queries and outputs, as vLLM reads such a cache. Source: `Qwen3DFlashMLAAttention` in
specforge/modeling/draft/dflash.py of sgl-project/SpecForge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ...workload.derived_rows import ConcatenatedRows, RowsOfThisPass
from ..base import Flag, Heads, HeadSizes, KVRank, ModelProperties, NopeDim, QueryRank, RopeDim, ValueDim, Window
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, attention_products_class, tensor_cache_class
from ..target_states import DFLASH_SOURCE
from .grouped_query import OptionalWindowMixer
from .mla import latent_expansion_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class LatentContextAttention(OptionalWindowMixer):
    """Latent attention to the projected hidden states of a target model, and to all tokens of the current pass.

    num_attention_heads: the number of heads.
    q_lora_rank: the rank of the compressed query; by default queries are projected directly.
    kv_lora_rank: the width of the latent.
    qk_nope_head_dim: the size of a head's query or key without RoPE.
    qk_rope_head_dim: the size of its part with RoPE.
    v_head_dim: the size of a value head.
    sliding_window: the number of last context tokens that a token attends to; all by default.
    attention_bias: whether the projections that read or write the residual stream have a bias, except a direct q_proj;
        false by default.
    norm: the norm on the compressed query and on the latent.
    position: RoPE.
    """

    formula_source: ClassVar[str] = DFLASH_SOURCE
    attends_to_whole_pass: ClassVar[bool] = True

    type: Literal["latent_context"] = "latent_context"
    num_attention_heads: Heads
    q_lora_rank: QueryRank | None = None
    kv_lora_rank: KVRank
    qk_nope_head_dim: NopeDim
    qk_rope_head_dim: RopeDim
    v_head_dim: ValueDim
    sliding_window: Window | None = None
    attention_bias: Flag = False
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    def check_fields(self) -> None:
        if self.qk_rope_head_dim < 2 or self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim: {self.qk_rope_head_dim}; expected an even number, 2 or more")
        self.position.check_full_rotation()

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, None, self.qk_nope_head_dim + self.qk_rope_head_dim)

    def score_position_encoding(self) -> Rope:
        return self.position

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": {"type": "target_states", "start": "embedding"}}

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records latent attention to the target's states and to the current pass, with separate attention cores."""
        target_states: Value = recorder.layer_memo.get("target_states", x)  # x itself where the part is recorded alone
        heads, latent_axis = Axis("heads", self.num_attention_heads), Axis("latent", self.kv_lora_rank)
        nope_axis, rope_axis = Axis("nope", self.qk_nope_head_dim), Axis("rope", self.qk_rope_head_dim)
        value_axis, bias = Axis("v_head_dim", self.v_head_dim), self.attention_bias
        key_axis = JoinedShapes(((latent_axis,), (rope_axis,)))
        query = self._query_vectors(recorder, x, heads, JoinedShapes(((nope_axis,), (rope_axis,))))
        q_nope, q_rope = recorder.split(query, (heads, nope_axis), (heads, rope_axis))
        weight = Weight("kv_b_proj", (heads, JoinedShapes(((nope_axis,), (value_axis,)))), (latent_axis,))
        q_latent = recorder.absorb("kv_b_proj", q_nope, weight, latent_axis)
        q = recorder.cat(q_latent, recorder.rope(q_rope, self.position), axes=(heads, key_axis))
        block_and_target_rows = ConcatenatedRows(first_rows=x.rows, second_rows=target_states.rows)
        projected_x = recorder.linear("kv_a_proj", x, key_axis, bias=bias, counted_rows=block_and_target_rows)
        latents, k_rope = recorder.split(projected_x, (latent_axis,), (rope_axis,))
        normed_latents = recorder.norm("kv_a_norm", latents, self.norm)
        block_keys = recorder.cat(normed_latents, recorder.rope(k_rope, self.position), axes=(key_axis,))
        context_latents, context_rope = recorder.split(
            recorder.apply_again(target_states, projected_x, bias), (latent_axis,), (rope_axis,)
        )
        context_latents, context_rope = recorder.cache(
            "cache",
            "latent_attention",
            recorder.normalized(context_latents, self.norm, (latent_axis,), weight_owner=normed_latents),
            recorder.rope(context_rope, self.position),
            token_limit=self.sliding_window,
        )
        context_keys = recorder.cat(context_latents, context_rope, axes=(key_axis,))
        core_sizes = heads.size, latent_axis.size + rope_axis.size, latent_axis.size
        context_core = ops.AttentionCore(*core_sizes, causal=False, window=self.sliding_window, rows=x.rows)
        block_core = ops.AttentionCore(*core_sizes, causal=False, rows=x.rows, keys=RowsOfThisPass(source_rows=x.rows))
        attn_output = recorder.core("core", context_core, q, context_keys, context_latents, axes=(heads, latent_axis))
        attn_output = recorder.add(
            attn_output,
            recorder.core("block_core", block_core, q, block_keys, normed_latents, axes=(heads, latent_axis)),
        )
        return recorder.linear("o_proj", recorder.absorb("", attn_output, weight, value_axis), *x.axes, bias=bias)

    def _query_vectors(self, recorder: Flow, x: Value, heads: Axis, head_axes: JoinedShapes) -> Value:
        if self.q_lora_rank is None:
            return recorder.linear("q_proj", x, heads, head_axes)
        compressed_query = recorder.linear("q_a_proj", x, Axis("q_lora", self.q_lora_rank), bias=self.attention_bias)
        return recorder.linear("q_b_proj", recorder.norm("q_a_norm", compressed_query, self.norm), heads, head_axes)

    def describe(self, hidden_size: int) -> str:
        head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        window_text = "" if self.sliding_window is None else f", window {self.sliding_window}"
        return (
            f"MLA {self.num_attention_heads} × {head_dim}, latent {self.kv_lora_rank} + {self.qk_rope_head_dim}, "
            f"of a block{window_text}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        four_heads = partial(
            cls, num_attention_heads=4, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5
        )
        return [four_heads(), four_heads(q_lora_rank=10, sliding_window=5, attention_bias=True)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LatentContextAttentionReference(nn.Module):
        """Attends by latents to a target's states and the draft block. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: LatentContextAttention, hidden_size: int) -> None:
            super().__init__()
            self.spec, heads, rank = spec, spec.num_attention_heads, spec.q_lora_rank
            query_width = heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
            if rank is None:
                self.q_proj = nn.Linear(hidden_size, query_width, bias=False)
            else:
                self.q_a_proj = nn.Linear(hidden_size, rank, bias=spec.attention_bias)
                self.q_a_norm = norm_reference(spec.norm, rank)
                self.q_b_proj = nn.Linear(rank, query_width, bias=False)
            self.kv_a_proj = nn.Linear(hidden_size, spec.kv_lora_rank + spec.qk_rope_head_dim, bias=spec.attention_bias)
            self.kv_a_norm = norm_reference(spec.norm, spec.kv_lora_rank)
            self.kv_b_proj = latent_expansion_class()(spec.kv_lora_rank, heads, spec.qk_nope_head_dim, spec.v_head_dim)
            self.o_proj = nn.Linear(heads * spec.v_head_dim, hidden_size, bias=spec.attention_bias)
            self.core, self.block_core = attention_products_class()(), attention_products_class()()
            self.cache = tensor_cache_class()(spec.sliding_window)

        def _latents_and_keys(self, x: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Returns the latents and the rotated keys of x, [batch, tokens, …]."""
            latents, keys = self.kv_a_proj(x).split([self.spec.kv_lora_rank, self.spec.qk_rope_head_dim], -1)
            return self.kv_a_norm(latents), self.spec.position.rotate_heads(keys, pass_state, pass_state.past_tokens)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            q = self.q_proj(x) if spec.q_lora_rank is None else self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
            q = q.unflatten(-1, (spec.num_attention_heads, -1)).transpose(1, 2)
            q_nope, q_rope = q.split([spec.qk_nope_head_dim, spec.qk_rope_head_dim], -1)
            q_rope = spec.position.rotate_heads(q_rope, pass_state, pass_state.past_tokens)
            q = torch.cat([self.kv_b_proj(q_nope, absorbed_form="query"), q_rope], -1)
            latents, keys = self._latents_and_keys(x, pass_state)
            context_latents, context_keys = self.cache(
                pass_state, *self._latents_and_keys(pass_state.shared_values["target_states"], pass_state)
            )
            scores = [
                attention_core(q, torch.cat([core_latents, k], -1)[:, None].transpose(-1, -2))
                for attention_core, core_latents, k in (
                    (self.core, context_latents, context_keys),
                    (self.block_core, latents, keys),
                )
            ]
            score_scale = (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5
            attn_weights = torch.softmax((torch.cat(scores, -1) * score_scale).float(), -1).to(x.dtype)
            context_weights, attn_weights = attn_weights.split((context_latents.shape[1], latents.shape[1]), -1)
            attn_output = self.core(context_weights, context_latents[:, None]) + self.block_core(
                attn_weights, latents[:, None]
            )
            attn_output = self.kv_b_proj(attn_output, absorbed_form="value")
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return LatentContextAttentionReference

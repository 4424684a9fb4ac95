"""Mixture of attention heads: a router selects query and output projections per token (Zhang et al. 2022).

As in JetMoE (Shen et al. 2024, arXiv:2404.07413, §2.2).

A router selects a few experts per token. Experts have their own query and output projections; keys and values are
shared by all. transformers: models/jetmoe.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import are_equal
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.rows import RoutedRows
from ..base import (
    TORCH_WITNESS,
    Experts,
    HeadDim,
    HeadSizes,
    KVHeads,
    ModelProperties,
    PartWitness,
    TokenMixer,
    TopK,
    UnscalableError,
    check_top_k,
)
from ..networks.expert_dispatch import expert_dispatch_class, expert_group_ends, expert_map_class
from ..rope import Rope
from ..runtime import PassState, attention_mask, softmax_core_class, tensor_cache_class, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class MixtureOfAttention(TokenMixer):
    """Attention whose query and output projections are experts, with keys and values shared by all experts.

    num_experts: the number of experts.
    num_experts_per_tok: the number of experts per token.
    num_key_value_heads: the number of key and value heads, and of query heads per expert. A token has
        num_experts_per_tok times as many query heads.
    head_dim: the size of a head.
    position: RoPE on queries and keys.
    """

    formula_source: ClassVar[str] = "Zhang et al. 2022, §3"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["mixture_of_attention"] = "mixture_of_attention"
    num_experts: Experts
    num_experts_per_tok: TopK
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    position: Rope = Rope()

    def check_fields(self) -> None:
        check_top_k(self.num_experts, self.num_experts_per_tok)
        self.position.check_rotary_size(self.head_dim)

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        kv_heads = self.num_key_value_heads
        return HeadSizes(self.num_experts_per_tok * kv_heads, kv_heads, self.head_dim)

    def score_position_encoding(self) -> Rope:
        return self.position

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        """Returns the mixer unchanged, as each expert has one query head per key head."""
        return self

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        top_k = self.num_experts_per_tok
        if not are_equal(head_sizes.heads, top_k * head_sizes.kv_heads):
            raise UnscalableError(
                f"a token has {top_k} query heads for each key/value head, one of each of its experts"
            )
        self.position.check_heads(head_sizes)
        return self.model_copy(update={"num_key_value_heads": head_sizes.kv_heads, "head_dim": head_sizes.head_dim})

    def flow(self, recorder: Flow, x: Value) -> Value:
        top_k, expert_axis = self.num_experts_per_tok, Axis("experts", self.num_experts)
        kv_heads, head_dim = Axis("kv_heads", self.num_key_value_heads), Axis("head_dim", self.head_dim)
        heads = Axis("heads", top_k * self.num_key_value_heads)
        expert_weights, top_experts = recorder.route(
            recorder.linear("router", x, expert_axis, kind="router"), top_k, "softmax of chosen"
        )
        recorder.hold(weights=expert_weights, chosen=top_experts)
        routed_rows = recorder.dispatch(x, top_experts, expert_axis, top_k)
        recorder.hold(rows=routed_rows)
        q = recorder.to_tokens(recorder.experts("q_proj", routed_rows, expert_axis, top_k, kv_heads, head_dim))
        recorder.hold(q=q)
        q = recorder.rope(q.view(heads, head_dim, new_rows=x.rows), self.position)
        recorder.hold(q=q)
        k = recorder.rope(recorder.linear("k_proj", x, kv_heads, head_dim), self.position)
        k, v = recorder.cache("cache", "full_attention", k, recorder.linear("v_proj", x, kv_heads, head_dim))
        recorder.hold(k=k, v=v)
        k = recorder.repeat(k, heads, tiled=True)
        recorder.hold(k=k)
        v = recorder.repeat(v, heads, tiled=True)
        recorder.hold(v=v)
        attn_output = recorder.attention("core", q, k, v)
        recorder.hold(out=attn_output)
        routed_rows = recorder.dispatch(
            attn_output.view(kv_heads, head_dim, new_rows=RoutedRows(source_rows=x.rows, top_k=top_k)),
            top_experts,
            expert_axis,
            top_k,
        )
        recorder.hold(rows=routed_rows)
        attn_output = recorder.combine(
            recorder.experts("o_proj", routed_rows, expert_axis, top_k, *x.axes), expert_weights, expert_axis, top_k
        )
        recorder.hold(out=attn_output)
        return recorder.add(attn_output, recorder.vector("o_bias", *x.axes))

    def describe(self, hidden_size: int) -> str:
        return f"MoA {self.num_experts_per_tok} of {self.num_experts} × {self.num_key_value_heads} × {self.head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_experts=4, num_experts_per_tok=2, num_key_value_heads=2, head_dim=8),
            cls(num_experts=3, num_experts_per_tok=1, num_key_value_heads=4, head_dim=8),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class MixtureOfAttentionReference(nn.Module):
        """Attends with routed query and output projections. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: MixtureOfAttention, hidden_size: int) -> None:
            super().__init__()
            self.spec, heads_width = spec, spec.num_key_value_heads * spec.head_dim
            self.router = nn.Linear(hidden_size, spec.num_experts, bias=False)
            self.q_proj = expert_map_class()(spec.num_experts, hidden_size, heads_width, False)
            self.k_proj = nn.Linear(hidden_size, heads_width, bias=False)
            self.v_proj = nn.Linear(hidden_size, heads_width, bias=False)
            self.core, self.cache = softmax_core_class()(), tensor_cache_class()()
            self.o_proj = expert_map_class()(spec.num_experts, heads_width, hidden_size, False)
            self.o_bias = vector_module(torch.zeros(hidden_size))

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the second-last width into heads. [batch, tokens, n · d] → [batch, n, tokens, d]."""
            return x.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)

        def _rotate(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.spec.position.rotate_heads(x, pass_state, pass_state.past_tokens)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            (batch_size, token_count, _), top_k = x.shape, self.spec.num_experts_per_tok
            expert_weights, top_experts = self._route_tokens(x)
            dispatcher = expert_dispatch_class()(top_experts, pass_state.grouped_experts)
            routed_rows = dispatcher.copy_rows_to_experts(x)
            group_ends = expert_group_ends(dispatcher.expert, self.spec.num_experts) if dispatcher.is_grouped else None
            q = dispatcher.sort_by_token(self.q_proj(routed_rows, dispatcher.expert, group_ends)).view(
                batch_size, token_count, -1
            )
            q = self._rotate(self._split_heads(q), pass_state)
            k, v = self.cache(
                pass_state,
                self._rotate(self._split_heads(self.k_proj(x)), pass_state),
                self._split_heads(self.v_proj(x)),
            )
            if top_k > 1:
                k = k.repeat(1, top_k, 1, 1)
                v = v.repeat(1, top_k, 1, 1)
            mask = attention_mask(pass_state, x, k, causal=True)
            attn_output = self.core(q, k, v, mask).transpose(1, 2)
            routed_rows = dispatcher.sort_by_expert(attn_output.reshape(batch_size * token_count * top_k, -1))
            attn_output = dispatcher.combine_outputs(
                self.o_proj(routed_rows, dispatcher.expert, group_ends), expert_weights
            )
            return attn_output + self.o_bias.weight

        def _route_tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
            """Returns the weights and indices of each token's experts, [batch, tokens, top_k]."""
            scores, top_experts = self.router(x).float().topk(self.spec.num_experts_per_tok, -1)
            return scores.softmax(-1), top_experts

    return MixtureOfAttentionReference

"""Mixture of attention heads (Zhang et al. 2022, arXiv:2210.05144), as JetMoE has it (Shen et al. 2024,
arXiv:2404.07413, §2.2).

A router chooses for each token among experts that map to queries and from their attention's output; keys and values are
shared.
transformers: models/jetmoe.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Experts, HeadDim, KVHeads, TopK
from .moe import expert_map_class
from .position import Rope
from .runtime import Run, allowed, cache_class, softmax_core_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class MixtureOfAttention(Component):
    """num_key_value_heads: heads of each expert, and of the keys and values.
    A token has num_experts_per_tok times as many queries.
    """

    node_name: ClassVar[str] = "self_attn"

    type: Literal["mixture_of_attention"] = "mixture_of_attention"
    num_experts: Experts
    num_experts_per_tok: TopK
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    position: Rope = Rope()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} is more than num_experts {self.num_experts}"
            )
        self.position.check(self.head_dim)
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, e, top, k, d = (
            around.hidden_size,
            self.num_experts,
            self.num_experts_per_tok,
            self.num_key_value_heads,
            self.head_dim,
        )
        parts = (
            Node("router", ops.Linear(h, e), kind="router"),
            Node("q_proj", ops.ExpertLinear(e, top, h, k * d)),
            Node("k_proj", ops.Linear(h, k * d)),
            Node("v_proj", ops.Linear(h, k * d)),
            Node("core", ops.AttentionCore(heads=top * k, qk_dim=d, v_dim=d)),
            Node("cache", ops.KVCache(2 * k * d, "full_attention")),
            Node("o_proj", ops.ExpertLinear(e, top, k * d, h)),
            Node("o_bias", ops.Weight(h)),
        )
        return Node(name, children=parts, kind="attention", source="Zhang et al. 2022, §3")

    def describe(self, hidden_size: int) -> str:
        return f"MoA {self.num_experts_per_tok} of {self.num_experts} × {self.num_key_value_heads} × {self.head_dim}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_experts=4, num_experts_per_tok=2, num_key_value_heads=2, head_dim=6),
            cls(num_experts=3, num_experts_per_tok=1, num_key_value_heads=4, head_dim=8),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class MixtureOfAttentionReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: MixtureOfAttention, hidden: int) -> None:
            super().__init__()
            self.spec, width = spec, spec.num_key_value_heads * spec.head_dim
            self.router = nn.Linear(hidden, spec.num_experts, bias=False)
            self.q_proj = expert_map_class()(spec.num_experts, hidden, width, False)
            self.k_proj, self.v_proj = nn.Linear(hidden, width, bias=False), nn.Linear(hidden, width, bias=False)
            self.core, self.cache = softmax_core_class()(), cache_class()()
            self.o_proj, self.o_bias = (
                expert_map_class()(spec.num_experts, width, hidden, False),
                vector(torch.zeros(hidden)),
            )

        def _heads_of(self, x: Tensor) -> Tensor:
            """[batch, tokens, n · d] → [batch, n, tokens, d]."""
            heads: Tensor = x.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)
            return heads

        def _turned(self, x: Tensor, run: Run) -> Tensor:
            return self.spec.position.rotated(x, run, run.past)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            (batch, tokens, _), top = x.shape, self.spec.num_experts_per_tok
            scores, chosen = self.router(x.flatten(0, 1)).float().topk(top, -1)
            experts = chosen.flatten()
            q = self._heads_of(self.q_proj(x.flatten(0, 1).repeat_interleave(top, 0), experts).view(batch, tokens, -1))
            k, v = self.cache(run, self._turned(self._heads_of(self.k_proj(x)), run), self._heads_of(self.v_proj(x)))
            mask = allowed(run, run.past + tokens, tokens, k.shape[-2], x.device, causal=True)
            out = self.core(self._turned(q, run), k.repeat(1, top, 1, 1), v.repeat(1, top, 1, 1), mask)
            mapped = self.o_proj(out.transpose(1, 2).reshape(batch * tokens * top, -1), experts).unflatten(0, (-1, top))
            weights = scores.softmax(-1).to(x.dtype)[..., None]
            result: Tensor = (mapped * weights).sum(1).view(batch, tokens, -1) + self.o_bias.weight
            return result

    return MixtureOfAttentionReference

"""Differential attention (Ye et al. 2024, arXiv:2410.05258): two softmaxes over halves of the heads, one subtracted
from the other.

(softmax(Q₁K₁ᵀ) − λ·softmax(Q₂K₂ᵀ))·V with values twice as wide as keys, then a norm of each head that has no weights.
It runs as two usual attentions over the two halves of V, as fused kernels need it and transformers does it
(models/diffllama): the scores twice.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Flag, HeadDim, Heads, KVHeads, Real
from .norm import Norm, norm_reference
from .position import Rope
from .runtime import Run, allowed, cache_class, softmax_core_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class DifferentialAttention(Component):
    """num_key_value_heads: even, since values are halved by heads. lambda_init: λ without what is learned of it."""

    node_name: ClassVar[str] = "self_attn"

    type: Literal["differential"] = "differential"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    attention_bias: Flag = False
    norm_eps: Real = Field(default=1e-5, ge=0)
    lambda_init: Real = Field(default=0.8, gt=0, lt=1)
    position: Rope = Rope()

    @model_validator(mode="after")
    def _check(self) -> Self:
        a, k = self.num_attention_heads, self.num_key_value_heads
        if a % k or k % 2:
            raise ValueError(f"num_key_value_heads: {k}; expected an even divisor of num_attention_heads {a}")
        self.position.check(self.head_dim)
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, a, k, d, biased = (
            around.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.attention_bias,
        )
        core = ops.AttentionCore(heads=a, qk_dim=d, v_dim=d)

        def vector(letter: str) -> Node:
            return Node(f"lambda_{letter}", ops.Weight(d))

        parts = (
            Node("q_proj", ops.Linear(h, a * d, biased)),
            Node("k_proj", ops.Linear(h, k * d, biased)),
            Node("v_proj", ops.Linear(h, k * d, biased)),
            *(vector(letter) for letter in ("q1", "k1", "q2", "k2")),
            Node("core_1", core),
            Node("core_2", core),
            Node("cache", ops.KVCache(2 * k * d, "full_attention")),
            Node("o_proj", ops.Linear(a * d, h, biased)),
        )
        return Node(name, children=parts, kind="attention", source="Ye et al. 2024, §2.1")

    def describe(self, hidden_size: int) -> str:
        a, k = self.num_attention_heads, self.num_key_value_heads
        heads = str(a) if a == k else f"{a}/{k}"
        return f"differential {heads} × {self.head_dim}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=6),
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_bias=True),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class DifferentialReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: DifferentialAttention, hidden: int) -> None:
            super().__init__()
            self.spec, heads, kv_heads, d = spec, spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
            for name, width in (("q_proj", heads * d), ("k_proj", kv_heads * d), ("v_proj", kv_heads * d)):
                self.add_module(name, nn.Linear(hidden, width, bias=spec.attention_bias))
            for letter in ("q1", "k1", "q2", "k2"):
                self.add_module(f"lambda_{letter}", vector(torch.randn(d) * 0.1))
            self.core_1, self.core_2, self.cache = softmax_core_class()(), softmax_core_class()(), cache_class()()
            self.norm = norm_reference(Norm(type="rmsnorm", weight=False, eps=spec.norm_eps), 2 * d)
            self.o_proj = nn.Linear(heads * d, hidden, bias=spec.attention_bias)

        def _heads_of(self, name: str, x: Tensor) -> Tensor:
            heads: Tensor = self.get_submodule(name)(x).unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)
            return heads

        def _share(self, which: int) -> Tensor:
            q, k = (getattr(self, f"lambda_{letter}{which}").weight.float() for letter in "qk")
            share: Tensor = (q * k).sum().exp()
            return share

        def forward(self, x: Tensor, run: Run) -> Tensor:
            group = self.spec.num_attention_heads // self.spec.num_key_value_heads
            q, k = (self.spec.position.rotated(self._heads_of(name, x), run, run.past) for name in ("q_proj", "k_proj"))
            k, v = self.cache(run, k, self._heads_of("v_proj", x))
            mask = allowed(run, run.past + x.shape[1], x.shape[1], k.shape[-2], x.device, causal=True)
            first, second = (half.repeat(1, 2, 1, 1).repeat_interleave(group, 1) for half in v.chunk(2, 1))
            k = k.repeat_interleave(group, 1)
            both = torch.cat([self.core_1(q, k, first, mask), self.core_2(q, k, second, mask)], -1)
            plus, minus = both.chunk(2, 1)
            share = (self._share(1) - self._share(2) + self.spec.lambda_init).to(x.dtype)
            out = (1 - self.spec.lambda_init) * self.norm(plus - share * minus)
            result: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
            return result

    return DifferentialReference

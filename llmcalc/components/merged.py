"""Self-attention and cross-attention in one: the same maps make keys and values of a decoder's own tokens and of the
encoder's output.

T5Gemma 2 (Zhang et al. 2025): one softmax over both, whose own tokens alone have positions and a window. transformers:
models/t5gemma2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .. import ops
from ..flow.tree import Node
from ..run.rows import SOURCE, Joined
from .base import Around, Component, Flag, HeadDim, Heads, KVHeads, Real, Window, check_groups
from .norm import Norm, norm_reference
from .position import Rope
from .runtime import Run, allowed, cache_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class MergedAttention(Component):
    """Of a decoder beside an encoder of its width. sliding_window: of its own tokens a token sees only so many, itself
    included.

    attention_bias: of all maps. norm: on each head's query and key, before their positions.
    """

    node_name: ClassVar[str] = "self_attn"
    sides: ClassVar[tuple[str, ...]] = ("decoder",)

    type: Literal["merged"] = "merged"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    sliding_window: Window | None = None
    attention_bias: Flag = False
    attn_logit_softcapping: Real | None = Field(default=None, gt=0)
    norm: Norm | None = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_groups(self.num_attention_heads, self.num_key_value_heads)
        self.position.check(self.head_dim)
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, a, k, d = around.hidden_size, self.num_attention_heads, self.num_key_value_heads, self.head_dim
        biased, window = self.attention_bias, self.sliding_window
        norms = [] if self.norm is None else [Node(f"{one}_norm", self.norm.op(d)) for one in ("q", "k")]
        parts = (
            Node("q_proj", ops.Linear(h, a * d, biased)),
            Node("k_proj", ops.Linear(h, k * d, biased, rows=Joined())),
            Node("v_proj", ops.Linear(h, k * d, biased, rows=Joined())),
            *norms,
            Node("core", ops.AttentionCore(a, d, d, window=window)),
            Node("cross_core", ops.AttentionCore(a, d, d, keys=SOURCE)),
            Node("cache", ops.KVCache(2 * k * d, "full_attention" if window is None else "sliding_attention", window)),
            Node("cross_cache", ops.KVCache(2 * k * d, "cross_attention", rows=SOURCE)),
            Node("o_proj", ops.Linear(a * d, h, biased)),
        )
        return Node(name, children=parts, kind="attention", source="Zhang et al. 2025 (T5Gemma 2)")

    def describe(self, hidden_size: int) -> str:
        a, k = self.num_attention_heads, self.num_key_value_heads
        window = "" if self.sliding_window is None else f", window {self.sliding_window}"
        return (
            f"{'MHA' if a == k else 'GQA'} {a if a == k else f'{a}/{k}'} × {self.head_dim}, with the encoder's "
            f"keys{window}"
        )

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

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
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Products(nn.Module):
        """Scores of queries and keys, and later what the weights make of values: [batch, heads, queries, ·]."""

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y

    class MergedReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: MergedAttention, hidden: int) -> None:
            super().__init__()
            self.spec, heads, kv_heads, d = spec, spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
            for name, width in (("q_proj", heads * d), ("k_proj", kv_heads * d), ("v_proj", kv_heads * d)):
                self.add_module(name, nn.Linear(hidden, width, bias=spec.attention_bias))
            if spec.norm is not None:
                self.q_norm, self.k_norm = norm_reference(spec.norm, d), norm_reference(spec.norm, d)
            self.core, self.cross_core = Products(), Products()
            self.cache, self.cross_cache = cache_class()(spec.sliding_window), cache_class()()
            self.o_proj = nn.Linear(heads * d, hidden, bias=spec.attention_bias)

        def _heads_of(self, which: str, x: Tensor) -> Tensor:
            heads: Tensor = (
                self.get_submodule(f"{which}_proj")(x).unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)
            )
            return getattr(self, f"{which}_norm")(heads) if hasattr(self, f"{which}_norm") else heads

        def _of_the_source(self, run: Run) -> tuple[Tensor, ...]:
            held = None if run.store is None else run.store.get(self.cross_cache)
            if held is not None:
                return held
            assert run.memory is not None, "merged attention needs the encoder's output or a filled cache"
            made: tuple[Tensor, ...] = self.cross_cache(
                run, self._heads_of("k", run.memory), self._heads_of("v", run.memory)
            )
            return made

        def forward(self, x: Tensor, run: Run) -> Tensor:
            spec, tokens, end = self.spec, x.shape[1], run.past + x.shape[1]
            q, k = (spec.position.rotated(self._heads_of(which, x), run, run.past) for which in ("q", "k"))
            group = spec.num_attention_heads // spec.num_key_value_heads
            own = self.cache(run, k, self._heads_of("v", x))
            k, v, far_k, far_v = (t.repeat_interleave(group, 1) for t in (*own, *self._of_the_source(run)))
            near, far = self.core(q, k.transpose(-1, -2)), self.cross_core(q, far_k.transpose(-1, -2))
            scores = torch.cat([near, far], -1) * spec.head_dim**-0.5
            if spec.attn_logit_softcapping is not None:
                scores = spec.attn_logit_softcapping * torch.tanh(scores / spec.attn_logit_softcapping)
            seen = allowed(run, end, tokens, k.shape[-2], x.device, causal=True, window=spec.sliding_window)
            seen = torch.cat([seen, seen.new_ones(tokens, far_k.shape[-2])], -1)
            weights = torch.softmax(scores.masked_fill(~seen, float("-inf")).float(), -1).to(v.dtype)
            out = self.core(weights[..., : k.shape[-2]], v) + self.cross_core(weights[..., k.shape[-2] :], far_v)
            result: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
            return result

    return MergedReference

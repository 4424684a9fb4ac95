"""Transformer-XL's attention in both directions, with segments: XLNet (Yang et al. 2019, arXiv:1906.08237, §2.4 and
§2.5).

Scores are (q + u)·k + (q + v)·r with r a map of the distance's sinusoid, of every distance from −tokens + 1 to tokens,
for each sequence by itself. A third term, (q + s)·segment, says whether two tokens are of one segment: it is held here,
and no part of a pass whose tokens are all of one. transformers: models/xlnet.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from .. import ops
from ..flow.tree import Node
from ..run.rows import Multiple
from .base import Around, Component, HeadDim, Heads
from .runtime import Run, vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class RelativeAttention(Component):
    """Of an encoder; no map has a bias."""

    node_name: ClassVar[str] = "self_attn"
    sides: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["relative"] = "relative"
    num_attention_heads: Heads
    head_dim: HeadDim

    def anatomy(self, name: str, around: Around) -> Node:
        h, a, d = around.hidden_size, self.num_attention_heads, self.head_dim
        width = a * d
        by_head = ops.Weight(width, rows=a)
        parts = (
            *(Node(one, ops.Linear(h, width)) for one in ("q_proj", "k_proj", "v_proj")),
            Node("r_proj", ops.Linear(h, width, constant=True, rows=Multiple(by=2))),
            Node("content_bias", by_head),
            Node("position_bias", by_head),
            Node("segment_bias", by_head, role="idle"),
            Node("segments", ops.Weight(2 * width, a, rows=2), role="idle"),
            Node("core", ops.AttentionCore(a, d, d, causal=False)),
            Node("distances", ops.DistanceScores(a, d)),
            Node("o_proj", ops.Linear(width, h)),
        )
        return Node(name, children=parts, kind="attention", source="Yang et al. 2019 (XLNet), §2.5")

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} × {self.head_dim}, Transformer-XL relative"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=4, head_dim=6), cls(num_attention_heads=3, head_dim=10)]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Core(nn.Module):
        """q, k, v: [batch, heads, tokens, d], bias:
        added to the scores before they are scaled → [batch, heads, tokens, d].
        """

        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            scores = (q @ k.transpose(-1, -2) + bias) * q.shape[-1] ** -0.5
            return torch.softmax(scores.float(), -1).to(v.dtype) @ v

    class Distances(nn.Module):
        """q: [batch, heads, tokens, d], r: [batch, heads, distances, d] → [batch, heads, tokens, distances]."""

        def forward(self, q: Tensor, r: Tensor) -> Tensor:
            return q @ r.transpose(-1, -2)

    class RelativeReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: RelativeAttention, hidden: int) -> None:
            super().__init__()
            self.heads, d, width = spec.num_attention_heads, spec.head_dim, spec.num_attention_heads * spec.head_dim
            for name in ("q_proj", "k_proj", "v_proj", "r_proj"):
                self.add_module(name, nn.Linear(hidden, width, bias=False))
            self.content_bias, self.position_bias, self.segment_bias = (
                vector(torch.randn(self.heads, d) * 0.02) for _ in range(3)
            )
            self.segments = vector(torch.randn(2, self.heads, d) * 0.02)
            self.core, self.distances = Core(), Distances()
            self.o_proj = nn.Linear(width, hidden, bias=False)

        def _heads_of(self, name: str, x: Tensor) -> Tensor:
            heads: Tensor = self.get_submodule(name)(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            return heads

        def _encoded(self, run: Run, x: Tensor) -> Tensor:
            """The sinusoids of the distances tokens, tokens − 1, …, −tokens + 1, [batch, 2 · tokens, hidden]."""
            tokens, hidden = x.shape[1], x.shape[-1]
            away = tokens - run.span(0, 2 * tokens, x.device)
            rates = 10000.0 ** -(torch.arange(0, hidden, 2, device=x.device, dtype=torch.float32) / hidden)
            angles = away[:, None].float() * rates
            return torch.cat([angles.sin(), angles.cos()], -1)[:, :hidden].to(x.dtype).expand(x.shape[0], -1, -1)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            q, k, v = (self._heads_of(name, x) for name in ("q_proj", "k_proj", "v_proj"))
            r = self._heads_of("r_proj", run.once(("away", x.shape), lambda: self._encoded(run, x)))
            by_distance = self.distances(q + self.position_bias.weight[:, None], r)
            at = run.span(0, x.shape[1], x.device)
            index = (x.shape[1] - (at[:, None] - at[None, :])).expand(*q.shape[:-1], -1)
            out = self.core(q + self.content_bias.weight[:, None], k, v, by_distance.gather(-1, index))
            result: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
            return result

    return RelativeReference

"""How a model knows the order of its tokens.

Learned (Gehring 2017; GPT, BERT) and sinusoidal (Vaswani 2017, §3.5) positions are added to the embeddings; T5's
relative bias (Raffel 2020, §2.1) and ALiBi (Press 2021, arXiv:2108.12409) are added to the scores; RoPE (Su 2021,
arXiv:2104.09864) turns queries and keys; Transformer-XL (Dai 2019, arXiv:1901.02860, §3.3) scores queries against
mapped encodings of the distance. Learned positions and T5's bias have a table; only Transformer-XL's have products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from ..flow.axis import Axis, Beside
from ..flow.record import Flow
from ..flow.value import Value
from ..run.rows import ONCE, Distances
from .base import (
    Around,
    Component,
    Flag,
    Heads,
    HeadSizes,
    Part,
    Positions,
    Real,
    StackPart,
    Standing,
    TokenMixer,
    Unscalable,
)
from .choice import PartChoice
from .runtime import Run, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .disentangled import Disentangled
    from .layers.block import Layer
    from .mixers.attention import Attention


class AttentionPosition(Part):
    """A position that stands in attention: on its queries and keys, or on its scores.

    sides: class attribute: the stacks whose attention may have it.
    by_distance: class attribute: it needs queries and keys of one sequence.
    label: class attribute: what a heading calls it.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    by_distance: ClassVar[bool] = True
    label: ClassVar[str] = ""

    def check_attention(self, attention: Attention) -> None:
        """Raises `ValueError` where attention with such fields cannot have it."""

    def check_place(self, place: Standing, head_dim: int) -> None:
        """Raises `ValueError` where attention with heads of that size cannot have it there. place: of the attention."""
        if place.side not in self.sides:
            kind, causal = type(self).model_fields["type"].default, self.sides == ("decoder",)
            directions, side = ("that is causal", "a decoder") if causal else ("in both directions", "an encoder")
            raise ValueError(f"{place.where}.position.type: '{kind}' is for attention {directions}; expected {side}")

    def check_heads(self, sizes: HeadSizes) -> None:
        """Raises `Unscalable` where it cannot stand in attention with these heads."""

    def requires(self) -> Mapping[str, Mapping[str, Any]]:
        """What it needs of the stack, as `TokenMixer.requires` has it."""
        return {}

    def flow(self, f: Flow, x: Value, q: Value, keys: Value, biases: tuple[bool, bool]) -> tuple[Value, Value | None]:
        """The queries that meet the keys, and what is added to their scores.

        biases: of the projections that make queries and keys.
        """
        return q, None


class Rope(AttentionPosition):
    """Rotary positions on the first `rotary_dim` of each head's dimensions (or a fraction of them; by default all)."""

    by_distance: ClassVar[bool] = False
    label: ClassVar[str] = "RoPE"

    type: Literal["rope"] = "rope"
    rope_theta: Real = Field(default=10000.0, gt=0)
    rotary_dim: Positions | None = None
    partial_rotary_factor: Real | None = Field(default=None, gt=0, le=1)

    def turned(self, head_dim: int) -> int:
        """How many of a head's dimensions are turned (even)."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return head_dim if self.partial_rotary_factor is None else int(head_dim * self.partial_rotary_factor) // 2 * 2

    def check(self, head_dim: int, where: str = "head_dim") -> None:
        """Raises `ValueError`, naming `where`, if it cannot turn heads of that size."""
        turned = self.turned(head_dim)
        would = (
            f"RoPE would turn {turned}{'' if self.rotary_dim is None else ' (rotary_dim)'} of a head's "
            f"{head_dim} dimensions (head_dim)"
        )
        if turned > head_dim:
            raise ValueError(f"{where}: {would}; expected no more than it has")
        if turned < 2 or turned % 2:
            raise ValueError(f"{where}: {would}; expected an even number, for it turns pairs")

    def check_place(self, place: Standing, head_dim: int) -> None:
        super().check_place(place, head_dim)
        self.check(head_dim, f"{place.where}.position")

    def check_whole(self, size: str) -> None:
        """Raises `ValueError` where it is to turn a part only of what the field `size` says is turned."""
        if self.rotary_dim is not None or self.partial_rotary_factor is not None:
            raise ValueError(
                f"position: all {size} dimensions are turned; expected no rotary_dim and no partial_rotary_factor"
            )

    def check_heads(self, sizes: HeadSizes) -> None:
        if isinstance(sizes.head_dim, int) and self.turned(sizes.head_dim) > sizes.head_dim:
            turned = self.turned(sizes.head_dim)
            raise Unscalable(f"{sizes.head_dim} is less than the {turned} dimensions that RoPE turns")

    def rotated(self, x: Tensor, run: Run, start: int) -> Tensor:
        """x: [..., tokens, head_dim], turned; its first token stands at position `start`."""
        turned = self.rotary_dim
        if turned is None:  # whole pairs of the given share of a head
            turned = 2 * int(x.shape[-1] * (self.partial_rotary_factor or 1.0) / 2)
        return rotate(x, run, start, turned, self.rope_theta)


class Alibi(AttentionPosition):
    """A penalty on the scores, linear in the distance, with a fixed slope per head."""

    label: ClassVar[str] = "ALiBi"

    type: Literal["alibi"] = "alibi"

    def flow(self, f: Flow, x: Value, q: Value, keys: Value, biases: tuple[bool, bool]) -> tuple[Value, Value | None]:
        return q, Value(ONCE, q.axes[:1], fixed=True)


class TransformerXL(AttentionPosition):
    """Relative positions by content: scores are (q + u)·k + (q + v)·r, r a learned map of the distance's sinusoid.

    u and v are vectors of a head each. Gopher and Chinchilla have it.
    """

    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    label: ClassVar[str] = "Transformer-XL relative"

    type: Literal["transformer_xl"] = "transformer_xl"

    def check_attention(self, attention: Attention) -> None:
        if attention.v_head_dim is not None:
            raise ValueError(
                "v_head_dim: with position.type 'transformer_xl' a value has the size of a key; expected none"
            )
        if attention.sliding_window is not None or attention.attention_chunk_size is not None:
            raise ValueError(
                "position.type: 'transformer_xl' is for full attention; expected no sliding_window and no "
                "attention_chunk_size"
            )

    def flow(self, f: Flow, x: Value, q: Value, keys: Value, biases: tuple[bool, bool]) -> tuple[Value, Value | None]:
        """What is added are the scores of the queries against every distance."""
        heads, dim = q.axes
        assert isinstance(heads, Axis)
        with f.scope("relative", source="Dai et al. 2019, §3.3"):
            distance = Value(Distances(of=x.rows), x.axes, fixed=True)
            mapped = f.linear("r_proj", distance, heads, dim)
            content = f.vector("content_bias", heads, dim, heads=heads)
            position = f.vector("position_bias", heads, dim, heads=heads)
            beside = mapped.seen(heads, dim, rows=q.rows)
            scores = f.attention("core", f.add(q, position), beside, beside.seen(heads, Axis("none", 0)))
            return f.add(q, content), scores

    def reference(self, around: Around, heads: int, head_dim: int) -> nn.Module:
        return _references()["transformer_xl"](around.hidden_size, heads, head_dim)


class Buckets(Part):
    """How T5 bins distances: near ones have a bucket each, those up to relative_attention_max_distance share the rest;
    half of all for each direction.
    """

    relative_attention_num_buckets: Positions = 32
    relative_attention_max_distance: Positions = 128

    @model_validator(mode="after")
    def _check_buckets(self) -> Self:
        buckets, furthest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4:
            raise ValueError(
                f"relative_attention_num_buckets: {buckets} are too few for near and far in both directions; "
                "expected at least 4"
            )
        if furthest <= buckets // 2:
            near = f"the {buckets // 2} near distances that have one each of relative_attention_num_buckets {buckets}"
            raise ValueError(f"relative_attention_max_distance: {furthest} is among {near}; expected more")
        return self


class LayerBias(Buckets, AttentionPosition):
    """T5's bias with a table of the layer's own (UMT5)."""

    label: ClassVar[str] = "relative bias"

    type: Literal["relative_bias"] = "relative_bias"

    def flow(self, f: Flow, x: Value, q: Value, keys: Value, biases: tuple[bool, bool]) -> tuple[Value, Value | None]:
        buckets = Axis("buckets", self.relative_attention_num_buckets)
        bias, _ = f.table("relative_bias", buckets, q.axes[0], of=ONCE, source="Chung et al. 2023 (UniMax), §4")
        return q, bias

    def reference(self, around: Around, heads: int) -> nn.Module:
        buckets, furthest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        return _references()["relative"](buckets, furthest, heads, around.causal)


SCORE_POSITIONS = PartChoice(
    "rope",
    {
        "rope": "position:Rope",
        "alibi": "position:Alibi",
        "transformer_xl": "position:TransformerXL",
        "relative_bias": "position:LayerBias",
        "disentangled": "disentangled:Disentangled",
    },
)

if TYPE_CHECKING:
    ScorePosition: TypeAlias = Rope | Alibi | TransformerXL | LayerBias | Disentangled
else:
    ScorePosition = Annotated[Part, SCORE_POSITIONS]


class Learned(Component):
    """A table of positions. offset: rows before position 0 (OPT and BART have 2)."""

    kind: ClassVar[str] = "embedding"

    type: Literal["learned"] = "learned"
    max_position_embeddings: Positions
    offset: int = Field(default=0, ge=0, le=64, strict=True)

    def describe(self, hidden_size: int) -> str:
        return f"learned {self.max_position_embeddings}"

    def flow(self, f: Flow, x: Value) -> Value:
        rows = self.max_position_embeddings + self.offset if self.offset else self.max_position_embeddings
        return f.table("", Axis("positions", rows), *x.axes, of=x.rows)[0]

    def reference(self, around: Around) -> nn.Module:
        return _references()["learned"](self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(max_position_embeddings=64), cls(max_position_embeddings=64, offset=2)]


class Sinusoidal(Component):
    """Sines and cosines of geometrically spaced frequencies: computed, not learned."""

    kind: ClassVar[str] = "embedding"

    type: Literal["sinusoidal"] = "sinusoidal"

    def source(self) -> str:
        return "Vaswani et al. 2017, §3.5"

    def flow(self, f: Flow, x: Value) -> Value:
        return f.elementwise("", axes=x.axes, rows=x.rows)

    def reference(self, around: Around) -> nn.Module:
        return _references()["sinusoidal"](around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


POSITIONS = PartChoice("learned", {"learned": "position:Learned", "sinusoidal": "position:Sinusoidal"})

if TYPE_CHECKING:
    Position: TypeAlias = Learned | Sinusoidal
else:
    Position = Annotated[Part, POSITIONS]


class RelativeBias(Buckets, StackPart):
    """T5's bias: one learned scalar for each bucket of distances and each head, shared by all layers of a stack.

    of_blocks: a second table, for the distance in blocks to sums of blocks (LongT5).
    """

    kind: ClassVar[str] = "attention"

    num_attention_heads: Heads
    of_blocks: Flag = False

    def check_layers(self, layers: Mapping[str, Layer]) -> None:
        for layer in layers.values():
            mixer = layer.attention
            taken = mixer.takes_bias() if isinstance(mixer, TokenMixer) else None
            heads = None if taken is None else taken.heads
            if heads != self.num_attention_heads:
                raise ValueError(
                    f"relative_bias.num_attention_heads: {self.num_attention_heads} is not the layers' {heads}"
                )
            if taken is not None and taken.of_blocks != self.of_blocks:
                raise ValueError(
                    "relative_bias.of_blocks: stands where every layer has a global_block_size, and nowhere else"
                )

    def source(self) -> str:
        return "Raffel et al. 2020, §2.1"

    def flow(self, f: Flow, x: Value) -> Value:
        buckets = Axis("buckets", self.relative_attention_num_buckets)
        heads = Axis("heads", self.num_attention_heads)
        bias, _ = f.table("", buckets, heads, of=ONCE)
        if not self.of_blocks:
            return bias
        of_blocks, _ = f.table("blocks", buckets, heads, of=ONCE)
        return f.cat(bias, of_blocks, axes=(Beside(((heads,), (heads,))),))

    def reference(self, around: Around) -> nn.Module:
        buckets, furthest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        bias = _references()["relative"](buckets, furthest, self.num_attention_heads, around.causal)
        if self.of_blocks:
            bias.add_module(
                "blocks", _references()["relative"](buckets, furthest, self.num_attention_heads, around.causal)
            )
        return bias

    @classmethod
    def examples(cls) -> list[Self]:
        one = cls(num_attention_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=16)
        return [one, one.model_copy(update={"of_blocks": True})]


@cache
def _references() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class LearnedReference(nn.Embedding):
        """positions: [tokens] → [tokens, hidden]."""

        def __init__(self, spec: Learned, hidden_size: int) -> None:
            super().__init__(spec.max_position_embeddings + spec.offset, hidden_size)
            self.offset = spec.offset

        def forward(self, positions: Tensor) -> Tensor:
            return super().forward(positions + self.offset)

    class SinusoidalReference(nn.Module):
        """positions: [tokens] → [tokens, hidden]."""

        def __init__(self, hidden_size: int) -> None:
            super().__init__()
            self.hidden_size = hidden_size

        def forward(self, positions: Tensor) -> Tensor:
            angles = _angles(positions, self.hidden_size, 10000.0)
            return torch.cat([angles.sin(), angles.cos()], -1)[:, : self.hidden_size]

    class RelativeReference(nn.Module):
        """query and key positions → a bias on the scores, [heads, queries, keys]."""

        def __init__(self, buckets: int, furthest: int, heads: int, causal: bool) -> None:
            super().__init__()
            self.causal, self.furthest, self.buckets = causal, furthest, buckets
            self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

        def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
            distance, buckets = keys[None, :] - queries[:, None], self.buckets
            offset: Tensor | int = 0
            if self.causal:
                distance = (-distance).clamp(min=0)
            else:
                buckets //= 2
                offset, distance = (distance > 0).long() * buckets, distance.abs()
            near = buckets // 2
            scale = (buckets - near) / math.log(self.furthest / near)
            far = near + ((distance.clamp(min=1) / near).log() * scale).long()
            bucket = torch.where(distance < near, distance, far.clamp(max=buckets - 1)) + offset
            return torch.nn.functional.embedding(bucket, self.weight).permute(2, 0, 1)

    class DistanceScores(nn.Module):
        """q: [batch, heads, queries, d], r: [distances, heads · d] → [batch, heads, queries, distances]."""

        def forward(self, q: Tensor, r: Tensor) -> Tensor:
            scores: Tensor = q @ r.unflatten(-1, (q.shape[1], -1)).permute(1, 2, 0)
            return scores

    class TransformerXLReference(nn.Module):
        """Queries → (queries that meet the keys, what is added to the scaled scores [batch, heads, queries, keys])."""

        def __init__(self, hidden_size: int, heads: int, head_dim: int) -> None:
            super().__init__()
            self.hidden_size = hidden_size
            self.r_proj = nn.Linear(hidden_size, heads * head_dim, bias=False)
            self.content_bias, self.position_bias = (vector(torch.randn(heads, 1, head_dim) * 0.02) for _ in range(2))
            self.core = DistanceScores()

        def forward(self, q: Tensor, run: Run, end: int) -> tuple[Tensor, Tensor]:
            angles = run.once(
                ("distances", end), lambda: _angles(run.span(0, end, q.device), self.hidden_size, 10000.0)
            )
            encoded = torch.cat([angles.sin(), angles.cos()], -1)[:, : self.hidden_size].to(q.dtype)
            by_distance = self.core(q + self.position_bias.weight, self.r_proj(encoded))
            queries, keys = run.span(end - q.shape[-2], end, q.device), run.span(0, end, q.device)
            distance = (queries[:, None] - keys[None, :]).clamp(min=0).expand(*q.shape[:-1], end)
            return q + self.content_bias.weight, by_distance.gather(-1, distance) * q.shape[-1] ** -0.5

    return {
        "transformer_xl": TransformerXLReference,
        "learned": LearnedReference,
        "sinusoidal": SinusoidalReference,
        "relative": RelativeReference,
    }


def _angles(positions: Tensor, dim: int, theta: float) -> Tensor:
    import torch

    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    return positions[:, None].float() * theta**-exponents


def rotate(x: Tensor, run: Run, start: int, dim: int, theta: float) -> Tensor:
    """RoPE on the first `dim` of x's last axis.
    x: [..., tokens, head_dim], of which the first stands at position `start`.
    """
    end = start + x.shape[-2]

    def turns() -> tuple[Tensor, Tensor]:
        return _cos_sin(run.span(start, end, x.device), dim, theta, x)

    return _turned(x, dim, *run.once(("rope", start, end, dim, theta, x.dtype), turns))


def turn(x: Tensor, positions: Tensor, dim: int, theta: float) -> Tensor:
    """RoPE on the first `dim` of x's last axis. x: [..., tokens, head_dim], standing at these positions."""
    return _turned(x, dim, *_cos_sin(positions, dim, theta, x))


def _cos_sin(positions: Tensor, dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    angles = _angles(positions, dim, theta)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _turned(x: Tensor, dim: int, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    left, right, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)


def alibi_bias(heads: int, queries: Tensor, keys: Tensor) -> Tensor:
    """−slope · distance, [heads, queries, keys]; the slopes are 2^(−8i/heads)."""
    import torch

    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=keys.device) / heads)
    return -slopes[:, None, None] * (queries[:, None] - keys[None, :]).abs()

"""Positions inside attention, and RoPE (Su 2021, arXiv:2104.09864), which rotates queries and keys.

Terms added to the scores are in `distance`, positions added to the embeddings in `added_position`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from ..flow.record import Flow
from ..flow.value import Value
from .base import BY_TORCH, HeadSizes, Part, Positions, Real, Standing, Unscalable
from .choice import PartChoice
from .runtime import Run

if TYPE_CHECKING:
    from torch import Tensor

    from .disentangled import Disentangled
    from .mixers.attention import Attention


class AttentionPosition(Part):
    """A position encoding inside attention, on queries and keys or on scores.

    sides: the stacks whose attention may use it (class attribute).
    by_distance: whether queries and keys must be of one sequence (class attribute).
    label: its name in a heading (class attribute).
    """

    noun: ClassVar[str] = "position"
    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    by_distance: ClassVar[bool] = True
    label: ClassVar[str] = ""

    def check_attention(self, attention: Attention) -> None:
        """Raises `ValueError` where it does not fit the fields of that attention."""

    def check_place(self, place: Standing, head_dim: int) -> None:
        """Raises `ValueError` where attention in that place, with heads of that size, cannot use it."""
        if place.side not in self.sides:
            kind, causal = type(self).model_fields["type"].default, self.sides == ("decoder",)
            directions, side = ("that is causal", "a decoder") if causal else ("in both directions", "an encoder")
            raise ValueError(f"{place.where}.position.type: '{kind}' is for attention {directions}; expected {side}")

    def check_heads(self, sizes: HeadSizes) -> None:
        """Raises `Unscalable` where it does not fit attention with these heads."""

    def requires(self) -> Mapping[str, Mapping[str, Any]]:
        """The parts of the stack that it needs, as in `TokenMixer.requires`."""
        return {}

    def flow(self, f: Flow, x: Value, q: Value, keys: Value, biases: tuple[bool, bool]) -> tuple[Value, Value | None]:
        """Returns the queries for the product with the keys, and the term that is added to the scores.

        biases: whether the query and the key projection have a bias.
        """
        return q, None


class Rope(AttentionPosition):
    """Rotary position embedding (RoPE) on the first dimensions of each head.

    rope_theta: the base of the frequencies, 10000 by default.
    rotary_dim: the number of rotated dimensions per head; by default all, or the fraction `partial_rotary_factor`.
    partial_rotary_factor: the fraction of rotated dimensions; none by default.
    """

    witness = BY_TORCH
    by_distance: ClassVar[bool] = False
    label: ClassVar[str] = "RoPE"

    type: Literal["rope"] = "rope"
    rope_theta: Real = Field(default=10000.0, gt=0)
    rotary_dim: Positions | None = None
    partial_rotary_factor: Real | None = Field(default=None, gt=0, le=1)

    def rotary_size(self, head_dim: int) -> int:
        """The number of dimensions of a head that are rotated (even)."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return head_dim if self.partial_rotary_factor is None else int(head_dim * self.partial_rotary_factor) // 2 * 2

    def check(self, head_dim: int, where: str = "head_dim") -> None:
        """Raises `ValueError`, naming `where`, if it cannot rotate heads of that size."""
        turned = self.rotary_size(head_dim)
        would = (
            f"RoPE would rotate {turned}{'' if self.rotary_dim is None else ' (rotary_dim)'} of a head's "
            f"{head_dim} dimensions (head_dim)"
        )
        if turned > head_dim:
            raise ValueError(f"{where}: {would}; expected at most head_dim")
        if turned < 2 or turned % 2:
            raise ValueError(f"{where}: {would}; expected an even number, because it rotates pairs")

    def check_place(self, place: Standing, head_dim: int) -> None:
        super().check_place(place, head_dim)
        self.check(head_dim, f"{place.where}.position")

    def check_whole(self, size: str) -> None:
        """Raises `ValueError` unless it rotates all of the dimensions whose number the field `size` gives."""
        if self.rotary_dim is not None or self.partial_rotary_factor is not None:
            raise ValueError(
                f"position: all {size} dimensions are rotated; expected no rotary_dim and no partial_rotary_factor"
            )

    def check_heads(self, sizes: HeadSizes) -> None:
        if isinstance(sizes.head_dim, int) and self.rotary_size(sizes.head_dim) > sizes.head_dim:
            turned = self.rotary_size(sizes.head_dim)
            raise Unscalable(f"{sizes.head_dim} is less than the {turned} dimensions that RoPE turns")

    def rotated(self, x: Tensor, run: Run, start: int) -> Tensor:
        """RoPE on x [..., tokens, head_dim], whose first token is at position `start`."""
        turned = self.rotary_dim
        if turned is None:  # the given fraction of a head, in whole pairs
            turned = 2 * int(x.shape[-1] * (self.partial_rotary_factor or 1.0) / 2)
        return rotate(x, run, start, turned, self.rope_theta)


SCORE_POSITIONS = PartChoice(
    "rope",
    {
        "rope": "position:Rope",
        "alibi": "distance:Alibi",
        "transformer_xl": "distance:TransformerXL",
        "relative_bias": "distance:LayerBias",
        "disentangled": "disentangled:Disentangled",
    },
)

if TYPE_CHECKING:
    from .added_position import Learned, Sinusoidal
    from .distance import Alibi, LayerBias, TransformerXL

    ScorePosition: TypeAlias = Rope | Alibi | TransformerXL | LayerBias | Disentangled
else:
    ScorePosition = Annotated[Part, SCORE_POSITIONS]


POSITIONS = PartChoice("learned", {"learned": "added_position:Learned", "sinusoidal": "added_position:Sinusoidal"})

if TYPE_CHECKING:
    Position: TypeAlias = Learned | Sinusoidal
else:
    Position = Annotated[Part, POSITIONS]


def angles_of(positions: Tensor, dim: int, theta: float) -> Tensor:
    """position · θ^(−2i / dim), [positions, dim / 2]."""
    import torch

    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    return positions[:, None].float() * theta**-exponents


def rotate(x: Tensor, run: Run, start: int, dim: int, theta: float, back: bool = False) -> Tensor:
    """RoPE on the first `dim` of x's last axis. x: [..., tokens, head_dim], with its first token at `start`.

    back: whether it is undone, false by default.
    """
    end = start + x.shape[-2]

    def turns() -> tuple[Tensor, Tensor]:
        return _cos_sin(run.span(start, end, x.device), dim, theta, x)

    cos, sin = run.once(("rope", start, end, dim, theta, x.dtype), turns)
    return _rotated_back(x, dim, cos, sin) if back else _rotated(x, dim, cos, sin)


def rotate_at(x: Tensor, positions: Tensor, dim: int, theta: float) -> Tensor:
    """RoPE on the first `dim` of x's last axis. x: [..., tokens, head_dim], with tokens at these positions."""
    return _rotated(x, dim, *_cos_sin(positions, dim, theta, x))


def _cos_sin(positions: Tensor, dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    angles = angles_of(positions, dim, theta)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(x: Tensor, dim: int, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    left, right, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)


def _rotated_back(x: Tensor, dim: int, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    left, right, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return torch.cat([left * cos + right * sin, right * cos - left * sin, rest], -1)

"""Rotary position embedding (Su 2021, arXiv:2104.09864), and the union of position encodings inside attention.

Terms added to the scores are in `distance`, positions added to the embeddings in `added_position`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from .base import (
    TORCH_WITNESS,
    AttentionPosition,
    FiniteNumber,
    Flag,
    HeadSizes,
    Part,
    PartWitness,
    Positions,
    StackPosition,
    UnscalableError,
)
from .part_choice import PartChoice
from .rotation import rotate
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor


class Rope(AttentionPosition):
    """Rotary position embedding (RoPE) on the first dimensions of each head.

    rope_theta: the base of the frequencies, 10000 by default.
    rotary_dim: the number of rotated dimensions per head; by default all, or the fraction `partial_rotary_factor`.
    partial_rotary_factor: the fraction of rotated dimensions; none by default.
    concatenated: whether the result is concatenated with the dimensions that are not rotated even where there are none
        (Phi-3), and so has all tokens of a head together; false by default. Counts do not change.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    requires_self_attention: ClassVar[bool] = False
    label: ClassVar[str] = "RoPE"

    type: Literal["rope"] = "rope"
    rope_theta: FiniteNumber = Field(default=10000.0, gt=0)
    rotary_dim: Positions | None = None
    partial_rotary_factor: FiniteNumber | None = Field(default=None, gt=0, le=1)
    concatenated: Flag = False

    def rotary_size(self, head_dim: int) -> int:
        """The number of dimensions of a head that are rotated (even)."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return head_dim if self.partial_rotary_factor is None else int(head_dim * self.partial_rotary_factor) // 2 * 2

    def check_rotary_size(self, head_dim: int, error_location: str = "head_dim") -> None:
        """Raises `ValueError` if RoPE cannot rotate heads of this size. error_location: the field in the error."""
        rotary_width = self.rotary_size(head_dim)
        rotation_text = (
            f"RoPE would rotate {rotary_width}{'' if self.rotary_dim is None else ' (rotary_dim)'} of a head's "
            f"{head_dim} dimensions (head_dim)"
        )
        if rotary_width > head_dim:
            raise ValueError(f"{error_location}: {rotation_text}; expected at most head_dim")
        if rotary_width < 2 or rotary_width % 2:
            raise ValueError(f"{error_location}: {rotation_text}; expected an even number, because it rotates pairs")

    def check_stack_position(self, stack_position: StackPosition, head_dim: int) -> None:
        super().check_stack_position(stack_position, head_dim)
        self.check_rotary_size(head_dim, f"{stack_position.error_path}.position")

    def check_full_rotation(self) -> None:
        """Raises `ValueError` unless RoPE rotates all `qk_rope_head_dim` dimensions."""
        if self.rotary_dim is not None or self.partial_rotary_factor is not None:
            raise ValueError(
                "position: all qk_rope_head_dim dimensions are rotated; expected no rotary_dim and no "
                "partial_rotary_factor"
            )

    def check_heads(self, head_sizes: HeadSizes) -> None:
        if isinstance(head_sizes.head_dim, int) and self.rotary_size(head_sizes.head_dim) > head_sizes.head_dim:
            rotary_width = self.rotary_size(head_sizes.head_dim)
            raise UnscalableError(f"{head_sizes.head_dim} is less than the {rotary_width} dimensions that RoPE turns")

    def rotate_heads(self, x: Tensor, pass_state: PassState, first_position: int) -> Tensor:
        """Applies RoPE to x [..., tokens, head_dim], whose first token is at position `first_position`."""
        rotary_dim = self.rotary_dim
        if rotary_dim is None:  # the given fraction of a head, in whole pairs
            rotary_dim = 2 * int(x.shape[-1] * (self.partial_rotary_factor or 1.0) / 2)
        return rotate(x, pass_state, first_position, rotary_dim, self.rope_theta, is_concatenated=self.concatenated)


SCORE_POSITIONS = PartChoice(
    "rope",
    {
        "rope": "rope:Rope",
        "alibi": "distance_bias:AlibiBias",
        "transformer_xl": "distance_bias:TransformerXLScores",
        "relative_bias": "distance_bias:LayerBias",
        "disentangled": "disentangled:DisentangledScores",
    },
)

if TYPE_CHECKING:
    from .added_position import AxialPositions, LearnedPositions, SinusoidalPositions
    from .disentangled import DisentangledScores
    from .distance_bias import AlibiBias, LayerBias, TransformerXLScores

    ScorePosition: TypeAlias = Rope | AlibiBias | TransformerXLScores | LayerBias | DisentangledScores
else:
    ScorePosition = Annotated[Part, SCORE_POSITIONS]


POSITIONS = PartChoice(
    "learned",
    {
        "learned": "added_position:LearnedPositions",
        "sinusoidal": "added_position:SinusoidalPositions",
        "axial": "added_position:AxialPositions",
    },
)

if TYPE_CHECKING:
    Position: TypeAlias = LearnedPositions | SinusoidalPositions | AxialPositions
else:
    Position = Annotated[Part, POSITIONS]

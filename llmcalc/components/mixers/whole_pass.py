"""Attention of a decoder whose tokens attend to all tokens of their pass, later ones too.

CPM-Ant (OpenBMB 2022): the whole prompt is context, which is read in both directions; generated tokens follow one by
one. transformers: models/cpmant (`CpmAntModel._prepare_attention_mask`).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from ..base import UNTESTED, PartWitness
from .attention import Attention


class WholePassAttention(Attention):
    """Multi-head attention to all earlier tokens and to all tokens of the same pass. The fields are those of attention.
    """

    witness: ClassVar[PartWitness] = UNTESTED
    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    sees_whole_pass: ClassVar[bool] = True

    type: Literal["whole_pass"] = "whole_pass"  # type: ignore[assignment]

    def source(self) -> str:
        return "OpenBMB 2022 (CPM-Ant)"

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=4, head_dim=8), cls(num_attention_heads=4, num_key_value_heads=2, q_bias=True)]

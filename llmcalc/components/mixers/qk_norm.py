"""A norm on the queries and keys of attention (Dehghani 2023, arXiv:2302.05442, §2)."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..base import TORCH_WITNESS, Part, PartWitness
from ..norm import Norm


class QKNorm(Part):
    """The norm on the queries and keys of attention.

    norm: the norm.
    scope: `head`, one set of head_dim weights for all heads (Qwen3), by default; `per_head`, one set per head (Command
        R+); `projection`, over all heads at once (OLMo 2).
    order: before RoPE, by default, or after it.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    norm: Norm
    scope: Literal["head", "per_head", "projection"] = "head"
    order: Literal["before_rope", "after_rope"] = "before_rope"

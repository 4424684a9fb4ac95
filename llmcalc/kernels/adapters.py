"""Low-rank adapters beside frozen weights (LoRA: Hu et al. 2021, arXiv:2106.09685; QLoRA: Dettmers et al. 2023,
arXiv:2305.14314).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..algebra import Number, ceil_div
from .tensor import FLOAT32, Dtype

Base: TypeAlias = Literal["", "nf4", "nf4-dq"]

BLOCK, SECOND_BLOCK, CODE_BYTES = 64, 256, 1024
"""bitsandbytes: weights per scale; scales per scale of scales; bytes of the table that decodes scales."""


@dataclass(frozen=True)
class Adapters:
    """What is trained in the place of the weights, which are frozen.

    rank: the width of each adapter. targets: names of the linear layers that have one (`q_proj`).
    dropout: whether its input passes dropout. dtype: the number format of adapters and of their computation.
    base: how the frozen matrices of the layers are stored: as the model's own numbers (empty), in 4 bits (`nf4`), or in
        4 bits with scales that are quantised themselves (`nf4-dq`).
    """

    rank: int
    targets: frozenset[str]
    dropout: bool = False
    dtype: Dtype = FLOAT32
    base: Base = ""

    def stored_bytes(self, weights: Number) -> Number:
        """Bytes of a matrix of that many weights, with its scales (bitsandbytes/functional.py, `quantize_4bit`)."""
        blocks = ceil_div(weights, BLOCK)
        codes = ceil_div(weights, 2)
        if self.base == "nf4":
            return codes + 4 * blocks
        return codes + blocks + 4 * ceil_div(blocks, SECOND_BLOCK) + CODE_BYTES + 4

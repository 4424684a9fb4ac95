"""The rule that resizes every image to the same square.

LLaVA 1.5, Gemma 3 without pan and scan, Gemma 3n, PaliGemma. transformers: models/llava/processing_llava.py,
models/gemma3/processing_gemma3.py, models/gemma3n/processing_gemma3n.py, models/paligemma/processing_paligemma.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class FixedSize(ImageRule):
    """The rule for an image that is resized to a square of `size` pixels on each side.

    size: the side of the square in pixels.
    tokens: the embeddings of an image in the text model's sequence.
    marks: the further tokens that the processor writes around an image, 0 by default.
    pools: whether the encoder itself gives as many vectors as an image has embeddings (Gemma 3n), false by default.
    """

    type: Literal["fixed"] = "fixed"
    size: InnerWidth
    tokens: InnerWidth
    marks: int = Field(default=0, ge=0, le=1000, strict=True)
    pools: Flag = False

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        patches_per_side = self.size // patch_size
        pooled_vector_count = self.tokens if self.pools else None
        return InputSizes(1, patches_per_side, patches_per_side, self.tokens + self.marks, pooled_vector_count)

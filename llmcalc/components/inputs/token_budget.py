"""The rule that scales an image to a budget of tokens; padding fills the rest of the budget.

Gemma 4. transformers: models/gemma4/image_processing_gemma4.py.
"""

from __future__ import annotations

from math import floor, sqrt
from typing import Literal

from pydantic import Field

from ...errors import InputError
from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class TokenBudget(ImageRule):
    """The rule for an image of at most max_tokens · merge² patches; its sides are multiples of merge · patch_size.

    max_tokens: the most embeddings of an image.
    merge: the side of the square of patches that are averaged to one embedding.
    marks: the further tokens that the processor writes around an image, 0 by default.

    projects_padding: whether projectors read padding too (the unified Gemma 4), false by default.

    The encoder reads the whole budget of patches, in which padding follows those of the image.
    """

    type: Literal["budget"] = "budget"
    max_tokens: InnerWidth
    merge: InnerWidth
    marks: int = Field(default=0, ge=0, le=1000, strict=True)
    projects_padding: Flag = False

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        patch_budget, token_size = self.max_tokens * self.merge**2, self.merge * patch_size
        resize_scale = sqrt(patch_budget * patch_size**2 / (height * width))
        token_rows, token_columns = floor(resize_scale * height / token_size), floor(resize_scale * width / token_size)
        if token_rows == token_columns == 0:
            raise InputError(
                f"--image {width}x{height}: the processor makes no image of it with max_tokens {self.max_tokens}; "
                "expected another shape"
            )
        if token_rows == 0:
            token_rows, token_columns = 1, min(width // height, self.max_tokens)
        elif token_columns == 0:
            token_rows, token_columns = min(height // width, self.max_tokens), 1
        if token_rows * token_columns > self.max_tokens:
            raise InputError(f"--image {width}x{height}: needs more than {self.max_tokens} tokens; expected less width")
        real_patch_count = None if self.projects_padding else token_rows * token_columns * self.merge**2
        return InputSizes(1, patch_budget, 1, token_rows * token_columns + self.marks, real_patch_count)

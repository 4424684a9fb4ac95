"""The rule that shrinks an image to a longest side; a mark token may end each row of image tokens.

Pixtral (Agrawal 2024, arXiv:2410.07073, §2.2), Mistral 3, LightOnOCR. transformers:
models/pixtral/image_processing_pixtral.py and processing_pixtral.py, models/lighton_ocr/processing_lighton_ocr.py.
"""

from __future__ import annotations

from math import floor
from typing import Literal

from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class LongestEdge(ImageRule):
    """The rule for images whose sides are at most `size` pixels, rounded up to multiples of merge · patch_size.

    size: the longest side in pixels.
    merge: the side of the square of patches of a token, 1 by default.
    line_marks: whether a mark ends each row of tokens, true by default (false in LightOnOCR).
    """

    type: Literal["longest_edge"] = "longest_edge"
    size: InnerWidth
    merge: InnerWidth = 1
    line_marks: Flag = True

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        resize_ratio = max(height / self.size, width / self.size)
        if resize_ratio > 1:
            height, width = floor(height / resize_ratio), floor(width / resize_ratio)
        token_size = self.merge * patch_size
        token_rows, token_columns = ((side_pixels - 1) // token_size + 1 for side_pixels in (height, width))
        patch_columns = token_columns * self.merge
        return InputSizes(1, token_rows * self.merge, patch_columns, token_rows * (token_columns + self.line_marks))

"""The rule that shrinks an image if it is too large, and pads it to whole squares of merged patches.

Kimi K2.5 (MoonViT: 2025, arXiv:2504.07491, §2.1). transformers: models/kimi_k25/image_processing_kimi_k25.py.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

from ...errors import InputError
from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class PaddedImage(ImageRule):
    """The rule for images whose sides are padded to multiples of merge · patch_size.

    merge: the side of the square of patches of a token.
    max_patches: the most patches of an image, before it is padded.
    max_side: the most patches along one side.
    refuses_long: whether the processor refuses an image with a longer side, after it is shrunk to max_patches and
        padded, in the place of shrinking it further; false by default (true in Kimi-VL).
    """

    type: Literal["padded"] = "padded"
    merge: InnerWidth
    max_patches: InnerWidth
    max_side: InnerWidth
    refuses_long: Flag = False

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        side_limit = max(height, width) if self.refuses_long else self.max_side * patch_size
        patch_count = max(1, height // patch_size) * max(1, width // patch_size)
        resize_scale = min(1.0, sqrt(self.max_patches / patch_count), side_limit / height, side_limit / width)
        scaled_sides = (min(max(1, int(side_pixels * resize_scale)), side_limit) for side_pixels in (height, width))
        token_size = self.merge * patch_size
        token_rows, token_columns = (-(-side_pixels // token_size) for side_pixels in scaled_sides)
        if self.refuses_long and max(token_rows, token_columns) * self.merge > self.max_side:
            raise InputError(
                f"--image {width}x{height}: the processor refuses more than {self.max_side} patches along a side; "
                "expected another shape"
            )
        return InputSizes(1, token_rows * self.merge, token_columns * self.merge, token_rows * token_columns)

"""The rule that fits an image into the best of several resolutions, cuts tiles, and adds the whole image.

The tokens of the padding are left out, and each line of tokens ends in a mark. LLaVA-NeXT and LLaVA-OneVision (Li 2024,
arXiv:2408.03326, §3.2). transformers: models/llava_next/processing_llava_next.py,
models/llava_onevision/processing_llava_onevision.py.
"""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

from pydantic import Field

from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class ResolutionPinpoints(ImageRule):
    """The rule for images cut into tiles of `size` × `size` pixels at one of several resolutions, plus the whole image.

    size: the side of a tile in pixels.
    resolutions: [height, width] of each, in pixels; without any, images are read as a whole alone.
    most_tiles: the number of tiles whose tokens an image may have before they are averaged; None for no limit.
    several_whole: whether each of several images is read as a whole alone (LLaVA-OneVision), false by default.
    """

    type: Literal["pinpoints"] = "pinpoints"
    size: InnerWidth
    resolutions: Annotated[tuple[tuple[InnerWidth, InnerWidth], ...], Field(max_length=1000)]
    most_tiles: InnerWidth | None = None
    several_whole: Flag = False

    def rule_for_several_images(self) -> ImageRule:
        return self.model_copy(update={"resolutions": ()}) if self.several_whole else self

    def best_resolution(self, height: int, width: int) -> tuple[int, int]:
        """Returns the resolution that keeps the most pixels; in a tie, the least padding."""

        def pixels_and_padding(resolution: tuple[int, int]) -> tuple[int, int]:
            resize_scale = min(resolution[1] / width, resolution[0] / height)
            kept_pixel_count = min(int(width * resize_scale) * int(height * resize_scale), width * height)
            return kept_pixel_count, kept_pixel_count - resolution[0] * resolution[1]

        return max(self.resolutions, key=pixels_and_padding)  # the first of equals

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        patches_per_side = self.size // patch_size
        if not self.resolutions:
            return InputSizes(1, patches_per_side, patches_per_side, patches_per_side * patches_per_side + 1)
        tiles_down, tiles_across = (side_pixels // self.size for side_pixels in self.best_resolution(height, width))
        patch_rows, patch_columns = patches_per_side * tiles_down, patches_per_side * tiles_across
        if width / height > patch_columns / patch_rows:
            patch_rows -= (patch_rows - int(round(height * (patch_columns / width), 7))) // 2 * 2
        else:
            patch_columns -= (patch_columns - int(round(width * (patch_rows / height), 7))) // 2 * 2
        if self.most_tiles is not None:
            resize_ratio = sqrt(patch_rows * patch_columns / (self.most_tiles * patches_per_side**2))
            if resize_ratio > 1.1:
                patch_rows, patch_columns = int(patch_rows // resize_ratio), int(patch_columns // resize_ratio)
        token_count = patch_rows * patch_columns + patch_rows + patches_per_side * patches_per_side
        return InputSizes(1 + tiles_down * tiles_across, patches_per_side, patches_per_side, token_count)

"""The rule that reads the whole image and, if the image is large, also slices of about `size`² pixels.

MiniCPM-V (Yao 2024, arXiv:2408.01800, §3.2). transformers: models/minicpmv4_6/image_processing_minicpmv4_6.py, with
fewer patches per token than the processors of versions 2.6, 4.0 and 4.5 in their own code.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import Literal

from pydantic import Field

from ..base import InnerWidth
from .base import ImageRule, InputSizes


class ImageSlices(ImageRule):
    """The rule for images cut into slices of about `size`² pixels, besides the whole image at about as many pixels.

    size: the side in pixels of a square with as many pixels as a slice.
    max_slices: the most slices, without the whole image.
    tokens: the embeddings of a slice.
    merge: the side of the square of patches that sides are multiples of, 1 by default.
    slice_marks: the further tokens that the processor writes for each slice, 2 by default.
    marks: those that it writes before an image, 3 by default.

    A mark ends each line of slices but the last one. The encoder pads slices and the whole image to equal patches.
    """

    type: Literal["slices"] = "slices"
    size: InnerWidth
    max_slices: int = Field(ge=1, le=1000, strict=True)
    tokens: InnerWidth
    merge: InnerWidth = 1
    slice_marks: int = Field(default=2, ge=0, le=1000, strict=True)
    marks: int = Field(default=3, ge=0, le=1000, strict=True)

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        token_size = self.merge * patch_size
        slices_down, slices_across = self._slice_grid(height, width)
        slice_count = slices_down * slices_across
        if slice_count == 1:
            image_sides = [self._resized_sides(height, width, token_size, True)]
        else:
            slice_height, slice_width = (
                _nearest_multiple(side_pixels, slices_along_side) / slices_along_side
                for side_pixels, slices_along_side in ((height, slices_down), (width, slices_across))
            )
            overview_sides = self._resized_sides(height, width, token_size, False)
            image_sides = [
                overview_sides,
                *[self._resized_sides(slice_height, slice_width, token_size, True)] * slice_count,
            ]
        patch_count = max(image_height * image_width for image_height, image_width in image_sides) // patch_size**2
        token_count = len(image_sides) * (self.tokens + self.slice_marks) + self.marks + slices_down - 1
        return InputSizes(len(image_sides), patch_count, 1, token_count)

    def _slice_grid(self, height: int, width: int) -> tuple[int, int]:
        """Returns the numbers of slice rows and columns of the grid whose aspect ratio is nearest to the image's."""
        slice_count = min(ceil(width * height / self.size**2), self.max_slices)
        if slice_count <= 1:
            return 1, 1
        log_ratio = log(width / height)
        tile_grids = [
            (slices_down, candidate_count // slices_down)
            for candidate_count in (slice_count - 1, slice_count, slice_count + 1)
            if 1 < candidate_count <= self.max_slices
            for slices_down in range(candidate_count, 0, -1)
            if candidate_count % slices_down == 0
        ]
        return min(tile_grids, key=lambda tile_grid: abs(log_ratio - log(tile_grid[1] / tile_grid[0])))

    def _resized_sides(self, height: float, width: float, token_size: int, can_enlarge: bool) -> tuple[int, int]:
        """Returns an image's sides after scaling to `size`² pixels. can_enlarge: whether small images are enlarged."""
        if height * width > self.size**2 or can_enlarge:
            aspect_ratio = width / height
            height = int(self.size / sqrt(aspect_ratio))
            width = int(height * aspect_ratio)
        return _nearest_multiple(height, token_size), _nearest_multiple(width, token_size)


def _nearest_multiple(side_pixels: float, divisor: int) -> int:
    return max(round(side_pixels / divisor) * divisor, divisor)

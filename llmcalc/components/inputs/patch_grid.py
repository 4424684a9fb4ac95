"""The rule that scales an image only if its number of patches is outside of limits.

transformers: models/nemotron_h_omni/image_processing_nemotron_h_omni.py (`get_patch_grid_size`).
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Literal

from pydantic import Field

from ..base import InnerWidth
from .base import ImageRule, InputSizes


class PatchGrid(ImageRule):
    """The rule for images whose patch rows and columns are multiples of `merge`; merge × merge patches are a token.

    merge: the side of the square of patches of a token.
    min_patches, max_patches: limits of the number of patches.
    marks: the further tokens that the processor writes around an image, 0 by default.
    """

    type: Literal["patch_grid"] = "patch_grid"
    merge: InnerWidth
    min_patches: InnerWidth
    max_patches: InnerWidth
    marks: int = Field(default=0, ge=0, le=1000, strict=True)

    def check_fields(self) -> None:
        if self.min_patches >= self.max_patches:
            raise ValueError(f"min_patches: {self.min_patches}; expected less than max_patches {self.max_patches}")

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        patch_rows, patch_columns = (round(side_pixels / patch_size + 0.5) for side_pixels in (height, width))
        shrink_factor = min(sqrt(self.max_patches / (patch_rows * patch_columns)), 1.0)
        patch_rows, patch_columns = floor(shrink_factor * patch_rows), floor(shrink_factor * patch_columns)
        if patch_rows * patch_columns < self.min_patches:
            upscale_factor = sqrt(self.min_patches / (patch_rows * patch_columns))
            patch_rows, patch_columns = ceil(upscale_factor * patch_rows), ceil(upscale_factor * patch_columns)
        patch_rows = self._rounded_patch_count(patch_rows, patch_columns)
        patch_columns = self._rounded_patch_count(patch_columns, patch_rows)
        return InputSizes(1, patch_rows, patch_columns, patch_rows * patch_columns // self.merge**2 + self.marks)

    def _rounded_patch_count(self, patch_count: int, other_side_patch_count: int) -> int:
        """Returns the patches along a side, rounded up to a multiple of `merge`, or down if the grid is too large."""
        missing_patch_count = -patch_count % self.merge
        if (patch_count + missing_patch_count) * other_side_patch_count <= self.max_patches:
            return patch_count + missing_patch_count
        return max(self.merge, patch_count - patch_count % self.merge)

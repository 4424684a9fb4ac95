"""The rule that fits an image into the best of several resolutions and cuts it into crops.

Aria with `split_image` (Li 2024, arXiv:2410.05993). transformers: models/aria/image_processing_aria.py.
"""

from __future__ import annotations

from typing import Literal

from ..base import InnerWidth
from .base import InputSizes
from .pinpoints import ResolutionPinpoints


class ResolutionCrops(ResolutionPinpoints):
    """The rule for images cut into crops of at most `size` × `size` pixels, each padded to that size.

    size: the side of a padded crop in pixels.
    resolutions: [height, width] of each, in pixels.
    tokens: the tokens of a crop.
    """

    type: Literal["crops"] = "crops"  # type: ignore[assignment]
    most_tiles: None = None
    several_whole: Literal[False] = False
    tokens: InnerWidth

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        tile_rows, tile_columns = (-(-side_pixels // self.size) for side_pixels in self.best_resolution(height, width))
        patches_per_side = self.size // patch_size
        token_count = tile_rows * tile_columns * self.tokens
        return InputSizes(tile_rows * tile_columns, patches_per_side, patches_per_side, token_count)

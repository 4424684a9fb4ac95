"""The rule that stretches an image to the tile grid of nearest aspect ratio, and adds the whole image.

InternVL (Chen 2024, arXiv:2404.16821, §3.3), Aya Vision, Command A Vision. transformers:
models/got_ocr2/image_processing_got_ocr2.py, models/internvl/processing_internvl.py,
models/aya_vision/processing_aya_vision.py, models/cohere2_vision/image_processing_cohere2_vision.py.
"""

from __future__ import annotations

from math import prod
from operator import itemgetter
from typing import Literal

from pydantic import Field

from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes


class ImageTiles(ImageRule):
    """The rule for images cut into tiles of size × size pixels; if several, a tile of the whole image is added.

    size: the side of a tile in pixels.
    min_tiles, max_tiles: limits of the number of tiles, without the whole image.
    tokens: the embeddings of a tile.
    tile_marks: the further tokens that the processor writes for each tile, 0 by default.
    marks: those that it writes around an image, 0 by default.
    least_scaling: whether the grid is the one that enlarges the image least or else shrinks it least, in the place of
        that of nearest aspect ratio; false by default (true in Command A Vision).
    """

    type: Literal["tiles"] = "tiles"
    size: InnerWidth
    min_tiles: int = Field(default=1, ge=1, le=1000, strict=True)
    max_tiles: int = Field(ge=1, le=1000, strict=True)
    tokens: InnerWidth
    tile_marks: int = Field(default=0, ge=0, le=1000, strict=True)
    marks: int = Field(default=0, ge=0, le=1000, strict=True)
    least_scaling: Flag = False

    def check_fields(self) -> None:
        if self.min_tiles > self.max_tiles:
            raise ValueError(f"min_tiles: {self.min_tiles} is more than max_tiles {self.max_tiles}; expected less")

    def tile_grid(self, height: int, width: int) -> tuple[int, int]:
        """Returns tile columns and rows with the aspect ratio nearest to the image's; some ties go to more tiles."""
        tile_grids = [
            (tiles_across, tiles_down)
            for tiles_across in range(1, self.max_tiles + 1)
            for tiles_down in range(1, self.max_tiles // tiles_across + 1)
            if tiles_across * tiles_down >= self.min_tiles
        ]
        if self.least_scaling:
            scales_and_grids = [
                (self.size * min(tile_columns / width, tile_rows / height), (tile_columns, tile_rows))
                for tile_columns, tile_rows in sorted(tile_grids, key=prod)
            ]
            enlarging_scales = [scale_and_grid for scale_and_grid in scales_and_grids if scale_and_grid[0] >= 1]
            scale_key = itemgetter(0)
            return (
                min(enlarging_scales, key=scale_key)[1] if enlarging_scales else max(scales_and_grids, key=scale_key)[1]
            )
        best_grid, least_difference = (1, 1), float("inf")
        for tiles_across, tiles_down in sorted(tile_grids, key=lambda tile_grid: tile_grid[0] * tile_grid[1]):
            ratio_difference = abs(width / height - tiles_across / tiles_down)
            is_half_full = 2 * width * height > self.size**2 * tiles_across * tiles_down
            if ratio_difference < least_difference or (ratio_difference == least_difference and is_half_full):
                best_grid, least_difference = (tiles_across, tiles_down), ratio_difference
        return best_grid

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        tile_count = prod(self.tile_grid(height, width))
        image_count, patches_per_side = tile_count + (tile_count > 1), self.size // patch_size
        token_count = image_count * (self.tokens + self.tile_marks) + self.marks
        return InputSizes(image_count, patches_per_side, patches_per_side, token_count)

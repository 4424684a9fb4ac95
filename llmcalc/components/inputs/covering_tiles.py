"""The rule that cuts an image at full resolution into the fewest tiles, and adds a tile of the whole image.

Ovis (Lu 2024, arXiv:2405.20797). transformers: models/ovis2/image_processing_ovis2.py and processing_ovis2.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..base import InnerWidth
from .base import ImageRule, InputSizes

COVERED_SHARE = 0.9
"""The least share of an image's area that the tiles must keep, unless that takes more tiles than allowed."""


class CoveringTiles(ImageRule):
    """The rule for images cut into tiles of size × size pixels; if several, a tile of the whole image is added.

    size: the side of a tile in pixels.
    max_tiles: the most tiles, without the whole image.
    merge: the side of the square of patches of a token; rows and columns of patches are padded to a multiple of it.

    The processor writes a mark before and after the whole image, one between the tiles, and one at the end.
    """

    type: Literal["covering"] = "covering"
    size: InnerWidth
    max_tiles: int = Field(ge=1, le=1000, strict=True)
    merge: InnerWidth

    def _covered_fraction(self, height: int, width: int, tile_rows: int, tile_columns: int) -> float:
        """Returns the share of an image's pixels that remain after each piece is shrunk to fit into a tile."""
        row_heights = [height // tile_rows] * (tile_rows - 1) + [height - height // tile_rows * (tile_rows - 1)]
        column_widths = [width // tile_columns] * (tile_columns - 1) + [
            width - width // tile_columns * (tile_columns - 1)
        ]
        covered_area = 0.0
        for row_height in row_heights:
            for column_width in column_widths:
                longer_side, shorter_side = max(row_height, column_width), min(row_height, column_width)
                covered_area += (
                    shorter_side / longer_side * self.size * self.size
                    if longer_side > self.size
                    else longer_side * shorter_side
                )
        return covered_area / (width * height)

    def _smallest_tile_count(self, height: int, width: int) -> int:
        """Returns the fewest tiles that keep most of the image's area."""
        tile_grids = [
            (tile_rows, tile_columns)
            for tile_rows in range(1, self.max_tiles + 1)
            for tile_columns in range(1, self.max_tiles // tile_rows + 1)
        ]
        covered_share_by_grid = {
            tile_grid: self._covered_fraction(height, width, *tile_grid) for tile_grid in tile_grids
        }
        tile_counts = [
            tile_rows * tile_columns
            for (tile_rows, tile_columns), covered_share in covered_share_by_grid.items()
            if covered_share > COVERED_SHARE
        ]
        if tile_counts:
            return min(tile_counts)
        largest_covered_share = max(covered_share_by_grid.values())
        return min(
            tile_rows * tile_columns
            for (tile_rows, tile_columns), covered_share in covered_share_by_grid.items()
            if covered_share == largest_covered_share
        )

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        tile_count = self._smallest_tile_count(height, width)
        image_count, patches_per_side = tile_count + (tile_count > 1), self.size // patch_size
        tokens_per_tile = (-(-patches_per_side // self.merge)) ** 2
        padded_patch_count = None if patches_per_side % self.merge == 0 else tokens_per_tile * self.merge**2
        return InputSizes(
            image_count,
            patches_per_side,
            patches_per_side,
            image_count * tokens_per_tile + tile_count + 2,
            padded_patch_count,
        )

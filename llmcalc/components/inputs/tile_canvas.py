"""The rule that pads an image to the tile grid closest to its size, and adds a tile of the whole image.

Llama 4. transformers: models/llama4/image_processing_llama4.py and processing_llama4.py.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import Literal

from pydantic import Field

from ..base import InnerWidth
from .base import ImageRule, InputSizes


class TileCanvas(ImageRule):
    """The rule for images cut into tiles of size × size pixels; if several, a tile of the whole image is added.

    size: the side of a tile in pixels.
    max_tiles: the most tiles, without the whole image.
    tokens: the embeddings of a tile.

    Marks stand between the tiles of a row, after each row, and around the image with its whole.
    """

    type: Literal["canvas"] = "canvas"
    size: InnerWidth
    max_tiles: int = Field(ge=1, le=1000, strict=True)
    tokens: InnerWidth

    def _tile_grid(self, height: int, width: int) -> tuple[int, int]:
        """Returns (rows, columns) of the tile grid that enlarges an image least, or else shrinks the image least."""
        scales_by_grid: dict[tuple[int, int], float] = {}
        for tiles_down in range(1, self.max_tiles + 1):
            for tiles_across in range(1, self.max_tiles // tiles_down + 1):
                scale = min(tiles_down * self.size / height, tiles_across * self.size / width)
                scales_by_grid[tiles_down, tiles_across] = _to_single_precision(scale)
        enlarging_scales = [resize_scale for resize_scale in scales_by_grid.values() if resize_scale >= 1]
        resize_scale = min(enlarging_scales) if enlarging_scales else max(scales_by_grid.values())
        return min(
            (tile_grid for tile_grid in scales_by_grid if scales_by_grid[tile_grid] == resize_scale),
            key=lambda tile_grid: tile_grid[0] * tile_grid[1],
        )

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        tiles_down, tiles_across = self._tile_grid(height, width)
        patches_per_side, tile_count = self.size // patch_size, tiles_down * tiles_across
        image_token_count = 3 + self.tokens
        if tile_count == 1:
            return InputSizes(1, patches_per_side, patches_per_side, image_token_count)
        token_count = tile_count * self.tokens + tiles_down * tiles_across + image_token_count
        return InputSizes(tile_count + 1, patches_per_side, patches_per_side, token_count)


def _to_single_precision(scale: float) -> float:
    """Rounds a number to single precision, in which the processor compares scales."""
    return unpack("f", pack("f", scale))[0]

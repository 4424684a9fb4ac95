"""The rule that keeps an image's size up to a number of tokens, and cuts larger images into tiles.

LFM2-VL. transformers: models/lfm2_vl/image_processing_lfm2_vl.py, models/lfm2_vl/processing_lfm2_vl.py.
"""

from __future__ import annotations

from math import ceil, floor, prod, sqrt
from typing import Literal

from pydantic import Field

from ..base import InnerWidth
from .base import InputSizes
from .image_tiles import ImageTiles

TILING_FACTOR = 2
"""An image is cut into tiles if it has more than this multiple of the largest number of tokens of a whole image."""


class NativeTiles(ImageTiles):
    """The rule for images that are tiled only above a number of tokens; the encoder pads all tiles to one length.

    size: the side of a tile in pixels.
    min_tiles, max_tiles: limits of the number of tiles, without the whole image.
    merge: the side of the square of patches of a token.
    min_tokens, tokens: the fewest and the most tokens of a whole image.
    tile_marks: the further tokens that the processor writes for each tile and for the whole image beside them, 0 by
        default.
    marks: those that it writes around an image, 0 by default.
    """

    type: Literal["native_tiles"] = "native_tiles"  # type: ignore[assignment]
    least_scaling: Literal[False] = False
    merge: InnerWidth
    min_tokens: InnerWidth = Field(default=1)

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        token_size = self.merge * patch_size
        rounded_sides = [round(side_length / token_size) * token_size for side_length in (height, width)]
        min_pixels, max_pixels = (token_count * token_size**2 for token_count in (self.min_tokens, self.tokens))
        needs_tiles = prod(max(patch_size, side_pixels) for side_pixels in rounded_sides) > TILING_FACTOR * max_pixels
        image_sides = [max(token_size, side_pixels) for side_pixels in rounded_sides]
        if prod(image_sides) > max_pixels:
            shrink_factor = sqrt(height * width / max_pixels)
            image_sides = [
                max(token_size, floor(side / shrink_factor / token_size) * token_size) for side in (height, width)
            ]
        elif prod(image_sides) < min_pixels:
            upscale_factor = sqrt(min_pixels / (height * width))
            image_sides = [ceil(side * upscale_factor / token_size) * token_size for side in (height, width)]
        patch_count, patches_per_tile = prod(image_sides) // patch_size**2, (self.size // patch_size) ** 2
        tile_count = prod(self.tile_grid(height, width)) if needs_tiles else 0
        tile_token_count = tile_count * ceil(self.size // patch_size / self.merge) ** 2
        tile_mark_count = (tile_count + 1) * self.tile_marks if tile_count else 0
        return InputSizes(
            tile_or_clip_count=tile_count + 1,
            rows=max(self.tokens * self.merge**2, patches_per_tile, patch_count),
            columns=1,
            tokens=tile_token_count + patch_count // self.merge**2 + tile_mark_count + self.marks,
            projector_patches=tile_count * patches_per_tile + patch_count,
        )

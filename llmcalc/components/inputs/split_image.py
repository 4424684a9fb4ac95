"""The rule that scales an image to a fixed longer side, cuts square tiles, and adds the whole image.

Idefics3 (Laurençon 2024, arXiv:2408.12637, §3), SmolVLM. transformers: models/idefics3/image_processing_idefics3.py and
processing_idefics3.py.
"""

from __future__ import annotations

from typing import Literal

from ..base import InnerWidth
from .base import ImageRule, InputSizes

LARGEST_SIDE = 4096
"""The largest side after scaling, in pixels."""


class SplitImage(ImageRule):
    """The rule for images cut into tiles of size × size pixels; if several, a tile of the whole image is added.

    size: the side of a tile in pixels.
    longest_edge: the length of the longer side after scaling, in pixels.
    tokens: the embeddings of a tile.

    Two marks stand before each tile, one after each row, and four around the whole image: `\\n\\n` is one token.
    """

    type: Literal["split"] = "split"
    size: InnerWidth
    longest_edge: InnerWidth
    tokens: InnerWidth

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        aspect_ratio, longest_edge = width / height, self.longest_edge
        if width >= height:
            width, height = longest_edge, int(longest_edge / aspect_ratio)
            height += height % 2
        else:
            height, width = longest_edge, int(longest_edge * aspect_ratio)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        aspect_ratio = width / height
        if width >= height and width > LARGEST_SIDE:
            width, height = LARGEST_SIDE, max(int(LARGEST_SIDE / aspect_ratio), 1)
        elif height > width and height > LARGEST_SIDE:
            height, width = LARGEST_SIDE, max(int(LARGEST_SIDE * aspect_ratio), 1)
        tile_rows, tile_columns = (-(-side_pixels // self.size) for side_pixels in (height, width))
        patches_per_side, tokens_per_tile = self.size // patch_size, self.tokens + 3
        if tile_rows * tile_columns == 1:
            return InputSizes(1, patches_per_side, patches_per_side, tokens_per_tile)
        token_count = tile_rows * (tile_columns * (self.tokens + 2) + 1) + tokens_per_tile
        return InputSizes(tile_rows * tile_columns + 1, patches_per_side, patches_per_side, token_count)

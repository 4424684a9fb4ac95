"""The rule that scales an image to as many tiles as allowed, and adds a tile of the whole image.

Phi-3-vision: https://huggingface.co/microsoft/Phi-3-vision-128k-instruct/blob/main/image_processing_phi3_v.py
(`HD_transform`); its encoder always reads the most tiles, of which those without pixels are zeros.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from ...errors import InputError
from .base import InputSizes
from .dynamic_hd import DynamicHd


class HdTransform(DynamicHd):
    """The rule for images whose longer side is scaled to as many tiles as fit; the encoder reads max_tiles + 1 tiles.

    size: the side of a tile in pixels.
    max_tiles: the most tiles, without the whole image.
    merge: the side of the square of patches of a token.

    A mark ends each line of tokens, of the whole image too, and one stands between the tiles and the whole image.
    """

    type: Literal["hd_transform"] = "hd_transform"  # type: ignore[assignment]

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        aspect_ratio, longer_side_tiles = max(height, width) / min(height, width), 1
        while (longer_side_tiles + 1) * ceil((longer_side_tiles + 1) / aspect_ratio) <= self.max_tiles:
            longer_side_tiles += 1
        shorter_side = int(longer_side_tiles * self.size / aspect_ratio)
        if not shorter_side:
            raise InputError(
                f"--image {width}x{height}: the processor makes a side without pixels of it; expected another shape"
            )
        tiles_by_side = ceil(shorter_side / self.size), longer_side_tiles
        tokens_per_side = self.size // patch_size // self.merge
        token_rows, token_columns = (
            tokens_per_side * tiles_along_side
            for tiles_along_side in (tiles_by_side if width >= height else reversed(tiles_by_side))
        )
        return self.tile_input_with_line_ends(self.max_tiles + 1, self.size // patch_size, token_rows, token_columns)

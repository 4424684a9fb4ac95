"""The rule that pads an image to whole tiles; padding gets no tokens, and a marker token ends each row of tokens.

Phi-4-multimodal. transformers: models/phi4_multimodal/image_processing_phi4_multimodal.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...errors import InputError
from ..base import InnerWidth
from .base import ImageRule, InputSizes
from .image_tiles import ImageTiles

LEAST_SIDE = 10
"""The shortest side, in pixels, that the processor accepts after an image is scaled to its tiles."""


class DynamicHd(ImageRule):
    """The rule for images cut into tiles of `size` × `size` pixels, with the whole image as an additional tile.

    size: the side of a tile in pixels.
    max_tiles: the most tiles, without the whole image; more become the grid of nearest aspect ratio.
    merge: the side of the square of patches of a token.

    A mark ends each line of tokens, of the whole image too, and one stands between the tiles and the whole image.
    """

    type: Literal["dynamic_hd"] = "dynamic_hd"
    size: InnerWidth
    max_tiles: int = Field(ge=1, le=1000, strict=True)
    merge: InnerWidth

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        tile_columns, tile_rows = -(-width // self.size), -(-height // self.size)
        if tile_columns * tile_rows > self.max_tiles:
            tile_columns, tile_rows = ImageTiles(size=self.size, max_tiles=self.max_tiles, tokens=1).tile_grid(
                height, width
            )
        resize_scale = min(tile_columns * self.size / width, tile_rows * self.size / height)
        if min(int(width * resize_scale), int(height * resize_scale)) < LEAST_SIDE:
            raise InputError(
                f"--image {width}x{height}: the processor makes a side of less than {LEAST_SIDE} pixels of it; "
                "expected another shape"
            )
        patches_per_side = self.size // patch_size
        token_columns, token_rows = (
            -(
                -(
                    tiles_along_side * patches_per_side
                    - (tiles_along_side * self.size - int(side_pixels * resize_scale)) // patch_size
                )
                // self.merge
            )
            for tiles_along_side, side_pixels in ((tile_columns, width), (tile_rows, height))
        )
        return self.tile_input_with_line_ends(tile_columns * tile_rows + 1, patches_per_side, token_rows, token_columns)

    def tile_input_with_line_ends(
        self, tile_count: int, patches_per_side: int, token_rows: int, token_columns: int
    ) -> InputSizes:
        """Returns the numbers of patches and tokens of all tiles; each row of tokens ends with a marker token."""
        tokens_per_side = -(-patches_per_side // self.merge)
        line_token_count = token_rows * (token_columns + 1) + tokens_per_side * (tokens_per_side + 1)
        real_patch_count = (line_token_count - 1) * self.merge**2
        return InputSizes(tile_count, patches_per_side, patches_per_side, line_token_count + 1, real_patch_count)

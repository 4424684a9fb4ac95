"""The rule that rounds an image's sides to multiples of a factor, within limits on the number of pixels.

Qwen2-VL (Wang 2024, arXiv:2409.12191, §2.1) and its successors, GLM-V, MiniMax-M3, VideoLLaMA 3, Emu 3, Keye-VL.
transformers: models/qwen2_vl/image_processing_qwen2_vl.py, models/glm4v/image_processing_glm4v.py. Keye-VL: vLLM,
model_executor/models/keye.py (`smart_resize`).
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Literal

from pydantic import Field

from ..base import Flag, InnerWidth
from .base import ImageRule, InputSizes, aspect_ratio_error

MAX_ASPECT = 200
"""The largest ratio between the longer and the shorter side of an image."""


class SmartResize(ImageRule):
    """The rule for images whose sides become multiples of merge · patch_size; merge × merge patches give one token.

    merge: the side of the square of patches of a token.
    min_pixels, max_pixels: limits of the product of the sides.
    frames: the frames as which an image counts against the limits, 1 by default (2 in GLM-V).
    enlarge: whether an image with a side below the factor is enlarged first, false by default (true in GLM-V).
    rounds_sides: whether each side below the factor is enlarged to it, and the other side rounded (Keye-VL), false by
        default.
    marks: the further tokens that the processor writes around an image, 0 by default.
    line_marks: whether a mark, which a projector reads too, ends each line of tokens (HunyuanOCR), false by default.
    repeats_frames: whether projectors that merge frames read the image as each of them (ERNIE), false by default.
    """

    type: Literal["smart_resize"] = "smart_resize"
    merge: InnerWidth
    min_pixels: InnerWidth
    max_pixels: InnerWidth
    frames: InnerWidth = 1
    enlarge: Flag = False
    rounds_sides: Flag = False
    marks: int = Field(default=0, ge=0, le=1000, strict=True)
    line_marks: Flag = False
    repeats_frames: Flag = False

    def check_fields(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels: {self.min_pixels} is more than max_pixels {self.max_pixels}; expected less")

    def input_sizes(self, height: int, width: int, patch_size: int) -> InputSizes:
        token_size = self.merge * patch_size
        resize_scale = max(token_size / height, token_size / width)
        if self.enlarge and resize_scale > 1:
            height, width = int(height * resize_scale), int(width * resize_scale)
        if self.rounds_sides and height < token_size:
            height, width = token_size, round(width * token_size / height)
        if self.rounds_sides and width < token_size:
            height, width = round(height * token_size / width), token_size
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise aspect_ratio_error(height, width, MAX_ASPECT)
        resized_sides = [round(side_length / token_size) * token_size for side_length in (height, width)]
        pixel_count, image_area = self.frames * resized_sides[0] * resized_sides[1], self.frames * height * width
        if pixel_count > self.max_pixels:
            shrink_factor = sqrt(image_area / self.max_pixels)
            resized_sides = [
                max(token_size, floor(side / shrink_factor / token_size) * token_size) for side in (height, width)
            ]
        elif pixel_count < self.min_pixels:
            upscale_factor = sqrt(self.min_pixels / image_area)
            resized_sides = [ceil(side * upscale_factor / token_size) * token_size for side in (height, width)]
        patch_rows, patch_columns = (side_length // patch_size for side_length in resized_sides)
        line_mark_count = patch_rows // self.merge if self.line_marks else 0
        token_count = patch_rows * patch_columns // self.merge**2 + line_mark_count + self.marks
        return InputSizes(
            1,
            patch_rows,
            patch_columns,
            token_count,
            reads_image_per_frame=self.repeats_frames,
            line_end_marks=line_mark_count,
        )

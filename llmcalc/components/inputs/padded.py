"""Images keep their aspect ratio, are only ever shrunk, and are padded to whole squares of merged patches.

Kimi K2.5 (MoonViT: 2025, arXiv:2504.07491, §2.1). transformers: models/kimi_k25/image_processing_kimi_k25.py.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

from ..base import Width
from .base import Encoded, ImageRule


class Padded(ImageRule):
    """The rule for sides that are padded to multiples of merge · patch_size.

    merge: the side of the square of patches of a token.
    max_patches: the most patches of an image, before it is padded.
    max_side: the most patches along one side.
    """

    type: Literal["padded"] = "padded"
    merge: Width
    max_patches: Width
    max_side: Width

    def encode(self, height: int, width: int, patch_size: int) -> Encoded:
        longest = self.max_side * patch_size
        patches = max(1, height // patch_size) * max(1, width // patch_size)
        scale = min(1.0, sqrt(self.max_patches / patches), longest / height, longest / width)
        sides = (min(max(1, int(pixels * scale)), longest) for pixels in (height, width))
        factor = self.merge * patch_size
        rows, columns = (-(-pixels // factor) for pixels in sides)
        return Encoded(1, rows * self.merge, columns * self.merge, rows * columns)

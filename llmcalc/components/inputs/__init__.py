"""The rules by which processors cut images and audio into the inputs of a text model's encoders.

A rule may be changed or added without reading the others or the encoders: a config's `inputs` names one, and all that
it answers is the number of patches and tokens of an image or of audio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from ..base import Part
from ..choice import PartChoice

if TYPE_CHECKING:
    from .base import AudioRule, ImageRule

IMAGE_RULES = PartChoice(
    "fixed",
    {
        "fixed": "inputs.fixed:FixedSize",
        "smart_resize": "inputs.smart_resize:SmartResize",
        "longest_edge": "inputs.longest_edge:LongestEdge",
        "pinpoints": "inputs.pinpoints:Pinpoints",
        "crops": "inputs.crops:Crops",
        "tiles": "inputs.tiles:Tiles",
        "native_tiles": "inputs.native_tiles:NativeTiles",
        "dynamic_hd": "inputs.dynamic_hd:DynamicHd",
        "hd_transform": "inputs.hd_transform:HdTransform",
        "canvas": "inputs.canvas:Canvas",
        "split": "inputs.split:Split",
        "padded": "inputs.padded:Padded",
        "covering": "inputs.covering:Covering",
        "budget": "inputs.budget:Budget",
        "slices": "inputs.slices:Slices",
        "patch_grid": "inputs.patch_grid:PatchGrid",
    },
)
AUDIO_RULES = PartChoice(
    "clips",
    {"clips": "inputs.clips:Clips", "recording": "inputs.recording:Recording", "chunks": "inputs.chunks:Chunks"},
)

if TYPE_CHECKING:
    ImageInput: TypeAlias = ImageRule
    AudioInput: TypeAlias = AudioRule
else:
    ImageInput = Annotated[Part, IMAGE_RULES]
    """How the processor of a vision encoder cuts an image."""
    AudioInput = Annotated[Part, AUDIO_RULES]
    """How the processor of an audio encoder cuts audio."""

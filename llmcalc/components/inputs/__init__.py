"""The rules by which processors cut images and audio into the inputs of a text model's encoders.

A rule may be changed or added without reading the others or the encoders: a config's `inputs` names one, and all that
it answers is the number of patches and tokens of an image or of audio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from ..base import Part
from ..part_choice import PartChoice

if TYPE_CHECKING:
    from .base import AudioRule, ImageRule

IMAGE_RULES = PartChoice(
    "fixed",
    {
        "fixed": "inputs.fixed_size:FixedSize",
        "smart_resize": "inputs.smart_resize:SmartResize",
        "longest_edge": "inputs.longest_edge:LongestEdge",
        "pinpoints": "inputs.pinpoints:ResolutionPinpoints",
        "crops": "inputs.resolution_crops:ResolutionCrops",
        "tiles": "inputs.image_tiles:ImageTiles",
        "native_tiles": "inputs.native_tiles:NativeTiles",
        "dynamic_hd": "inputs.dynamic_hd:DynamicHd",
        "hd_transform": "inputs.hd_transform:HdTransform",
        "canvas": "inputs.tile_canvas:TileCanvas",
        "split": "inputs.split_image:SplitImage",
        "padded": "inputs.padded_image:PaddedImage",
        "covering": "inputs.covering_tiles:CoveringTiles",
        "budget": "inputs.token_budget:TokenBudget",
        "slices": "inputs.image_slices:ImageSlices",
        "patch_grid": "inputs.patch_grid:PatchGrid",
    },
)
AUDIO_RULES = PartChoice(
    "clips",
    {
        "clips": "inputs.audio_clips:AudioClips",
        "recording": "inputs.audio_recording:AudioRecording",
        "chunks": "inputs.audio_chunks:AudioChunks",
    },
)

if TYPE_CHECKING:
    ImageInput: TypeAlias = ImageRule
    AudioInput: TypeAlias = AudioRule
else:
    ImageInput = Annotated[Part, IMAGE_RULES]
    """The rules by which the processor of a vision encoder can cut an image."""
    AudioInput = Annotated[Part, AUDIO_RULES]
    """The rules by which the processor of an audio encoder can cut audio."""

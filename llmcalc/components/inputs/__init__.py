"""Rules by which processors cut images and audio for the encoders beside a text model."""

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
        "tiles": "inputs.tiles:Tiles",
        "canvas": "inputs.canvas:Canvas",
        "split": "inputs.split:Split",
        "budget": "inputs.budget:Budget",
    },
)
AUDIO_RULES = PartChoice("clips", {"clips": "inputs.clips:Clips"})

if TYPE_CHECKING:
    ImageInput: TypeAlias = ImageRule
    AudioInput: TypeAlias = AudioRule
else:
    ImageInput = Annotated[Part, IMAGE_RULES]
    """How the processor of a vision encoder cuts an image."""
    AudioInput = Annotated[Part, AUDIO_RULES]
    """How the processor of an audio encoder cuts audio."""

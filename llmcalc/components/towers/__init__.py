"""Encoders of images and of sound that stand beside a text model, and what maps their output to its width. One file
each.

Their parameters are counted; their FLOPs are not, for most of them see as many patches or frames as an image or a sound
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from ..base import Part
from ..choice import PartChoice

if TYPE_CHECKING:
    from .audio import AudioTower
    from .conformer import Conformer
    from .patches import PatchEmbedder
    from .projector import Projector
    from .vision import VisionTower

TOWERS = PartChoice(
    "vision",
    {
        "vision": "towers.vision:VisionTower",
        "audio": "towers.audio:AudioTower",
        "conformer": "towers.conformer:Conformer",
        "patches": "towers.patches:PatchEmbedder",
        "projector": "towers.projector:Projector",
    },
)

if TYPE_CHECKING:
    Tower: TypeAlias = VisionTower | AudioTower | Conformer | PatchEmbedder | Projector
else:
    Tower = Annotated[Part, TOWERS]
    """A node beside the text model."""

NAMES = r"^([a-z0-9]+_)*(vision|visual|image|audio|modal|mm|projector|resampler|connector)(_[a-z0-9]+)*$"

TowerName: TypeAlias = Annotated[str, Field(pattern=NAMES, max_length=60)]
"""What a class calls it: `vision_tower`, `multi_modal_projector`."""


def check_widths(towers: Mapping[str, Tower]) -> None:
    """Raises `ValueError` where a projector reads another width than the encoder above it gives,
    or the projector just above it.
    """
    given: dict[str, int] = {}
    for name, tower in towers.items():
        if tower.type != "projector" or tower.raw:
            given = {name: tower.gives}
            continue
        if given and tower.input_size not in given.values():
            expected = " or ".join(f"{size}, which {above} gives" for above, size in given.items())
            raise ValueError(f"towers.{name}.input_size: {tower.input_size}; expected {expected}")
        given = {**dict(list(given.items())[:1]), name: tower.gives}


__all__ = ["TOWERS", "Tower", "TowerName", "check_widths"]

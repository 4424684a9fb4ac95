"""Vision and audio encoders beside a text model, and projectors from their output to its width. One file each.

Their parameters are counted. Their FLOPs are not, because most of them process as many patches or frames as the input
has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from ...algebra import same
from ...flow.record import Flow
from ...flow.value import Value
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
"""The name of an encoder or a projector in its class: `vision_tower`, `multi_modal_projector`."""


def below(towers: Mapping[str, Tower]) -> Iterator[tuple[str, Tower, list[str]]]:
    """Yields each tower with the names of the towers whose output it may read.

    A projector reads the encoder before it, or the projector just before it. Other towers read none.
    """
    above: list[str] = []
    for name, tower in towers.items():
        if tower.type != "projector" or tower.raw:
            yield name, tower, []
            above = [name]
        else:
            yield name, tower, above
            above = [*above[:1], name]


def check_widths(towers: Mapping[str, Tower]) -> None:
    """Raises `ValueError` where a projector's input width is neither that of the encoder before it nor that of the
    projector just before it.
    """
    for name, tower, above in below(towers):
        given = {one: towers[one].gives for one in above}
        if tower.type == "projector" and given and tower.input_size not in given.values():
            expected = " or ".join(f"{size}, which {one} gives" for one, size in given.items())
            raise ValueError(f"towers.{name}.input_size: {tower.input_size}; expected {expected}")


def record(f: Flow, towers: Mapping[str, Tower]) -> dict[str, Value]:
    """Records every tower with its input. Returns name → output."""
    made: dict[str, Value] = {}
    for name, tower, above in below(towers):
        own = tower.reads()
        source = _source(own, [made[one] for one in above])
        made[name] = f.part(name, tower, own if source is None else source.seen(*own.axes))
    return made


def _source(read: Value, given: list[Value]) -> Value | None:
    """The output with the width of `read`: the encoder's output if several match or none is known to match."""
    alike = (value for value in given if same(value.width, read.width))
    return next(alike, given[0] if given else None)


__all__ = ["TOWERS", "Tower", "TowerName", "check_widths", "record"]

from __future__ import annotations

from ...plots.pictures import aspect_picture
from ...studies.selection import Selection
from ..target_options import takes_target
from .files import Picture, write


@takes_target
def command(output: Picture, *, selection: Selection) -> None:
    """h/L and d_ff/h of all presets, by size and year.
    Or of those that the filters take.
    """
    write(aspect_picture(selection), output)

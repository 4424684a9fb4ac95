from __future__ import annotations

from typing import Annotated

from ...plots.pictures import aspect_ratio_picture
from ...studies.model_selection import ModelFilter
from ..shared_options import value_option
from ..target_options import add_target_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_target_options
def command(
    output: PictureOption,
    label: Annotated[
        list[str] | None,
        value_option(
            "--label",
            "PRESET",
            "Name this model in the picture, instead of those most unlike the others; may be repeated.",
        ),
    ] = None,
    columns: PaperColumnsOption = None,
    *,
    model_filter: ModelFilter,
) -> None:
    """h/L and d_ff/h of all presets, by size and year.
    Or of those that the filters take.
    """
    write_picture(aspect_ratio_picture(model_filter, label or ()), output)

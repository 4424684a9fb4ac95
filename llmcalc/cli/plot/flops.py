from __future__ import annotations

from ...plots.pictures import flops_picture
from ..shared_options import TargetsArgument
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_target_options
def command(
    targets: TargetsArgument,
    output: PictureOption,
    columns: PaperColumnsOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """The FLOPs of one more token against the context before it."""
    write_picture(flops_picture([target_options.load(target) for target in targets]), output)

from __future__ import annotations

from ...optional import included_part_names
from ...plots.pictures import params_picture
from ..shared_options import TargetsArgument, WithMtpOption, WithTowersOption
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_target_options
def command(
    targets: TargetsArgument,
    output: PictureOption,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    columns: PaperColumnsOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Where the parameters are: a bar for each model, by component."""
    included_parts = included_part_names(with_mtp, with_towers)
    write_picture(
        params_picture([target_options.load(target, included_parts) for target in targets], included_parts), output
    )

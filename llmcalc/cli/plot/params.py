from __future__ import annotations

from ...optional import included
from ...plots.pictures import params_picture
from ..options import Targets, WithMtp, WithTowers
from ..target_options import TargetOptions, takes_target
from .files import PaperColumns, Picture, write_picture


@takes_target
def command(
    targets: Targets,
    output: Picture,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    columns: PaperColumns = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Where the parameters are: a bar for each model, by component."""
    include = included(with_mtp, with_towers)
    write_picture(params_picture([target_options.load(target, include) for target in targets], include), output)

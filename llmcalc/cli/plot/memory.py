from __future__ import annotations

from typing import Annotated

from ...device_memory.settings import Settings
from ...optional import included_part_names
from ...plots.pictures import memory_picture
from ...questions.runs import RunQuestion
from ...sources.hardware import find_accelerators
from ..hardware import complete_name
from ..run_options import CublasWorkspaceOption, add_settings_options
from ..shared_options import TargetArgument, WithMtpOption, WithTowersOption, value_option
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_settings_options
@add_target_options
def command(
    target: TargetArgument,
    output: PictureOption,
    settings: Settings,
    with_mtp: WithMtpOption = False,
    with_towers: WithTowersOption = False,
    hardware: Annotated[
        list[str] | None,
        value_option(
            "--hardware", "NAME", "Mark the capacity of this accelerator; repeatable.", completion=complete_name
        ),
    ] = None,
    cublas_workspace: CublasWorkspaceOption = None,
    columns: PaperColumnsOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Plot the memory of one device, phase by phase."""
    included_parts = included_part_names(with_mtp, with_towers)
    run_question = RunQuestion(
        preset=target_options.load(target, included_parts),
        settings=settings,
        include=included_parts,
        accelerators=tuple(find_accelerators(hardware or ())),
        workspace=cublas_workspace,
    )
    write_picture(memory_picture(run_question), output)

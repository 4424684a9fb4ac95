from __future__ import annotations

from typing import Annotated

import typer

from ...device_memory.settings import Settings
from ...optional import included
from ...plots.pictures import memory_picture
from ...questions.runs import RunQuestion
from ...sources.hardware import find_all
from ..hardware import complete_name
from ..options import Target, WithMtp, WithTowers
from ..run_options import CublasWorkspace, takes_settings
from ..target_options import TargetOptions, takes_target
from .files import Picture, write


@takes_settings
@takes_target
def command(
    target: Target,
    output: Picture,
    settings: Settings,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware",
            metavar="NAME",
            help="Mark the capacity of this accelerator; repeatable.",
            autocompletion=complete_name,
            show_default=False,
        ),
    ] = None,
    cublas_workspace: CublasWorkspace = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Plot the memory of one device, phase by phase."""
    include = included(with_mtp, with_towers)
    question = RunQuestion(
        preset=target_options.load(target, include),
        settings=settings,
        include=include,
        accelerators=tuple(find_all(hardware or ())),
        workspace=cublas_workspace,
    )
    write(memory_picture(question), output)

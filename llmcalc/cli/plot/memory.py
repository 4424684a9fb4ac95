from __future__ import annotations

from typing import Annotated

import typer

from ...accelerator import Fit
from ...device_memory.cuda_runtime import runtime_of
from ...device_memory.estimate import memory
from ...device_memory.settings import Settings
from ...optional import included
from ...plots.figure import needs_matplotlib
from ..hardware import accelerators, complete_name
from ..options import (
    AllowUnknown,
    HeadOption,
    OfflineOption,
    Overrides,
    Target,
    WithMtp,
    WithTowers,
    about,
    load_one,
)
from ..run_options import CublasWorkspace, takes_settings
from .files import Picture, write


@takes_settings
def command(
    target: Target,
    output: Picture,
    settings: Settings,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
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
    offline: OfflineOption = False,
) -> None:
    """What fills the memory of one device, phase by phase."""
    needs_matplotlib()
    from ...plots.memory import memory as picture

    preset = load_one(target, overrides, head, allow_unknown, included(with_mtp, with_towers))
    named = accelerators(hardware)
    runtime = runtime_of(named[0] if named else None, cublas_workspace, settings.allocator == "expandable")
    with about(preset):
        found = memory(
            preset.model, settings, preset.dtype, included(with_mtp, with_towers), preset.checkpoint, runtime
        )
        figure = picture(preset.display, found, [Fit(one, found.device.device_bytes) for one in named])
    write(figure, output)

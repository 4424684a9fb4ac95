from __future__ import annotations

from typing import Annotated

import typer

from ...device_memory.settings import Settings
from ...optional import included
from ...parallel.layout_request import LayoutRequest
from ...plots.pictures import time_picture
from ..layout_options import takes_layout
from ..options import TargetOrNone, WithMtp
from ..run_options import takes_settings
from ..target_options import Reading, takes_target
from ..time_options import TimeValues, takes_time, time_ask, timed_question
from .files import Picture, write


@takes_settings
@takes_layout
@takes_time
@takes_target
def command(
    context: typer.Context,
    output: Picture,
    settings: Settings,
    layout_request: LayoutRequest,
    values: TimeValues,
    target: TargetOrNone = None,
    by_node: Annotated[
        int, typer.Option(metavar="DEPTH", help="Levels of the model's nodes that are drawn.", min=1, max=8)
    ] = 3,
    with_mtp: WithMtp = False,
    *,
    reading: Reading,
) -> None:
    """Where the time of a step, a prompt or a token goes, and what bounds it.
    The options of a run are those of llmcalc time.
    """
    question = timed_question(context, target, settings, layout_request, values, with_mtp, reading)
    ask = time_ask(context, values, included(with_mtp), reading)
    write(time_picture(lambda: ask(question), by_node), output)

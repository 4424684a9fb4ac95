from __future__ import annotations

from typing import Annotated

import typer

from ..device_memory.settings import Settings
from ..optional import included
from ..parallel.layout_request import LayoutRequest
from .layout_options import takes_layout
from .options import TableOption, TargetOrNone, WithMtp
from .run_options import takes_settings
from .target_options import Reading, Writing, takes_target
from .time_options import TimeValues, takes_time, time_ask, timed_question


@takes_settings
@takes_layout
@takes_time
@takes_target
def command(
    context: typer.Context,
    settings: Settings,
    layout_request: LayoutRequest,
    values: TimeValues,
    target: TargetOrNone = None,
    by_node: Annotated[
        int | None,
        typer.Option(metavar="DEPTH", help="List the time by nodes of the model, to this depth.", show_default=False),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS",
            help="A measured time (8.1s, 35ms): whether it is in the range, and what could explain it.",
            show_default=False,
        ),
    ] = None,
    with_mtp: WithMtp = False,
    table: TableOption = None,
    *,
    reading: Reading,
    writing: Writing,
) -> None:
    """Time of a training step, a prompt or a token, with its range.
    How sure that is, where the time goes, what bounds it, and whether a measured run is slow.
    """
    question = timed_question(context, target, settings, layout_request, values, with_mtp, reading)
    ask = time_ask(context, values, included(with_mtp), reading, by_node=by_node, measured=measured)
    writing.show(ask(question).report(), table)

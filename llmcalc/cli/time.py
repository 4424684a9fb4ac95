from __future__ import annotations

from typing import Annotated

import typer

from .options import TableOption
from .target_options import OutputOptions, takes_target
from .time_options import TimedRun, takes_timed_run


@takes_timed_run
@takes_target
def command(
    timed_run: TimedRun,
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
    table: TableOption = None,
    *,
    output_options: OutputOptions,
) -> None:
    """Time of a training step, a prompt or a token, with its range.
    How sure that is, where the time goes, what bounds it, and whether a measured run is slow.
    """
    output_options.show(timed_run.ask(timed_run.question(), by_node=by_node, measured=measured).report(), table)

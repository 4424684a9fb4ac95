from __future__ import annotations

from typing import Annotated

import typer

from ...plots.pictures import time_picture
from ..time_options import TimedRunOptions, add_timed_run_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_timed_run_options
def command(
    output: PictureOption,
    timed_run: TimedRunOptions,
    by_node: Annotated[
        int, typer.Option(metavar="DEPTH", help="Levels of the model's nodes that are drawn.", min=1, max=8)
    ] = 3,
    columns: PaperColumnsOption = None,
) -> None:
    """Where the time of a step, a prompt or a token goes, and what bounds it.
    The options of a run are those of llmcalc time.
    """
    run_question = timed_run.run_question()
    write_picture(time_picture(lambda: timed_run.ask(run_question), by_node), output)

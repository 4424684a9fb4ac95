from __future__ import annotations

from typing import Annotated

from .options import TableOption, value_option
from .target_options import OutputOptions, takes_target
from .time_options import TimedRun, takes_timed_run


@takes_timed_run
@takes_target
def command(
    timed_run: TimedRun,
    by_node: Annotated[
        int | None,
        value_option("--by-node", "DEPTH", "List the time by nodes of the model, to this depth."),
    ] = None,
    measured: Annotated[
        str | None,
        value_option(
            "--measured",
            "SECONDS",
            "A measured time (8.1s, 35ms): whether it is in the range, and what could explain it.",
        ),
    ] = None,
    table: TableOption = None,
    *,
    output_options: OutputOptions,
) -> None:
    """Time of a training step, a prompt or a token, with its range.
    How sure that is, where the time goes, what bounds it, and whether a measured run is slow.
    """
    answer = timed_run.ask(timed_run.question(), by_node=by_node, measured=measured)
    output_options.show_answer(answer, table)

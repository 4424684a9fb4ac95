from __future__ import annotations

from typing import Any

from ..questions.time_and_cost_options import TimeOptions
from .setting_options import options_of_settings, replace_parameter_by_options
from .shared_options import TableOption
from .target_options import OutputOptions, add_target_options
from .time_options import REPORT_OPTIONS, TimedRunOptions, add_timed_run_options


@add_timed_run_options
@replace_parameter_by_options("report_options", options_of_settings(TimeOptions, REPORT_OPTIONS), dict)
@add_target_options
def command(
    timed_run: TimedRunOptions,
    report_options: dict[str, Any],
    table: TableOption = None,
    *,
    output_options: OutputOptions,
) -> None:
    """Time of a training step, a prompt or a token, with its range.
    How sure that is, where the time goes, what bounds it, and whether a measured run is slow.
    """
    output_options.show_answer(timed_run.ask(timed_run.run_question(), **report_options), table)

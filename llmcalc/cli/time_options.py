"""Options of the commands that estimate time, and the timed run that these options describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..device_memory.settings import Settings, settings_with_shorthands
from ..frameworks.launch.file_kinds import launch_file_titles
from ..frozen import frozen
from ..optional import included_part_names
from ..parallel.layout_request import LayoutRequest
from ..questions.time_and_cost_options import TimeOptions
from ..workload.setting import declarations_of
from .hardware import complete_name
from .layout_options import layout_options
from .run_options import settings_options
from .setting_options import (
    CommandFunction,
    CommandOption,
    option_without_default,
    options_of_settings,
    replace_parameter_by_options,
)
from .shared_options import OptionalTargetArgument, WithMtpOption, is_option_typed, value_option
from .target_options import OPTIONS_BY_PARAMETER, TargetOptions

if TYPE_CHECKING:
    from ..questions.runs import RunQuestion
    from ..reports.answer import ReportedAnswer
    from ..sources.preset import Preset

RUN_FILE_OPTIONS = {
    "hardware": option_without_default(
        str,
        value_option(
            "--hardware",
            "NAME",
            "The accelerator: a name (h100) or a .toml file with peaks and a bandwidth.",
            panel="What runs",
            completion=complete_name,
        ),
    ),
    "launch": option_without_default(
        Path,
        value_option(
            "--launch",
            "FILE",
            f"The file that starts a run, as of memory. Files that are read: {launch_file_titles()}.",
            panel="What runs",
        ),
    ),
}
"""Parameter of a timed run → its command-line option."""

REPORT_OPTIONS = ("by_node", "measured")
"""Options of `llmcalc time` that `llmcalc plot time` does not have."""

TIME_OPTIONS = options_of_settings(
    TimeOptions, [name for name in declarations_of(TimeOptions) if name not in REPORT_OPTIONS]
)


@frozen
class TimedRunOptions:
    """The training or inference run to time, from the command-line options.

    settings, layout: the run and its layout.
    hardware: the accelerator's name; None for that of the launch file.
    launch: the file that starts the run; None without one.
    options: the options of time.
    target: the TARGET; None where the launch file names the model.
    include: optional parts of the model that count.
    target_options: options for reading the TARGET.
    is_option_typed: whether the user typed the option of a parameter.
    """

    settings: Settings
    layout: LayoutRequest
    hardware: str | None
    launch: Path | None
    options: TimeOptions
    target: str | None
    include: frozenset[str]
    target_options: TargetOptions
    is_option_typed: Callable[[str], bool]

    def load(self, target: str) -> Preset:
        """Reads a model, with the optional parts (MTP, vision and audio encoders) that the options include."""
        return self.target_options.load(target, self.include)

    def run_question(self) -> RunQuestion:
        """Returns the object that describes the timed run: model, phase, accelerators, layout and settings."""
        from ..questions.runs import RunOptions, build_run_question

        run_options = RunOptions(settings=self.settings, layout=self.layout, include=self.include)
        return build_run_question(
            self.target,
            self.load,
            run_options.on_accelerators([] if self.hardware is None else [self.hardware]),
            launch_file=self.launch,
            is_setting_given=self.is_option_typed,
            allow_unknown=self.target_options.allow_unknown,
            command="time",
            set=self.target_options.overrides,
            head=self.target_options.head,
            with_mtp=bool(self.include),
        )

    def ask(self, run_question: RunQuestion, **time_fields: Any) -> ReportedAnswer:
        """Computes the time of a run and returns the answer. time_fields: additional fields of `TimeOptions`."""
        from ..questions.times import ask_time
        from ..sources.preset import target_in_errors

        with target_in_errors(run_question.preset):
            return ask_time(run_question, replace(self.options, **time_fields), self.is_option_typed, self.load)


def add_timed_run_options(command: CommandFunction) -> CommandFunction:
    """Replaces a command's parameter `timed_run` by the options of a timed run."""
    run_options, layout_option_group = settings_options(), layout_options()
    target_options, read_options = OPTIONS_BY_PARAMETER["target_options"]
    context_option = {"command_context": CommandOption(typer.Context, inspect.Parameter.empty)}
    target_option = CommandOption(OptionalTargetArgument, None)
    model_options = {"target": target_option, "with_mtp": CommandOption(WithMtpOption, False)}
    time_options = {
        **context_option,
        **run_options,
        **layout_option_group,
        **RUN_FILE_OPTIONS,
        **TIME_OPTIONS,
        **model_options,
        **target_options,
    }

    def timed_run(option_values: dict[str, Any]) -> TimedRunOptions:
        return TimedRunOptions(
            settings_with_shorthands({option_name: option_values[option_name] for option_name in run_options}),
            LayoutRequest(**{option_name: option_values[option_name] for option_name in layout_option_group}),
            option_values["hardware"],
            option_values["launch"],
            TimeOptions(**{option_name: option_values[option_name] for option_name in TIME_OPTIONS}),
            option_values["target"],
            included_part_names(option_values["with_mtp"]),
            read_options(option_values),
            partial(is_option_typed, option_values["command_context"]),
        )

    return replace_parameter_by_options("timed_run", time_options, timed_run)(command)

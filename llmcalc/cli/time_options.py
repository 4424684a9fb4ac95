"""Options of the commands that estimate time, and the timed run that these options describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..device_memory.settings import Settings, settings_with_shorthands
from ..frameworks.launch.kinds import launch_files
from ..frozen import frozen
from ..optional import included
from ..parallel.layout_request import LayoutRequest
from .hardware import complete_name
from .layout_options import layout_options
from .options import TargetOrNone, WithMtp, is_given, length_option, value_option
from .run_options import settings_options
from .setting_options import CommandFunction, OptionOfCommand, optional_parameter, replace_parameter
from .target_options import OPTIONS, TargetOptions

if TYPE_CHECKING:
    from ..questions.runs import RunQuestion
    from ..reports.answer import ReportedAnswer
    from ..sources.preset import Preset

STACK_HELP = (
    "Software whose fusion, overlap and host times are priced (maxtext, gpt-fast, …; a wrong name lists all). Default "
    "that of the framework or the engine."
)

Stack: TypeAlias = Annotated[
    str | None,
    value_option("--stack", "NAME", STACK_HELP, panel="Hardware"),
]

Overlap: TypeAlias = Annotated[
    str | None,
    value_option(
        "--overlap",
        "none|dp|tp|ep|all",
        "Messages that run beside products: of gradients (dp), tensor (tp) or expert parallelism (ep); default as "
        "the stack.",
        panel="Hardware",
        hidden=True,
    ),
]

NicRate: TypeAlias = Annotated[
    str | None,
    value_option(
        "--nic",
        "GB/s",
        "Network of each device beyond its scale-up domain; default as the accelerator's record.",
        panel="Hardware",
        hidden=True,
    ),
]

Calibrate: TypeAlias = Annotated[
    str | None,
    value_option(
        "--calibrate",
        "CSV",
        "Your own measured runs, on which the stack is fitted. A row has columns named as options of time (phase, "
        "users, seq, tp, …) and seconds; a fit that would not help is refused.",
        panel="Hardware",
    ),
]

TIME_OPTIONS = {
    "hardware": optional_parameter(
        str,
        value_option(
            "--hardware",
            "NAME",
            "The accelerator: a name (h100) or a .toml file with peaks and a bandwidth.",
            panel="What runs",
            complete=complete_name,
        ),
    ),
    "launch": optional_parameter(
        Path,
        value_option(
            "--launch",
            "FILE",
            f"The file that starts a run, as of memory. Files that are read: {launch_files()}.",
            panel="What runs",
        ),
    ),
    "engine": optional_parameter(
        str,
        value_option(
            "--engine",
            "NAME[==VERSION]",
            "The serving engine: vllm, vllm==0.6, sglang, tensorrt-llm, llama.cpp; default vllm.",
            panel="What runs",
        ),
    ),
    "global_batch": optional_parameter(
        int,
        length_option("--global-batch", text="Sequences per step of all devices; default one micro-batch per replica."),
    ),
    "cached": optional_parameter(
        int,
        length_option("--context", text="In prefill, tokens of each sequence cached before the prompt.", least=0),
    ),
    "server": OptionOfCommand(
        Annotated[bool, typer.Option("--server", help="In prefill, add a server's time before the first token.")],
        False,
    ),
    "stack": OptionOfCommand(Stack, None),
    "overlap": OptionOfCommand(Overlap, None),
    "nic": OptionOfCommand(NicRate, None),
    "calibrate": OptionOfCommand(Calibrate, None),
}


@frozen
class TimedRun:
    """The run to time, from the command line.

    settings, layout: the run and its layout.
    values: the options of `TIME_OPTIONS` by name.
    target: the TARGET; None where the launch file names the model.
    include: optional parts of the model that count.
    target_options: options for reading the TARGET.
    is_given: whether the user typed the option of a parameter.
    """

    settings: Settings
    layout: LayoutRequest
    values: Mapping[str, Any]
    target: str | None
    include: frozenset[str]
    target_options: TargetOptions
    is_given: Callable[[str], bool]

    def load(self, target: str) -> Preset:
        """Reads a model with the optional parts that count."""
        return self.target_options.load(target, self.include)

    def question(self) -> RunQuestion:
        """Returns the question about the timed run."""
        from ..questions.runs import RunOptions, memory_question
        from ..sources.hardware import find_all

        hardware = self.values["hardware"]
        accelerators = tuple(find_all([] if hardware is None else [hardware]))
        return memory_question(
            self.target,
            self.load,
            RunOptions(settings=self.settings, layout=self.layout, include=self.include, accelerators=accelerators),
            launch_file=self.values["launch"],
            is_given=self.is_given,
            allow_unknown=self.target_options.allow_unknown,
            command="time",
            set=self.target_options.overrides,
            head=self.target_options.head,
            with_mtp=bool(self.include),
        )

    def ask(self, question: RunQuestion, **more_options: Any) -> ReportedAnswer:
        """Returns the answer about the run's time. more_options: additional fields of `TimeOptions`."""
        from ..questions.times import TimeOptions, ask_time
        from ..sources.preset import name_in_errors

        names = ("global_batch", "stack", "overlap", "nic", "engine", "server", "calibrate")
        options = TimeOptions(
            **{name: self.values[name] for name in names}, context=self.values["cached"], **more_options
        )
        with name_in_errors(question.preset):
            return ask_time(question, options, self.is_given, self.load)


def takes_timed_run(command: CommandFunction) -> CommandFunction:
    """Replaces a command's parameter `timed_run` by the options of a timed run."""
    settings, layout = settings_options(), layout_options()
    target_options, read_options = OPTIONS["target_options"]
    context = {"context": OptionOfCommand(typer.Context, inspect.Parameter.empty)}
    model = {"target": OptionOfCommand(TargetOrNone, None), "with_mtp": OptionOfCommand(WithMtp, False)}
    options = {**context, **settings, **layout, **TIME_OPTIONS, **model, **target_options}

    def timed_run(chosen_options: dict[str, Any]) -> TimedRun:
        return TimedRun(
            settings_with_shorthands({name: chosen_options[name] for name in settings}),
            LayoutRequest(**{name: chosen_options[name] for name in layout}),
            {name: chosen_options[name] for name in TIME_OPTIONS},
            chosen_options["target"],
            included(chosen_options["with_mtp"]),
            read_options(chosen_options),
            partial(is_given, chosen_options["context"]),
        )

    return replace_parameter("timed_run", options, timed_run)(command)

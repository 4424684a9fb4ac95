"""Options of time that several commands share, and the question that they ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..device_memory.settings import Settings
from ..frameworks.launch.kinds import launch_files
from ..optional import included
from ..parallel.layout_request import LayoutRequest
from .hardware import complete_name
from .options import is_given, size
from .setting_options import CommandFunction, OptionOfCommand, replace_parameter
from .target_options import Reading

if TYPE_CHECKING:
    from ..questions.runs import RunQuestion

STACK_HELP = (
    "Software whose fusion, overlap and host times are priced (maxtext, gpt-fast, …; a wrong name lists all). Default "
    "that of the framework or the engine."
)

Stack: TypeAlias = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help=STACK_HELP, show_default=False, rich_help_panel="Hardware"),
]

Overlap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="none|dp|tp|all",
        help="Messages that run beside products: of gradients (dp), of tensor parallelism (tp); default as the stack.",
        show_default=False,
        rich_help_panel="Hardware",
        hidden=True,
    ),
]

NicRate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--nic",
        metavar="GB/s",
        help="Network of each device beyond its scale-up domain; default as the accelerator's record.",
        show_default=False,
        rich_help_panel="Hardware",
        hidden=True,
    ),
]

Calibrate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        metavar="CSV",
        help="Your own measured runs, on which the stack is fitted. A row has columns named as options of time (phase, "
        "users, seq, tp, …) and seconds; a fit that would not help is refused.",
        show_default=False,
        rich_help_panel="Hardware",
    ),
]

TimeValues: TypeAlias = dict[str, Any]
"""The options of `takes_time` by name."""

TIME_OPTIONS = {
    "hardware": OptionOfCommand(
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="The accelerator: a name (h100) or a .toml file with peaks and a bandwidth.",
                autocompletion=complete_name,
                show_default=False,
                rich_help_panel="What runs",
            ),
        ],
        None,
    ),
    "launch": OptionOfCommand(
        Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help=f"The file that starts a run, as of memory. Files that are read: {launch_files()}.",
                rich_help_panel="What runs",
                show_default=False,
            ),
        ],
        None,
    ),
    "engine": OptionOfCommand(
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME[==VERSION]",
                help="The serving engine: vllm, vllm==0.6, sglang, tensorrt-llm, llama.cpp; default vllm.",
                show_default=False,
                rich_help_panel="What runs",
            ),
        ],
        None,
    ),
    "global_batch": OptionOfCommand(
        Annotated[
            int | None,
            size("--global-batch", text="Sequences per step of all devices; default one micro-batch per replica."),
        ],
        None,
    ),
    "cached": OptionOfCommand(
        Annotated[
            int | None,
            size("--context", text="In prefill, tokens of each sequence cached before the prompt.", least=0),
        ],
        None,
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


def takes_time(command: CommandFunction) -> CommandFunction:
    """Replaces the parameter `values` of a command by the options of a run whose time is estimated."""
    return replace_parameter("values", TIME_OPTIONS, dict)(command)


def timed_question(
    context: typer.Context,
    target: str | None,
    settings: Settings,
    layout_request: LayoutRequest,
    values: TimeValues,
    with_mtp: bool,
    reading: Reading,
    command: str = "time",
) -> RunQuestion:
    """Returns the run whose time is asked for. command: name of the command, for its errors."""
    from ..questions.runs import RunOptions, memory_question
    from ..sources.hardware import find_all

    include, hardware = included(with_mtp), values["hardware"]
    return memory_question(
        target,
        lambda name: reading.load(name, include),
        RunOptions(
            settings=settings,
            layout=layout_request,
            include=include,
            accelerators=tuple(find_all([] if hardware is None else [hardware])),
        ),
        launch_file=values["launch"],
        is_given=lambda name: is_given(context, name),
        allow_unknown=reading.allow_unknown,
        command=command,
        set=reading.overrides,
        head=reading.head,
        with_mtp=with_mtp,
    )


def time_ask(
    context: typer.Context, values: TimeValues, include: frozenset[str], reading: Reading, **more: Any
) -> Callable[[RunQuestion], Any]:
    """Returns the function that answers a question with these options. more: further fields of `TimeOptions`."""
    from ..questions.times import TimeOptions, ask_time
    from ..sources.preset import name_in_errors

    names = ("global_batch", "stack", "overlap", "nic", "engine", "server", "calibrate")
    options = TimeOptions(**{name: values[name] for name in names}, context=values["cached"], **more)

    def ask(question: RunQuestion) -> Any:
        with name_in_errors(question.preset):
            return ask_time(
                question, options, lambda name: is_given(context, name), lambda name: reading.load(name, include)
            )

    return ask

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..device_memory.settings import Settings
from ..frameworks.launch.kinds import launch_files
from ..optional import included
from ..parallel.layout_request import LayoutRequest
from .hardware import complete_name
from .layout_options import takes_layout
from .options import TableOption, TargetOrNone, WithMtp, is_given, size
from .run_options import takes_settings
from .target_options import Reading, Writing, takes_target
from .time_options import Calibrate, NicRate, Overlap, Stack


@takes_settings
@takes_layout
@takes_target
def command(
    context: typer.Context,
    settings: Settings,
    layout_request: LayoutRequest,
    target: TargetOrNone = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The accelerator: a name (h100) or a .toml file with peaks and a bandwidth.",
            autocompletion=complete_name,
            show_default=False,
            rich_help_panel="What runs",
        ),
    ] = None,
    launch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The file that starts a run, as of memory. Files that are read: {launch_files()}.",
            rich_help_panel="What runs",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[==VERSION]",
            help="The serving engine: vllm, vllm==0.6, sglang, tensorrt-llm, llama.cpp; default vllm.",
            show_default=False,
            rich_help_panel="What runs",
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        size("--global-batch", text="Sequences per step of all devices; default one micro-batch per replica."),
    ] = None,
    cached: Annotated[
        int | None, size("--context", text="In prefill, tokens of each sequence cached before the prompt.", least=0)
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="In prefill, add a server's time before the first token.")
    ] = False,
    stack: Stack = None,
    overlap: Overlap = None,
    nic: NicRate = None,
    calibrate: Calibrate = None,
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
    from ..questions.runs import RunOptions, memory_question
    from ..questions.times import TimeOptions, ask_time
    from ..sources.hardware import find_all
    from ..sources.preset import name_in_errors

    include = included(with_mtp)

    def was_typed(name: str) -> bool:
        return is_given(context, name)

    question = memory_question(
        target,
        lambda name: reading.load(name, include),
        RunOptions(
            settings=settings,
            layout=layout_request,
            include=include,
            accelerators=tuple(find_all([] if hardware is None else [hardware])),
        ),
        launch_file=launch,
        is_given=was_typed,
        allow_unknown=reading.allow_unknown,
        command="time",
        set=reading.overrides,
        head=reading.head,
        with_mtp=with_mtp,
    )
    options = TimeOptions(
        global_batch=global_batch,
        stack=stack,
        overlap=overlap,
        nic=nic,
        engine=engine,
        context=cached,
        server=server,
        by_node=by_node,
        measured=measured,
        calibrate=calibrate,
    )
    with name_in_errors(question.preset):
        report = ask_time(question, options, was_typed, lambda name: reading.load(name, include)).report()
    writing.show(report, table)

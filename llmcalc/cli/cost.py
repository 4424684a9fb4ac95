from __future__ import annotations

from typing import Annotated

from ..device_memory.settings import Settings
from ..parallel.layout_request import LayoutRequest
from .hardware import OneAccelerator
from .layout_options import takes_layout
from .options import TableOption, Target, count_option, length_option, value_option
from .run_options import takes_settings
from .serve_options import EngineName, Price
from .target_options import OutputOptions, TargetOptions, takes_target
from .time_options import NicRate, Overlap, Stack


@takes_settings
@takes_layout
@takes_target
def command(
    target: Target,
    hardware: OneAccelerator,
    settings: Settings,
    layout_request: LayoutRequest,
    tokens: Annotated[int | None, count_option("--tokens", "Tokens to train on (15T).")] = None,
    requests: Annotated[
        int | None, count_option("--requests", "Requests to serve (1M), with --input and --output.")
    ] = None,
    input: Annotated[int | None, length_option("--input", text="Tokens of a prompt.")] = None,
    output: Annotated[
        int | None, length_option("--output", text="Tokens of an answer. The file of the answer is --output-file.")
    ] = None,
    concurrency: Annotated[
        int | None, length_option("--concurrency", text="Requests in the server at any time. Default as many as fit.")
    ] = None,
    price: Price = None,
    power: Annotated[
        str | None,
        value_option("--power", "WATTS", "Power of a device; default its TDP."),
    ] = None,
    step: Annotated[
        str | None,
        value_option(
            "--step", "SECONDS", "A measured training step (8.1s). By default that of the fastest layout of plan."
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        length_option("--global-batch", text="Sequences per training step. Default about 4M tokens, of --seq 4096."),
    ] = None,
    engine: EngineName = None,
    stack: Stack = None,
    overlap: Overlap = None,
    nic: NicRate = None,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    writing_file: OutputOptions,
) -> None:
    """Days, device hours, energy and money of a run, with ranges.
    Of training on --tokens with the fastest layout that fits, or of serving --requests with the cheapest server.
    """
    from ..questions.costs import CostOptions, ask_cost
    from ..questions.runs import RunQuestion
    from ..sources.hardware import find_hardware
    from ..sources.preset import name_in_errors

    question = RunQuestion(
        preset=target_options.load(target),
        settings=settings,
        layout=layout_request,
        accelerators=(find_hardware(hardware),),
    )
    options = CostOptions(
        tokens, step, requests, input, output, concurrency, engine, global_batch, power, price, stack, overlap, nic
    )
    with name_in_errors(question.preset):
        answer = ask_cost(question, options)
    writing_file.show_answer(answer, table, question.preset)

from __future__ import annotations

from typing import Annotated, Any

import typer

from .hardware import OneAccelerator
from .options import TableOption, Target, size
from .target_options import Reading, Writing, takes_target
from .time_options import Calibrate, NicRate, Stack

LOAD, LAYOUT = "Inference", "Layout"


def _panel(option: Any, panel: str) -> Any:
    option.rich_help_panel = panel
    return option


def _text(name: str, metavar: str, text: str, panel: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False, rich_help_panel=panel)


InputTokens = Annotated[int, size("--input", text="Tokens of a prompt.")]
OutputTokens = Annotated[int, size("--output", text="Tokens of an answer. The file of the answer is --output-file.")]
EngineName = Annotated[
    str | None,
    _text("--engine", "NAME[==VERSION]", "vllm, sglang or tensorrt-llm. Default vllm, the newest that was read."),
]
Price = Annotated[str | None, _text("--price", "MONEY", "Price of a device and hour, in any currency.")]


@takes_target
def command(
    target: Target,
    hardware: OneAccelerator,
    input: InputTokens,
    output: OutputTokens,
    engine: EngineName = None,
    quantize: Annotated[
        str | None,
        _text("--quantize", "SCHEMES", "Schemes of the weights to try (auto,fp8-dynamic); default as published."),
    ] = None,
    kv_dtype: Annotated[
        str | None, _text("--kv-dtype", "FORMATS", "Formats of the cache to try (auto,fp8); default the engine's.")
    ] = None,
    price: Price = None,
    concurrency: Annotated[
        int | None,
        _panel(
            size("--concurrency", "--users", text="Requests in the server at any time; default as many as fit."), LOAD
        ),
    ] = None,
    rate: Annotated[
        str | None, _text("--rate", "R", "Requests per second that arrive, in place of --concurrency.", LOAD)
    ] = None,
    ttft: Annotated[str | None, _text("--ttft", "SECONDS", "Most time to the first token (1s, 300ms).", LOAD)] = None,
    tpot: Annotated[str | None, _text("--tpot", "SECONDS", "Most time of each further token (30ms).", LOAD)] = None,
    prefix_hit: Annotated[
        str | None, _text("--prefix-hit", "P", "Share of each prompt that the prefix cache has (0.5); default 0.", LOAD)
    ] = None,
    devices: Annotated[
        int | None,
        _panel(size("--devices", text="Devices of the server; default as few as keep the limits.", most=1024), LAYOUT),
    ] = None,
    tp: Annotated[
        int | None,
        _panel(
            size("--tp", text="Ranks that divide heads and widths. A given layout is the only one.", most=1024), LAYOUT
        ),
    ] = None,
    pp: Annotated[int | None, _panel(size("--pp", text="Stages of a pipeline.", most=1024), LAYOUT)] = None,
    dp: Annotated[
        int | None,
        _panel(
            size("--dp", text="Replicas; with --ep above --tp, ranks with attention of their own.", most=1024), LAYOUT
        ),
    ] = None,
    ep: Annotated[int | None, _panel(size("--ep", text="Ranks that divide the experts.", most=1024), LAYOUT)] = None,
    stack: Stack = None,
    nic: NicRate = None,
    calibrate: Calibrate = None,
    table: TableOption = None,
    *,
    reading: Reading,
    writing_file: Writing,
) -> None:
    """Servers under load: TTFT, TPOT, tokens/s and the price of a token.
    Every layout that fits by the engine's own rule, the Pareto front, and the cheapest server that keeps the limits.
    Exit code 1 if none does.
    """
    from ..questions.serving import ServeOptions, ask_serve
    from ..sources.hardware import find_hardware
    from ..sources.preset import name_in_errors

    options = ServeOptions(
        input, output, concurrency, rate, ttft, tpot, devices, tp, pp, dp, ep, engine, quantize, kv_dtype, price,
        prefix_hit, stack, nic, calibrate,
    )  # fmt: skip
    preset = reading.load(target)
    with name_in_errors(preset):
        answer = ask_serve(preset, find_hardware(hardware), options, reading.load)
        report = answer.report()
    writing_file.show(report, table)
    if not answer.ok:
        raise typer.Exit(1)

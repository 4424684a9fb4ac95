"""The options of servers in `serve` and its plot, and the question from these options."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from .hardware import OneAccelerator
from .options import length_option, value_option
from .setting_options import CommandFunction, OptionOfCommand, optional_parameter, replace_parameter
from .target_options import TargetOptions
from .time_options import Calibrate, NicRate, Stack

if TYPE_CHECKING:
    from ..reports.answer import ReportedAnswer

LOAD, LAYOUT = "Inference", "Layout"


InputTokens = Annotated[int | None, length_option("--input", text="Tokens of a prompt.")]
OutputTokens = Annotated[
    int | None, length_option("--output", text="Tokens of an answer. The file of the answer is --output-file.")
]
EngineName = Annotated[
    str | None,
    value_option(
        "--engine", "NAME[==VERSION]", "vllm, sglang or tensorrt-llm. Default vllm, the newest that was read."
    ),
]
Price = Annotated[str | None, value_option("--price", "MONEY", "Price of a device and hour, in any currency.")]


def _at_most_1024(name: str, text: str) -> OptionOfCommand:
    return optional_parameter(int, length_option(name, text=text, most=1024, panel=LAYOUT))


SERVER_OPTIONS = {
    "hardware": OptionOfCommand(OneAccelerator, inspect.Parameter.empty),
    "input": OptionOfCommand(InputTokens, None),
    "output": OptionOfCommand(OutputTokens, None),
    "trace": optional_parameter(
        Path,
        value_option(
            "--trace",
            "FILE",
            "Requests to simulate, in place of equal ones: CSV or JSON lines of arrival, input, output.",
            LOAD,
        ),
    ),
    "engine": OptionOfCommand(EngineName, None),
    "quantize": optional_parameter(
        str,
        value_option(
            "--quantize", "SCHEMES", "Schemes of the weights to try (auto,fp8-dynamic); default as published."
        ),
    ),
    "kv_dtype": optional_parameter(
        str, value_option("--kv-dtype", "FORMATS", "Formats of the cache to try (auto,fp8); default the engine's.")
    ),
    "price": OptionOfCommand(Price, None),
    "concurrency": optional_parameter(
        int,
        length_option(
            "--concurrency", "--users", text="Requests in the server at any time; default as many as fit.", panel=LOAD
        ),
    ),
    "rate": optional_parameter(
        str, value_option("--rate", "R", "Requests per second that arrive, in place of --concurrency.", LOAD)
    ),
    "ttft": optional_parameter(
        str, value_option("--ttft", "SECONDS", "Most time to the first token (1s, 300ms).", LOAD)
    ),
    "tpot": optional_parameter(str, value_option("--tpot", "SECONDS", "Most time of each further token (30ms).", LOAD)),
    "prefix_hit": optional_parameter(
        str,
        value_option(
            "--prefix-hit", "P", "Share of each prompt that the prefix cache has (0.5); default 0.", panel=LOAD
        ),
    ),
    "draft": optional_parameter(
        str,
        value_option(
            "--draft", "TARGET", "Drafts tokens: a model, the model's own modules (mtp), or its text (ngram).", LOAD
        ),
    ),
    "acceptance": optional_parameter(
        str,
        value_option("--acceptance", "P", "Chance that a drafted token is accepted (0.7); with --draft.", LOAD),
    ),
    "draft_tokens": optional_parameter(
        int, length_option("--draft-tokens", text="Tokens that are drafted in a step; default 3.", most=64, panel=LOAD)
    ),
    "disaggregate": optional_parameter(
        str,
        value_option(
            "--disaggregate", "auto|P:D", "Prompts on replicas of their own: P for D that decode, or as needed.", LAYOUT
        ),
    ),
    "devices": _at_most_1024("--devices", "Devices of the server; default as few as keep the limits."),
    "tp": _at_most_1024("--tp", "Ranks that divide heads and widths. A given layout is the only one."),
    "pp": _at_most_1024("--pp", "Stages of a pipeline."),
    "dp": _at_most_1024("--dp", "Replicas; with --ep above --tp, ranks with attention of their own."),
    "ep": _at_most_1024("--ep", "Ranks that divide the experts."),
    "stack": OptionOfCommand(Stack, None),
    "nic": OptionOfCommand(NicRate, None),
    "calibrate": OptionOfCommand(Calibrate, None),
}

ServerValues: TypeAlias = dict[str, Any]
"""The options of `takes_server` by name."""


def takes_server(command: CommandFunction) -> CommandFunction:
    """Replaces a command's parameter `values` by the options of a server under load."""
    return replace_parameter("values", SERVER_OPTIONS, dict)(command)


def serve_answer(target: str, values: ServerValues, target_options: TargetOptions) -> ReportedAnswer:
    """Returns the answer about servers of a model under load. target: the TARGET. values: the options by name."""
    from ..questions.serving import ServeOptions, ask_serve
    from ..sources.hardware import find_hardware
    from ..sources.preset import name_in_errors

    options = ServeOptions(**{name: value for name, value in values.items() if name != "hardware"})
    preset = target_options.load(target)
    with name_in_errors(preset):
        return ask_serve(preset, find_hardware(values["hardware"]), options, target_options.load)

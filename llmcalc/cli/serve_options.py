"""Options of servers that `serve` and its picture share, and the question that they ask."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .hardware import OneAccelerator
from .options import size
from .setting_options import CommandFunction, OptionOfCommand, replace_parameter
from .target_options import Reading
from .time_options import Calibrate, NicRate, Stack

if TYPE_CHECKING:
    from ..reports.answer import ReportedAnswer

LOAD, LAYOUT = "Inference", "Layout"


def _panel(option: Any, panel: str) -> Any:
    option.rich_help_panel = panel
    return option


def _text(name: str, metavar: str, text: str, panel: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False, rich_help_panel=panel)


InputTokens = Annotated[int | None, size("--input", text="Tokens of a prompt.")]
OutputTokens = Annotated[
    int | None, size("--output", text="Tokens of an answer. The file of the answer is --output-file.")
]
EngineName = Annotated[
    str | None,
    _text("--engine", "NAME[==VERSION]", "vllm, sglang or tensorrt-llm. Default vllm, the newest that was read."),
]
Price = Annotated[str | None, _text("--price", "MONEY", "Price of a device and hour, in any currency.")]


SERVER_OPTIONS = {
    "hardware": OptionOfCommand(OneAccelerator, inspect.Parameter.empty),
    "input": OptionOfCommand(InputTokens, None),
    "output": OptionOfCommand(OutputTokens, None),
    "trace": OptionOfCommand(
        Annotated[
            Path | None,
            typer.Option(
                "--trace",
                metavar="FILE",
                help="Requests to simulate, in place of equal ones: CSV or JSON lines of arrival, input, output.",
                show_default=False,
                rich_help_panel=LOAD,
            ),
        ],
        None,
    ),
    "engine": OptionOfCommand(EngineName, None),
    "quantize": OptionOfCommand(
        Annotated[
            str | None,
            _text("--quantize", "SCHEMES", "Schemes of the weights to try (auto,fp8-dynamic); default as published."),
        ],
        None,
    ),
    "kv_dtype": OptionOfCommand(
        Annotated[
            str | None, _text("--kv-dtype", "FORMATS", "Formats of the cache to try (auto,fp8); default the engine's.")
        ],
        None,
    ),
    "price": OptionOfCommand(Price, None),
    "concurrency": OptionOfCommand(
        Annotated[
            int | None,
            _panel(
                size("--concurrency", "--users", text="Requests in the server at any time; default as many as fit."),
                LOAD,
            ),
        ],
        None,
    ),
    "rate": OptionOfCommand(
        Annotated[
            str | None, _text("--rate", "R", "Requests per second that arrive, in place of --concurrency.", LOAD)
        ],
        None,
    ),
    "ttft": OptionOfCommand(
        Annotated[str | None, _text("--ttft", "SECONDS", "Most time to the first token (1s, 300ms).", LOAD)], None
    ),
    "tpot": OptionOfCommand(
        Annotated[str | None, _text("--tpot", "SECONDS", "Most time of each further token (30ms).", LOAD)], None
    ),
    "prefix_hit": OptionOfCommand(
        Annotated[
            str | None,
            _text("--prefix-hit", "P", "Share of each prompt that the prefix cache has (0.5); default 0.", LOAD),
        ],
        None,
    ),
    "draft": OptionOfCommand(
        Annotated[
            str | None,
            _text(
                "--draft", "TARGET", "Drafts tokens: a model, the model's own modules (mtp), or its text (ngram).", LOAD
            ),
        ],
        None,
    ),
    "acceptance": OptionOfCommand(
        Annotated[
            str | None, _text("--acceptance", "P", "Chance that a drafted token is accepted (0.7); with --draft.", LOAD)
        ],
        None,
    ),
    "draft_tokens": OptionOfCommand(
        Annotated[
            int | None,
            _panel(size("--draft-tokens", text="Tokens that are drafted in a step; default 3.", most=64), LOAD),
        ],
        None,
    ),
    "devices": OptionOfCommand(
        Annotated[
            int | None,
            _panel(
                size("--devices", text="Devices of the server; default as few as keep the limits.", most=1024), LAYOUT
            ),
        ],
        None,
    ),
    "tp": OptionOfCommand(
        Annotated[
            int | None,
            _panel(
                size("--tp", text="Ranks that divide heads and widths. A given layout is the only one.", most=1024),
                LAYOUT,
            ),
        ],
        None,
    ),
    "pp": OptionOfCommand(
        Annotated[int | None, _panel(size("--pp", text="Stages of a pipeline.", most=1024), LAYOUT)], None
    ),
    "dp": OptionOfCommand(
        Annotated[
            int | None,
            _panel(
                size("--dp", text="Replicas; with --ep above --tp, ranks with attention of their own.", most=1024),
                LAYOUT,
            ),
        ],
        None,
    ),
    "ep": OptionOfCommand(
        Annotated[int | None, _panel(size("--ep", text="Ranks that divide the experts.", most=1024), LAYOUT)], None
    ),
    "stack": OptionOfCommand(Stack, None),
    "nic": OptionOfCommand(NicRate, None),
    "calibrate": OptionOfCommand(Calibrate, None),
}

ServerValues: TypeAlias = dict[str, Any]
"""The options of `takes_server` by name."""


def takes_server(command: CommandFunction) -> CommandFunction:
    """Replaces the parameter `values` of a command by the options of a server under load."""
    return replace_parameter("values", SERVER_OPTIONS, dict)(command)


def serve_answer(target: str, values: ServerValues, reading: Reading) -> ReportedAnswer:
    """Returns the answer of `serve`."""
    from ..questions.serving import ServeOptions, ask_serve
    from ..sources.hardware import find_hardware
    from ..sources.preset import name_in_errors

    options = ServeOptions(**{name: value for name, value in values.items() if name != "hardware"})
    preset = reading.load(target)
    with name_in_errors(preset):
        return ask_serve(preset, find_hardware(values["hardware"]), options, reading.load)

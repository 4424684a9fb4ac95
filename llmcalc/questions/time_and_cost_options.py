"""The options of `time`, `serve` and `cost` in addition to the options of a run and a layout.

The options of the command line, the checks of the Python API and those of measured rows are read from these classes.
An attribute is None for an option that was not given, and else the checked value. Nothing here needs a model.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from ..errors import InputError, short_repr
from ..frozen import frozen
from ..units import parse_count
from ..workload.durations import MeasuredTime, parse_duration, parse_measured_time
from ..workload.setting import Setting

MAX_DEPTH = 8
"""Largest depth of `--by-node`."""

MAX_NIC = 10**6
"""Largest bandwidth of `--nic` in GB/s."""

LARGEST_AMOUNT = 1e12
"""Largest accepted price, power or request rate."""

MAX_TPOT_WITHOUT_UNIT, MAX_TTFT_WITHOUT_UNIT = 5.0, 60.0
"""Largest seconds per token and to the first token without a unit; a larger number is probably in milliseconds and
refused.
"""

DRAFT_TOKENS = 3
"""Default of `--draft-tokens`, the number of drafted tokens per step."""


def parse_nic(option_name: str, gigabytes_per_second: Any) -> float:
    """Parses a network's GB/s and returns bytes/s. Raises `InputError`, which names `option_name`, for other values."""
    number_text = re.fullmatch(r"[0-9]{1,7}(?:\.[0-9]{1,6})?", str(gigabytes_per_second).strip())
    bandwidth = 0.0 if number_text is None or isinstance(gigabytes_per_second, bool) else float(number_text[0])
    if not 0 < bandwidth <= MAX_NIC:
        raise InputError(
            f"{option_name}: {short_repr(gigabytes_per_second)}; expected GB/s of a device's network, such as 50"
        )
    return bandwidth * 1e9


def parse_positive(option_name: str, option_value: Any, example_value: str) -> float:
    """Parses a positive number or its text. Raises `InputError`, which names the option, for other values."""
    number_pattern = r"(?:[0-9]{1,13}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})(?:[eE][+-]?[0-9]{1,2})?"
    text_match = re.fullmatch(number_pattern, str(option_value).strip())
    number = math.nan if text_match is None or isinstance(option_value, bool) else float(text_match[0])
    if not 0 < number <= LARGEST_AMOUNT:
        raise InputError(
            f"{option_name}: {short_repr(option_value)}; expected a number above 0, such as {example_value}"
        )
    return number


_CURRENCY = r"[$€£¥]|USD|EUR|GBP|CNY"
_PRICE = re.compile(
    rf"(?:(?:{_CURRENCY})\s*)?(?P<amount>[0-9.]+)\s*(?:{_CURRENCY})?\s*(?:(?:/|per)\s*(?:h|hr|hour))?", re.IGNORECASE
)
"""Pattern of an hourly price, with or without a currency and `/h`: `$2.5`, `2.50 USD/h`."""


def parse_price(option_name: str, option_value: Any) -> float:
    """Parses the price of an hour, with or without a currency. Raises `InputError` for other values."""
    return _parse_amount(_PRICE, option_name, option_value, "2.5")


_WATTS = re.compile(r"(?P<amount>[0-9.]+)\s*(?:w|watts?)", re.IGNORECASE)
"""Pattern of a power with its unit: `700W`."""


def parse_watts(option_name: str, option_value: Any) -> float:
    """Parses a power in watts, with or without the unit. Raises `InputError` for other values."""
    return _parse_amount(_WATTS, option_name, option_value, "700")


def _parse_amount(amount_pattern: re.Pattern[str], option_name: str, option_value: Any, example_text: str) -> float:
    """Parses a positive number, whose optional unit matches `amount_pattern`. Raises `InputError` for other values."""
    amount_match = amount_pattern.fullmatch(str(option_value).strip())
    number = option_value if amount_match is None else amount_match["amount"]
    return parse_positive(option_name, number, example_text)


def parse_share(option_name: str, option_value: Any) -> float:
    """Parses a fraction of at least 0 and less than 1. Raises `InputError` for other values."""
    text_match = re.fullmatch(r"0?\.[0-9]{1,9}|0", str(option_value).strip())
    if text_match is None or isinstance(option_value, bool):
        raise InputError(f"{option_name}: {short_repr(option_value)}; expected a share from 0 to below 1, such as 0.5")
    return float(text_match[0])


def parse_acceptance(option_name: str, option_value: Any) -> float:
    """Parses the chance that a drafted token is accepted, or the mean tokens of a step, above 1.

    Raises `InputError` for other values.
    """
    text_match = re.fullmatch(r"[0-9]{0,2}(\.[0-9]{1,9})?", str(option_value).strip())
    if text_match is None or not text_match[0] or isinstance(option_value, bool) or float(text_match[0]) == 1:
        raise InputError(
            f"{option_name}: {short_repr(option_value)}; expected a chance below 1, such as 0.7, or the tokens of a "
            "step above 1, such as 2.8"
        )
    return float(text_match[0])


def _parse_count(option_name: str, option_value: Any) -> int:
    return parse_count(str(option_value), option_name)


common_setting = partial(Setting, is_common=True)
"""Declares a setting that `--help` lists, not only `--help-all`."""

InputTokens: TypeAlias = Annotated[int | None, common_setting("Tokens of a prompt.")]
OutputTokens: TypeAlias = Annotated[
    int | None, common_setting("Tokens of an answer. The file of the answer is --output-file.")
]
EngineName: TypeAlias = Annotated[
    str | None,
    common_setting(
        "vllm, sglang or tensorrt-llm. Default vllm, the newest that was read.",
        example="vllm",
        metavar="NAME[==VERSION]",
    ),
]
PriceSetting: TypeAlias = Annotated[
    float | None,
    common_setting("Price of a device and hour, in any currency.", parse_value=parse_price, metavar="MONEY"),
]
StackSetting: TypeAlias = Annotated[
    str | None,
    common_setting(
        "Software whose overheads are priced: maxtext, gpt-fast, … These are its fusion, overlap and host times; a "
        "wrong name lists all. Default that of the framework or the engine.",
        "Hardware",
        example="maxtext",
        metavar="NAME",
    ),
]
OverlapSetting: TypeAlias = Annotated[
    str | None,
    Setting(
        "Messages that run beside products: of gradients (dp), tensor (tp) or expert parallelism (ep); default as the "
        "stack.",
        "Hardware",
        example="none",
        metavar="none|all|dp,tp,ep",
    ),
]
NicRate: TypeAlias = Annotated[
    float | None,
    Setting(
        "Network of each device beyond its scale-up domain; default as the accelerator's record.",
        "Hardware",
        parse_value=parse_nic,
        metavar="GB/s",
    ),
]
CalibrateSetting: TypeAlias = Annotated[
    Path | None,
    common_setting(
        "Your own measured runs, on which the stack is fitted. A row has columns named as options of time (phase, "
        "users, seq, tp, …) and seconds; a fit that would not help is refused.",
        "Hardware",
        metavar="CSV",
    ),
]
seconds_setting = partial(common_setting, parse_value=parse_duration, metavar="SECONDS")


@frozen
class TimeOptions:
    """The options of `llmcalc time`. factors: the factors fitted by `--calibrate`; None (default) for none."""

    engine: Annotated[
        str | None,
        common_setting(
            "The serving engine: vllm, vllm==0.6, sglang, tensorrt-llm, llama.cpp; default vllm, or llama.cpp for "
            "GGUF files, Ollama's tags, Apple.",
            "What runs",
            example="vllm",
            metavar="NAME[==VERSION]",
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        common_setting("Sequences per step of all devices; default a micro-batch of each replica, or about 4M tokens."),
    ] = None
    context: Annotated[
        int | None, common_setting("In prefill, tokens that are cached before the prompt.", minimum=0)
    ] = None
    server: Annotated[bool, common_setting("In prefill, add a server's time before the first token.")] = False
    stack: StackSetting = None
    overlap: OverlapSetting = None
    nic: NicRate = None
    calibrate: CalibrateSetting = None
    by_node: Annotated[
        int | None,
        common_setting("List the time by nodes of the model, to this depth.", maximum=MAX_DEPTH, metavar="DEPTH"),
    ] = None
    measured: Annotated[
        MeasuredTime | None,
        common_setting(
            "A measured time (8.1s), or tokens/s (2900 tok/s[/gpu]). Of all devices, or with /gpu of one. Or one "
            "device's model FLOPs with full pairs (400 TFLOP/s, 41% MFU). Says whether it is in the range, and what "
            "could explain it.",
            parse_value=parse_measured_time,
            metavar="SECONDS",
        ),
    ] = None
    factors: Any = None


TIME_ORDER_OPTIONS = ("stack", "overlap", "nic", "calibrate")
"""Options of `llmcalc time` that `llmcalc plan` accepts only when it sorts by time."""

layout_size_setting = partial(common_setting, panel="Layout", maximum=1024)
load_setting = partial(common_setting, panel="Inference")


@frozen
class ServeOptions:
    """The options of `llmcalc serve`. draft: the TARGET of a draft model, its preset, `mtp` or `ngram`."""

    input: Annotated[int | None, common_setting("Tokens of a prompt, default 1,024.")] = None
    output: Annotated[
        int | None, common_setting("Tokens of an answer, default 128. The file of the answer is --output-file.")
    ] = None
    trace: Annotated[
        Path | None,
        load_setting(
            "Requests to simulate, in place of equal ones: CSV or JSON lines of arrival, input, output.", metavar="FILE"
        ),
    ] = None
    engine: EngineName = None
    quantize: Annotated[
        str | None,
        common_setting(
            "Schemes of the weights to try (auto,fp8-dynamic); default as published.", example="auto", metavar="SCHEMES"
        ),
    ] = None
    kv_dtype: Annotated[
        str | None,
        common_setting(
            "Formats of the cache to try (auto,fp8); default the engine's.", example="auto", metavar="FORMATS"
        ),
    ] = None
    price: PriceSetting = None
    concurrency: Annotated[
        int | None, load_setting("Requests in the server at any time; default as many as fit.", spellings=("--users",))
    ] = None
    rate: Annotated[
        float | None,
        load_setting(
            "Requests per second that arrive, in place of --concurrency.",
            parse_value=partial(parse_positive, example_value="2.5 requests per second"),
            metavar="R",
        ),
    ] = None
    ttft: Annotated[
        float | None,
        seconds_setting(
            "Most time to the first token (1s, 300ms), as its likely value if all requests arrive at once.",
            "Inference",
            parse_value=partial(parse_duration, largest_unitless_seconds=MAX_TTFT_WITHOUT_UNIT),
        ),
    ] = None
    tpot: Annotated[
        float | None,
        seconds_setting(
            "Most time of each further token (30ms), as its likely value.",
            "Inference",
            parse_value=partial(parse_duration, largest_unitless_seconds=MAX_TPOT_WITHOUT_UNIT),
        ),
    ] = None
    prefix_hit: Annotated[
        float | None,
        load_setting(
            "Share of each prompt that the prefix cache has (0.5); default 0.", parse_value=parse_share, metavar="P"
        ),
    ] = None
    draft: Annotated[
        Any,
        load_setting("Drafts tokens: a model, the model's own modules (mtp), or its text (ngram).", metavar="TARGET"),
    ] = None
    mem_fraction_static: Annotated[
        float | None,
        load_setting("Share of the memory for weights and cache, of SGLang.", parse_value=parse_share, metavar="P"),
    ] = None
    acceptance: Annotated[
        float | None,
        load_setting(
            "Chance that a drafted token is accepted (0.7), or the acceptance length that engines print (2.8).",
            parse_value=parse_acceptance,
            metavar="P|LENGTH",
        ),
    ] = None
    draft_tokens: Annotated[
        int | None, load_setting(f"Tokens that are drafted in a step; default {DRAFT_TOKENS}.", maximum=64)
    ] = None
    disaggregate: Annotated[
        str | None,
        common_setting(
            "Prompts on replicas of their own: P for D that decode, or as needed.",
            "Layout",
            example="auto",
            metavar="auto|P:D",
        ),
    ] = None
    devices: Annotated[
        int | None, layout_size_setting("Devices of the server; default those of the cheapest that keeps the limits.")
    ] = None
    tp: Annotated[
        int | None, layout_size_setting("Ranks that divide heads and widths. A given layout is the only one.")
    ] = None
    pp: Annotated[int | None, layout_size_setting("Stages of a pipeline.")] = None
    dp: Annotated[
        int | None, layout_size_setting("Replicas; with --ep above --tp, ranks with attention of their own.")
    ] = None
    ep: Annotated[int | None, layout_size_setting("Ranks that divide the experts.")] = None
    stack: StackSetting = None
    nic: NicRate = None
    calibrate: CalibrateSetting = None


@frozen
class CostOptions:
    """The options of `llmcalc cost`: of a training run, or of requests that are served."""

    tokens: Annotated[
        int | None,
        common_setting(
            "Tokens to train on (15T), by default on the fewest devices that fit.",
            parse_value=_parse_count,
            metavar="N",
        ),
    ] = None
    requests: Annotated[
        int | None,
        common_setting(
            "Requests to serve (1M), of serve's default lengths.",
            parse_value=_parse_count,
            metavar="N",
        ),
    ] = None
    input: InputTokens = None
    output: OutputTokens = None
    concurrency: Annotated[
        int | None, common_setting("Requests in the server at any time. Default as many as fit.")
    ] = None
    price: PriceSetting = None
    power: Annotated[
        float | None, common_setting("Power of a device; default its TDP.", parse_value=parse_watts, metavar="WATTS")
    ] = None
    step: Annotated[
        float | None, seconds_setting("A measured training step (8.1s). By default that of the fastest layout of plan.")
    ] = None
    global_batch: Annotated[
        int | None,
        common_setting(
            "Sequences per training step. Default about 4M tokens, or 1,024 of each device if that is more, of --seq "
            "4096; of adapters and encoders a micro-batch of each device."
        ),
    ] = None
    engine: EngineName = None
    stack: StackSetting = None
    overlap: OverlapSetting = None
    nic: NicRate = None

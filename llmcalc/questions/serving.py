"""The question of `llmcalc serve`: the cheapest server within latency limits under a load of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..accelerator import Hardware
from ..device_memory.settings import settings_of
from ..errors import InputError, short_repr
from ..parallel.layout_request import LayoutRequest
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset
from ..sources.target import load
from ..timing.calibration import Calibration
from ..workload.setting import option
from ..workload.validation import LARGEST_COUNT
from .runs import RunQuestion
from .time_and_cost_options import DRAFT_TOKENS, CostOptions, ServeOptions, TimeOptions
from .times import engine_stack_name, timed_run

if TYPE_CHECKING:
    from ..frameworks.engines.engine import Engine
    from ..studies.serve_trace import RequestTrace
    from ..studies.serving import ServeStudy
    from ..timing.batching import RequestSizes
    from ..timing.speculation import Speculation

AUTO_FORMAT = "auto"
"""The word that stands for the published number format in lists of formats."""

MAX_FORMAT_COMBINATIONS = 8
"""Largest number of combinations of formats that are tried."""


OUTPUT_TOKENS = 128
"""Default number of tokens of an answer: the default of `vllm bench serve`.

Source: the default of its `--random-output-len`, https://docs.vllm.ai/en/latest/cli/bench/serve/
"""


def ask_serve(
    preset: Preset, hardware: Hardware, options: ServeOptions, read_model: Callable[[str], Preset] = load
) -> ReportedAnswer:
    """Finds a model's servers and the cheapest server within the limits; `.ok` says whether there is one.

    read_model: reads the models of measured runs; default without changes.
    Raises `InputError` for options that contradict each other, and for engines whose servers are not modelled.
    """
    from ..reports.calibration import with_calibration
    from ..reports.serve import report

    options, assumed_options, assumption_origin = with_assumed_request_tokens(preset, options)
    assumption_note = f"assumed: {' '.join(assumed_options)} ({assumption_origin})" if assumed_options else ""
    server_study = replace(serve_study(preset, hardware, options, read_model), assumption_note=assumption_note)
    calibration = _calibration_of_options(preset, hardware, options, read_model)
    if calibration is not None:
        device = calibration.factors.scale_device(server_study.device)
        software_stack = calibration.factors.scale_stack(server_study.stack)
        server_study = replace(server_study, device=device, stack=software_stack)
    studied_servers = server_study.find_servers()
    has_chosen_server = studied_servers.chosen_server is not None
    return ReportedAnswer(
        studied_servers, lambda: with_calibration(report(server_study, studied_servers), calibration), has_chosen_server
    )


RequestOptions = TypeVar("RequestOptions", ServeOptions, CostOptions)


def with_assumed_request_tokens(preset: Preset, options: RequestOptions) -> tuple[RequestOptions, list[str], str]:
    """Returns options with all tokens of a request, the names of those that were assumed, and their origin as text.

    A prompt is shorter than that of `vllm bench serve` where the model's learned positions end before.
    """
    from ..costs.context_length import learned_positions
    from ..studies.decoding import SHORT_CONTEXT

    if isinstance(options, ServeOptions) and options.trace is not None:
        return options, [], ""
    max_positions = learned_positions(preset.model) or LARGEST_COUNT
    output_tokens = OUTPUT_TOKENS if options.output is None else options.output
    is_too_long = options.input is None and output_tokens < max_positions < SHORT_CONTEXT + output_tokens
    request_tokens = {"input": max_positions - output_tokens if is_too_long else SHORT_CONTEXT, "output": OUTPUT_TOKENS}
    assumed_tokens: dict[str, Any] = {
        field_name: token_count
        for field_name, token_count in request_tokens.items()
        if getattr(options, field_name) is None
    }
    assumed_options = [f"{option(field_name)} {token_count}" for field_name, token_count in assumed_tokens.items()]
    origin_text = "the longest request of the model" if is_too_long else "as `vllm bench serve` sends by default"
    return replace(options, **assumed_tokens), assumed_options, origin_text


def _calibration_of_options(
    preset: Preset, hardware: Hardware, options: ServeOptions, read_model: Callable[[str], Preset]
) -> Calibration | None:
    """Returns the calibration on measured prompt and decoding times; None without measured runs."""
    if options.calibrate is None:
        return None
    from .measured_rows import calibration_of_file

    layout = LayoutRequest(devices=options.devices, tp=options.tp, pp=options.pp)
    run_question = RunQuestion(
        preset=preset, settings=settings_of(phase="decode"), layout=layout, accelerators=(hardware,)
    )
    time_options = TimeOptions(stack=options.stack, nic=options.nic, engine=options.engine)
    return calibration_of_file(options.calibrate, run_question, time_options, read_model, timed_run)


def serve_study(
    preset: Preset, hardware: Hardware, options: ServeOptions, read_model: Callable[[str], Preset] = load
) -> ServeStudy:
    """Builds the study of servers from the options of `serve`. Raises the `InputError`s of `ask_serve`."""
    from ..frameworks.engines.registry import ENGINE_FOLDERS, USUAL_ENGINE, engine, engine_and_version
    from ..studies.server import LatencyLimits
    from ..studies.serving import ServeStudy, SizesRequest
    from ..timing.batching import RequestSizes
    from ..timing.device import device_of
    from ..timing.software_stacks import find_stack

    if preset.model.model_without_tokens:
        raise InputError(
            f"{preset.model.model_without_tokens} generates no tokens to serve; expected a decoder, or llmcalc time "
            "for a pass over its input"
        )
    request_trace = _trace_of_options(options)
    if options.concurrency is not None and options.rate is not None:
        raise InputError("--rate: --concurrency says the load already; expected one of the two")
    engine_record, engine_version = engine_and_version(options.engine or USUAL_ENGINE)
    if engine_record.layout_flags is None:
        engine_names = [engine_name for engine_name in ENGINE_FOLDERS if engine(engine_name).layout_flags is not None]
        raise InputError(
            f"--engine {options.engine}: its servers under load are not modelled; "
            f"expected one of {', '.join(engine_names)}"
        )
    if not engine_record.runs_on(hardware):
        raise InputError(
            f"--hardware {hardware.name or hardware.title}: servers of {engine_record.title} on it are not modelled; "
            f"expected {engine_record.supported_accelerators}, or llmcalc time with --users N for a token of N users"
        )
    cached_share = options.prefix_hit or 0.0
    if request_trace is not None:
        request_trace = replace(request_trace, cached_share=cached_share)
    input_tokens, output_tokens = (
        (options.input, options.output)
        if request_trace is None
        else (request_trace.mean_input_tokens, request_trace.mean_output_tokens)
    )
    assert input_tokens is not None
    assert output_tokens is not None
    if input_tokens + output_tokens > LARGEST_COUNT:
        raise InputError(
            f"--input, --output: {input_tokens + output_tokens:,} tokens of a request are too many; "
            f"expected at most {LARGEST_COUNT:,}"
        )
    request_sizes = RequestSizes(input_tokens, output_tokens, int(cached_share * input_tokens))
    longest_request = request_sizes.total_tokens if request_trace is None else request_trace.longest_request
    latency_limits = LatencyLimits(options.concurrency, options.rate, options.ttft, options.tpot)
    speculation, draft_flags = _speculation_of_options(preset, engine_record, options, read_model)
    software_stack = find_stack(options.stack or engine_stack_name(options.engine, hardware), "inference")
    return ServeStudy(
        preset,
        hardware,
        device_of(hardware, options.nic),
        software_stack,
        engine_record,
        engine_version,
        dict(_formats_with_memories(preset, hardware, options, longest_request)),
        request_sizes,
        latency_limits,
        SizesRequest(options.devices, options.tp, options.pp, options.dp, options.ep),
        options.price,
        request_trace,
        options.disaggregate is not None,
        _prefill_decode_ratio(options, request_sizes),
        speculation,
        draft_flags | _memory_share_flags(engine_record, options),
    )


def _memory_share_flags(engine_record: Engine, options: ServeOptions) -> dict[str, Any]:
    """Returns the engine's flag for the share of memory; empty without the option.

    Raises `InputError` for an engine without such a flag.
    """
    if options.mem_fraction_static is None:
        return {}
    if not any("--mem-fraction-static" in engine_flag.names for engine_flag in engine_record.known_flags()):
        raise InputError(f"--mem-fraction-static: {engine_record.title} has no such flag; expected --engine sglang")
    return {"mem_fraction_static": options.mem_fraction_static}


MAX_REPLICAS_OF_A_SIDE = 64
"""Largest number of replicas on either side of a `--disaggregate` ratio."""


def _prefill_decode_ratio(options: ServeOptions, request_sizes: RequestSizes) -> tuple[int, int] | None:
    """Returns the ratio of `--disaggregate`; None for `auto`, and without the option.

    Raises `InputError` for other values, and for requests of which no replica decodes anything.
    """
    replica_ratio_text = options.disaggregate
    if replica_ratio_text is None:
        return None
    if options.trace is not None:
        raise InputError("--disaggregate: the requests of a trace are simulated on equal replicas; expected --input")
    if request_sizes.output_tokens == 1:
        raise InputError("--disaggregate: answers of one token are not decoded; expected a longer --output")
    if replica_ratio_text == AUTO_FORMAT:
        return None
    text_match = re.fullmatch(r"([1-9][0-9]?):([1-9][0-9]?)", str(replica_ratio_text))
    replica_counts = (0, 0) if text_match is None else (int(text_match[1]), int(text_match[2]))
    if not 0 < max(replica_counts) <= MAX_REPLICAS_OF_A_SIDE:
        raise InputError(
            f"--disaggregate: {short_repr(replica_ratio_text)}; expected {AUTO_FORMAT}, or replicas for prompts and "
            f"replicas that decode, each at most {MAX_REPLICAS_OF_A_SIDE}, such as 1:3"
        )
    return replica_counts


def _speculation_of_options(
    preset: Preset, engine_record: Engine, options: ServeOptions, read_model: Callable[[str], Preset]
) -> tuple[Speculation | None, dict[str, Any]]:
    """Returns the draft model or method of speculation, and the engine's flags for it; None without `--draft`.

    Raises `InputError` for options that lack one another, and a draft that does not fit the model.
    """
    from ..costs.draft import check_draft, target_state_reader
    from ..timing.speculation import Speculation, acceptance_for_accepted_length

    typed_options = [
        option_name for option_name in ("acceptance", "draft_tokens") if getattr(options, option_name) is not None
    ]
    if options.draft is None:
        if typed_options:
            raise InputError(
                f"{option(typed_options[0])}: is of a draft; expected --draft TARGET, mtp or ngram beside it"
            )
        return None, {}
    if options.acceptance is None:
        raise InputError("--draft: how many tokens are accepted is not known; expected --acceptance, such as 0.7")
    if engine_record.draft_flags is None:
        raise InputError(
            f"--draft: speculative decoding of {engine_record.title}'s servers is not modelled; expected vllm"
        )
    draft_token_count = options.draft_tokens or DRAFT_TOKENS
    if options.draft == "mtp" and preset.model.mtp is None:
        raise InputError("--draft mtp: the model has no modules of multi-token prediction; expected a TARGET or ngram")
    draft_method = options.draft if options.draft in ("mtp", "ngram") else "model"
    draft_preset = None
    if draft_method == "model":
        draft_preset = options.draft if isinstance(options.draft, Preset) else read_model(options.draft)
        reads_states = target_state_reader(draft_preset.model) is not None
        check_draft(preset.model, draft_preset.model, preset.name, f"--draft {draft_preset.name}", not reads_states)
    draft_spec = None if draft_preset is None else draft_preset.model
    acceptance = (
        options.acceptance
        if options.acceptance < 1
        else acceptance_for_accepted_length(options.acceptance, draft_token_count)
    )
    return Speculation(draft_token_count, acceptance, draft_spec, draft_method == "mtp"), engine_record.draft_flags(
        draft_method, draft_preset, draft_token_count
    )


def _trace_of_options(options: ServeOptions) -> RequestTrace | None:
    """Returns the requests of `--trace`; None for equal requests. Raises `InputError` if options state these too."""
    from ..studies.serve_trace import RequestTrace
    from .traces import read_trace

    load_options = ("input", "output", "concurrency", "rate")
    typed_options = [f"--{field_name}" for field_name in load_options if getattr(options, field_name) is not None]
    if options.trace is None:
        return None
    if typed_options:
        raise InputError(f"{typed_options[0]}: --trace says the requests already; expected one of the two")
    return RequestTrace(read_trace(options.trace))


def _formats_with_memories(
    preset: Preset, hardware: Hardware, options: ServeOptions, sequence_length: int
) -> list[tuple[Any, Any]]:
    """Returns each pair of weight and cache formats, with the model's memory on one device."""
    format_pairs = [
        (weight_format, kv_dtype)
        for weight_format in _parse_formats("--quantize", options.quantize)
        for kv_dtype in _parse_formats("--kv-dtype", options.kv_dtype)
    ]
    if len(format_pairs) > MAX_FORMAT_COMBINATIONS:
        raise InputError(
            f"--quantize, --kv-dtype: {len(format_pairs)} combinations; expected at most {MAX_FORMAT_COMBINATIONS}"
        )
    formats_and_memories = []
    for format_pair in dict.fromkeys(format_pairs):
        chosen_formats = {
            setting_name: format_name
            for setting_name, format_name in zip(("quantize", "kv_dtype"), format_pair, strict=True)
            if format_name is not None
        }
        settings = settings_of(phase="decode", batch=1, seq=sequence_length, **chosen_formats)
        run_question = RunQuestion(preset=preset, settings=settings, accelerators=(hardware,))
        formats_and_memories.append((format_pair, run_question.memory_on_one_device()))
    return formats_and_memories


def _parse_formats(option_name: str, formats_text: str | None) -> Sequence[str | None]:
    """Parses a comma-separated list of number formats; None for the published format."""
    if formats_text is None:
        return [None]
    format_words = [
        format_word.strip() for format_word in str(formats_text)[: LARGEST_COUNT.bit_length() * 20].split(",")
    ]
    if not all(format_words):
        raise InputError(
            f"{option_name}: {short_repr(formats_text)}; expected formats with commas between them, "
            f"such as {AUTO_FORMAT},fp8"
        )
    return [None if format_word == AUTO_FORMAT else format_word for format_word in format_words]

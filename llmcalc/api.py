"""The Python API: one function per command, with the command's name, options, checks and error messages.

A function takes a model in one of five forms: a preset's name or a path, a parsed `config.json`, a configuration object
of `transformers`, the `Preset` that `load` returns, or a `ModelSpec`. Options have the names of the command line, with
underscores for dashes, and take what it takes (`seq="32k"`); those of the output (`--format`, `--output`, `--notes`,
`--table`, `--junit`) and `--offline` (the environment variable HF_HUB_OFFLINE) are of the command line alone. Every
function returns an answer with the document that the command prints with `--format json` (`.document`), the rows of its
tables (`.records()`), and whether the command would exit with 0 (`.ok`) where it checks something. All raise
`InputError` for bad input.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from .arguments import (
    Model,
    batch_size_of_phase,
    cache_format_of,
    checked_optional_choice,
    checked_optional_text,
    checked_options_instance,
    engine_questions_of,
    image_and_audio_inputs,
    model_filter_of,
    parse_optional_length,
    parse_optional_token_count,
    pop_reading_options,
    preset_of,
    require_hardware,
    require_model,
    run_options_of,
    run_question_of,
    sort_options,
)
from .errors import InputError, short_repr
from .optional import included_part_names
from .workload.counting import Pairs
from .workload.execution import AttentionImplementation, LatentForm
from .workload.setting import checked_length, checked_values, declarations_of, parse_number
from .workload.validation import (
    number_text,
    validate_choice,
    validate_path,
    validate_text,
    validate_texts,
    validate_whole,
)
from .workload.workload import Phase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .device_memory.settings import MemoryPhase
    from .page_server import PageServer
    from .plots.pictures import Picture
    from .questions.counts import PassPhase, Quantity
    from .questions.listings import ModelFileFormat
    from .reports.answer import ReportedAnswer
    from .reports.flops import Flops
    from .reports.kv import Cache
    from .reports.memory_answer import DeviceMemoryAnswer
    from .reports.params import Params
    from .reports.ranks_answer import RanksMemoryAnswer
    from .sources.preset import Preset
    from .symbolic.formulas import RecomputeChoice
    from .witnesses.reference import Device
    from .witnesses.verification import WitnessName


def params(
    model: Model,
    with_mtp: bool = False,
    with_towers: bool = False,
    *,
    measure: bool = False,
    draft: Model | None = None,
    **options: Any,
) -> Params:
    """Counts parameters, as exact integers: `.total`, `.active`, `.embedding`, `.by_component`.

    model: in any form; also a checkpoint (.safetensors, .gguf), whose header is counted. Of that there is `.total`.
    measure: whether to count by instantiating its class of transformers. Of that there is `.total`.
    draft: a draft of speculative decoding beside the model, in any form; `.draft` says what it adds.
    options: `set`, `head`, `allow_unknown`, and the sizes of a layout with `rank`, for what one rank holds.
    """
    from .questions.counts import ParamsQuestion, params_of_file

    parsed_options = sort_options(options, params, accepts_rank=True)
    included_parts, rank_request = included_part_names(with_mtp, with_towers), parsed_options.rank_request()
    if isinstance(model, str | Path):
        has_changed_model = bool(
            parsed_options.reading_options.get("set") or parsed_options.reading_options.get("head") or included_parts
        )
        file_params = params_of_file(
            str(model), measure, has_changed_model=has_changed_model, rank_request=rank_request
        )
        if file_params is not None and draft is not None:
            raise InputError(f"--draft: {model} is counted as it is; expected a model")
        if file_params is not None:
            return cast("Params", file_params)  # a checkpoint and a class have `total`, their report and nothing else
    elif measure:
        raise InputError("--measure: expected a path of a config.json or a hub id")
    return ParamsQuestion(included_parts, rank_request, parsed_options.read_draft_model(draft)).answer(
        parsed_options.read_model(model)
    )


def flops(
    model: Model,
    batch: int | str | None = None,
    seq: int | str | None = None,
    context: int | str | None = None,
    phase: Phase | None = None,
    pairs: Pairs = "full",
    with_mtp: bool = False,
    *,
    users: int | None = None,
    source: int | str | None = None,
    attn_implementation: AttentionImplementation = "eager",
    recompute: str = "none",
    mla: LatentForm = "auto",
    conventions: bool = False,
    tokens_per_second: str | float | None = None,
    hardware: str | None = None,
    devices: int | None = None,
    dtype: str | None = None,
    draft: Model | None = None,
    image: str | None = None,
    images: int | None = None,
    audio: float | None = None,
    **options: Any,
) -> Flops:
    """Counts the FLOPs of one pass: `.total` under the convention `pairs`, or under both, `.full` and `.causal`.

    Parts of the total are `.by_component`, `.per_token`, `.forward` and `.backward`. `.mla` is the form in which latent
    attention runs. For a measured run, `.utilization` has the MFU and HFU under each convention.

    batch: number of sequences; default 1. users: another name of it, in inference.
    seq: new tokens per sequence; default 2,048, or the number of learned positions where that is smaller. Decoding adds
        one token per sequence; there seq is the context if context is not given.
    context: tokens per sequence that are already in the cache.
    source: tokens that the encoder of an encoder-decoder reads; default as many as the decoder's.
    attn_implementation: kernels of attention, which decide the FLOPs of its backward pass; default eager.
    recompute: in training, what runs again in the backward pass: none (default), full, full-reentrant, selective,
        attention, attention+matmuls, every:N or nodes:A,B.
    mla: form of latent attention; default absorbed in decode and expanded in the other phases.
    phase: the pass; default forward, or training of a measured run.
    conventions: whether the report compares with rules of thumb.
    tokens_per_second: of a measured run, of all `devices` together (`"12k"`), on `hardware`.
    dtype: number format of the run's products, whose peak counts; default bf16.
    draft: a draft of speculative decoding beside the model, in any form; `.draft` has its FLOPs in the same pass.
    image: size of each image of a sequence in pixels, WIDTHxHEIGHT; its encoder's FLOPs count, and its tokens are added
        to the sequence. images: number of them; default 1. audio: seconds of audio, likewise. `.inputs` has the tokens.
    options: `set`, `head`, `allow_unknown`, and the sizes of a layout with `rank`, for what one rank computes.
    Raises `InputError` for a phase that the model does not have and for settings that contradict it.
    """
    from .questions.counts import FlopsQuestion
    from .studies.utilization import MeasuredRun

    parsed_options = sort_options(options, flops, accepts_rank=True)
    phase = checked_optional_choice("--phase", phase, Phase)
    flops_question = FlopsQuestion(
        batch_size_of_phase(batch, users, phase or "forward"),
        parse_optional_token_count(seq),
        parse_optional_length("--context", context, minimum=0),
        parse_optional_length("--source", source),
        phase,
        validate_choice("--pairs", pairs, Pairs),
        validate_choice("--attn-implementation", attn_implementation, AttentionImplementation),
        validate_text("--recompute", recompute, "full"),
        validate_choice("--mla", mla, LatentForm),
        conventions,
        included_part_names(with_mtp),
        parsed_options.rank_request(),
        MeasuredRun(tokens_per_second, hardware, parse_optional_length("--devices", devices), dtype),
        parsed_options.read_draft_model(draft),
        image_and_audio_inputs(image, images, audio),
    )
    return flops_question.answer(parsed_options.read_model(model))


@overload
def kv(
    model: Model,
    batch: int | str | None = None,
    seq: int | str | None = None,
    kv_dtype: str = "bf16",
    source: int | str | None = None,
    *,
    users: int | None = None,
    engine: None = None,
    draft: Model | None = None,
    image: str | None = None,
    images: int | None = None,
    audio: float | None = None,
    **options: Any,
) -> Cache: ...
@overload
def kv(
    model: Model,
    *,
    engine: str | Iterable[str],
    hardware: str | None = None,
    quantize: str | None = None,
    **options: Any,
) -> ReportedAnswer: ...
def kv(
    model: Model,
    batch: int | str | None = None,
    seq: int | str | None = None,
    kv_dtype: str = "bf16",
    source: int | str | None = None,
    *,
    users: int | None = None,
    engine: str | Iterable[str] | None = None,
    hardware: str | None = None,
    quantize: str | None = None,
    draft: Model | None = None,
    image: str | None = None,
    images: int | None = None,
    audio: float | None = None,
    **options: Any,
) -> Cache | ReportedAnswer:
    """Computes the bytes of the KV cache for `batch` sequences of `seq` tokens each.

    `.bytes` is the whole cache, `.bytes_per_token` its growth per token, `.by_layer_kind` the bytes by type of layer,
    `.what_if` the cache of changed models and `.growth` the cache by length.

    batch: number of sequences; default 1. users: another name of it.
    seq: tokens per sequence; default the model's context length, at most 32,768, or 2,048 if the model states none.
    kv_dtype: format of the cache; `dtype` is another name of it.
    source: tokens that the encoder of an encoder-decoder has read; default seq.
    engine: a serving engine (`vllm==0.19`), or several: what it allocates on `hardware`, by its own flags in `options`,
        beside weights in the scheme `quantize`.
    draft: a draft of speculative decoding beside the model, in any form; `.draft` has its cache.
    image: size of each image of a sequence in pixels, WIDTHxHEIGHT; its tokens are added to the sequence. images:
        number of them; default 1. audio: seconds of audio, likewise. `.inputs` has the tokens.
    options: `set`, `head`, `allow_unknown`, and the sizes of a layout with `rank`, for what one rank caches.
    Raises `InputError` for an encoder-only model and for an unknown format.
    """
    if engine is not None:
        from .questions.engines import ask_engine_cache, ask_servers

        media_options = {"image": image, "images": images, "audio": audio}
        _check_engine_options(batch=batch, users=users, seq=seq, source=source, draft=draft, **media_options)
        scheme_option = {} if quantize is None else {"quantize": quantize}
        return ask_servers(engine_questions_of(model, engine, hardware, options | scheme_option), ask_engine_cache)
    if hardware is not None:
        raise InputError("--hardware: only applies to the cache of an engine; add --engine, such as --engine vllm")
    from .questions.counts import SCHEME_WITHOUT_ENGINE_ERROR, CacheQuestion

    if quantize is not None:
        raise InputError(SCHEME_WITHOUT_ENGINE_ERROR)

    kv_dtype = options.pop("dtype", kv_dtype)
    parsed_options = sort_options(options, kv, accepts_rank=True)
    cache_question = CacheQuestion(
        batch_size_of_phase(batch, users, "decode"),
        parse_optional_token_count(seq),
        cache_format_of(kv_dtype),
        parse_optional_length("--source", source),
        parsed_options.rank_request(),
        parsed_options.read_draft_model(draft),
        image_and_audio_inputs(image, images, audio),
    )
    return cache_question.answer(parsed_options.read_model(model))


def explain(
    model: Model,
    node: str | None = None,
    quantity: Quantity = "all",
    *,
    seq: int | str | None = None,
    batch: int | str | None = None,
    attn_implementation: AttentionImplementation | None = None,
    recompute: RecomputeChoice | None = None,
    pairs: Pairs = "full",
    kv_dtype: str = "bf16",
    hardware: str | None = None,
    phase: PassPhase | None = None,
    stack: str | None = None,
    latex: bool = False,
    bibtex: bool = False,
    with_mtp: bool = False,
    **options: Any,
) -> ReportedAnswer:
    """Explains counts as formulas in symbols, with values: `.result` has them as SymPy expressions.

    node: a part, by the end of its path; default the whole model.
    quantity: params, flops, kv, activations, time, or all (default), which is parameters, FLOPs and caches.
    batch, attn_implementation, recompute: of a training pass; for activations alone (batch for time too).
    hardware, phase, stack: for time alone: the accelerator, the pass (default decode), and its software.
    latex, bibtex: whether the report's text is LaTeX, with BibTeX entries.
    options: `set`, `head`, `allow_unknown`, and the sizes of a layout with `rank`, for what one rank has.
    """
    from .questions.counts import ExplainQuestion, PassPhase, Quantity
    from .symbolic.formulas import RecomputeChoice

    kv_dtype = options.pop("dtype", kv_dtype)
    parsed_options = sort_options(options, explain, accepts_rank=True)
    explain_question = ExplainQuestion(
        node,
        validate_choice("--quantity", quantity, Quantity),
        parse_optional_token_count(seq),
        validate_choice("--pairs", pairs, Pairs),
        cache_format_of(kv_dtype),
        parse_optional_length("--batch", batch),
        checked_optional_choice("--attn-implementation", attn_implementation, AttentionImplementation),
        checked_optional_choice("--recompute", recompute, RecomputeChoice),
        latex,
        bibtex,
        included_part_names(with_mtp),
        parsed_options.rank_request(),
        hardware,
        checked_optional_choice("--phase", phase, PassPhase),
        stack,
    )
    return explain_question.answer(parsed_options.read_model(model))


@overload
def memory(
    model: Model,
    phase: MemoryPhase | None = None,
    *,
    launch: None = None,
    hardware: str | Iterable[str] | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    cublas_workspace: str | None = None,
    engine: None = None,
    draft: Model | None = None,
    **options: Any,
) -> DeviceMemoryAnswer | RanksMemoryAnswer: ...
@overload
def memory(
    model: Model | None = None,
    *,
    engine: str | Iterable[str],
    hardware: str | Iterable[str] | None = None,
    launch: str | Path | None = None,
    receipt: str | Path | None = None,
    **options: Any,
) -> ReportedAnswer: ...
@overload
def memory(
    model: Model | None = None, phase: MemoryPhase | None = None, *, launch: str | Path, **options: Any
) -> DeviceMemoryAnswer | RanksMemoryAnswer | ReportedAnswer: ...
def memory(
    model: Model | None = None,
    phase: MemoryPhase | None = None,
    *,
    launch: str | Path | None = None,
    hardware: str | Iterable[str] | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    cublas_workspace: str | None = None,
    engine: str | Iterable[str] | None = None,
    receipt: str | Path | None = None,
    draft: Model | None = None,
    **options: Any,
) -> DeviceMemoryAnswer | RanksMemoryAnswer | ReportedAnswer:
    """Computes the memory of one device, or of the ranks of a layout, in bytes.

    One device has `.device.peak_bytes`, `.device.device_bytes`, `.device.by_kind` and `.device.timeline`, and in
    `.states` the tensors that stay between passes, in closed form (`.total_bytes`, `.parts`). The sizes of a layout, or
    a launch file with them, give its ranks: `.peak` and `.by_rank`. `.fits` says on which accelerators the run fits.

    phase: training, prefill, decode or inference; default inference, or training if an option that only training has is
        given. launch: the file that starts the run, or servers of engines.
    hardware: accelerators on which it has to fit, of which the first one's runtime is taken; default an H100.
    options: `set`, `head`, `allow_unknown`; the settings of the run (batch=2, seq="32k", recompute="full") and of the
        layout (tp=8), by the names of the command line.
    engine: a serving engine (`vllm==0.19`), or several. `options` are its own flags then (max_model_len="32k"), and
        `.result` has the terms of its memory, the tokens of the cache, and whether it starts.
    receipt: with engine, a start-up log, whose measured terms stand in place of estimates.
    draft: a draft of speculative decoding beside the model, in any form, which the bytes count too.
    Raises `InputError` for an unknown setting, and for one that does not apply to the phase or the model.
    """
    has_servers = launch is not None and (engine is not None or _starts_servers(launch))
    if has_servers or engine is not None:
        from .questions.engines import ask_engine_memory, ask_servers

        _check_engine_options(phase=phase, with_mtp=with_mtp, with_towers=with_towers, draft=draft)
        _check_engine_options(receipt=receipt if has_servers else None)
        return ask_servers(engine_questions_of(model, engine, hardware, options, launch, receipt), ask_engine_memory)
    _require_no_receipt(receipt)
    from .questions.runs import ask_memory

    parsed_options = sort_options(options, memory, accepts_run=True, accepts_layout=True)
    question = run_question_of(parsed_options, model, launch, hardware, phase, cublas_workspace, with_mtp, with_towers)
    return ask_memory(question, parsed_options.read_draft_model(draft))


def _check_engine_options(**options: Any) -> None:
    """Raises `InputError` if any of these options has a value, because the options do not apply to engines."""
    for option_name, option_value in options.items():
        if option_value:
            raise InputError(f"{option_name}: is not of engines; remove it, or engine")


def _require_no_receipt(receipt: Any) -> None:
    """Raises `InputError` for a receipt without an engine."""
    if receipt is not None:
        raise InputError("--receipt: only applies to an engine; add --engine, such as --engine vllm")


def _starts_servers(launch: str | Path) -> bool:
    """Whether a launch file starts inference servers of serving engines."""
    from .frameworks.server_files.read import starts_any_server

    return starts_any_server(validate_path("--launch", launch))


def fit(
    model: Model | None = None,
    hardware: str | None = None,
    phase: MemoryPhase | None = None,
    *,
    launch: str | Path | None = None,
    global_batch: int | str | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    cublas_workspace: str | None = None,
    engine: str | None = None,
    receipt: str | Path | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Determines whether a run fits on an accelerator (`.ok`), and finds changes that would make the run fit.

    hardware: the accelerator; default common ones, each with the fewest on which it fits.
    phase: default inference, or training if an option that only training has is given.
    global_batch: with devices, sequences of a training step of all. options: as of `memory`.
    engine: a serving engine (`vllm`): the fewest accelerators on which it starts and holds the users.
    receipt: as of `memory`.
    launch: a file that starts servers of engines.
    """
    if engine is not None or launch is not None:
        from .questions.engines import ask_engine_fit, ask_servers

        _check_engine_options(phase=phase, global_batch=global_batch, with_mtp=with_mtp, with_towers=with_towers)
        users = parse_optional_length("--users", options.pop("users", None))
        seq, devices = parse_optional_token_count(options.pop("seq", None)), options.pop("devices", None)
        devices = None if devices is None else validate_whole("--devices", devices)
        _check_engine_options(receipt=None if launch is None else receipt)
        engine_questions = engine_questions_of(model, engine, hardware, options, launch, receipt)
        return ask_servers(
            engine_questions, lambda engine_question: ask_engine_fit(engine_question, users, seq, devices)
        )
    _require_no_receipt(receipt)
    model = require_model(model)
    from .questions.fits import ask_fit
    from .questions.runs import RunQuestion, with_implied_phase

    parsed_options = sort_options(options, fit, accepts_run=True, accepts_layout=True)
    run_options = run_options_of(
        parsed_options, hardware, phase, included_part_names(with_mtp, with_towers), cublas_workspace
    )
    training_option = "" if global_batch is None else "--global-batch"
    settings = with_implied_phase(
        run_options.settings, run_options.layout, parsed_options.setting_given_test(phase), training_option
    )
    run_question = RunQuestion(**vars(run_options) | {"settings": settings}, preset=parsed_options.read_model(model))
    return ask_fit(run_question, parse_optional_length("--global-batch", global_batch))


def plan(
    model: Model,
    hardware: str | None = None,
    phase: MemoryPhase | None = None,
    *,
    global_batch: int | str | None = None,
    rows: int | None = None,
    by: Literal["time", "memory"] | None = None,
    where: str | None = None,
    stack: str | None = None,
    overlap: str | None = None,
    nic: float | str | None = None,
    calibrate: str | Path | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    cublas_workspace: str | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Ranks layouts over many devices, best first: `.result.ranked_layouts.feasible`. `.ok`: whether any fits.

    global_batch: sequences of a step of all devices; default a micro-batch of each, at most about 4M tokens, or
        1,024 of each device if that is more.
    rows: layouts that are replayed; default 10.
    by: order of the layouts; default time where it can be estimated. where: sizes of a layout whose place in the order
        is asked for, such as "tp=8,pp=16". stack, overlap, nic, calibrate: as of `time`.
    options: as of `memory`; sizes of groups that are given hold for all layouts.
    """
    from .questions.plans import plan_settings
    from .questions.runs import RunQuestion
    from .questions.time_and_cost_options import TimeOptions
    from .questions.times import ask_timed_plan
    from .studies.plan import OrderName

    parsed_options = sort_options(options, plan, accepts_run=True, accepts_layout=True)
    run_options = run_options_of(
        parsed_options, require_hardware(hardware), phase, included_part_names(with_mtp, with_towers), cublas_workspace
    )
    settings = plan_settings(run_options.settings, parsed_options.setting_given_test(phase))
    run_question = RunQuestion(**vars(run_options) | {"settings": settings}, preset=parsed_options.read_model(model))
    by = checked_optional_choice("--by", by, OrderName)
    order_options = {"stack": stack, "overlap": overlap, "nic": nic, "calibrate": calibrate}
    time_options = TimeOptions(**checked_values(declarations_of(TimeOptions), order_options))
    return ask_timed_plan(
        run_question,
        time_options,
        parse_optional_length("--global-batch", global_batch),
        None if rows is None else validate_whole("--rows", rows),
        by,
        checked_optional_text("--where", where, "tp=8"),
        parsed_options.read_model,
    )


def time(
    model: Model | None = None,
    hardware: str | None = None,
    phase: MemoryPhase | None = None,
    *,
    launch: str | Path | None = None,
    engine: str | None = None,
    global_batch: int | str | None = None,
    context: int | str | None = None,
    server: bool = False,
    stack: str | None = None,
    overlap: str | None = None,
    nic: float | str | None = None,
    by_node: int | None = None,
    measured: float | str | None = None,
    calibrate: str | Path | None = None,
    with_mtp: bool = False,
    **options: Any,
) -> ReportedAnswer:
    """Estimates the seconds of a training step, of a prompt batch, or of one token of every sequence.

    `.result.time_range` has `.low`, `.estimate` and `.high`. The seconds are split in `.result.seconds_by_part`,
    `.result.seconds_by_bound` and `.result.nodes(depth)`.

    phase: training, prefill or decode; default decode, or training if an option that only training has is given.
    launch: the file that starts the run. engine: a serving engine (`vllm==0.19`); default vllm,
        or llama.cpp where that is usual (GGUF files, tags of Ollama's library, Apple's chips).
    global_batch: sequences of a step of all devices; default a micro-batch of each replica.
    context: in prefill, tokens that are cached before the prompt. server: whether a server's time before the first
        token is added.
    stack: software that is priced; default that of the framework or the engine. overlap: none, all, or some of dp, tp
        and ep ("dp,ep"). nic: GB/s of each device's network. by_node: levels of the model's tree that the report lists.
    measured: a measured time (8.1, "35ms") or rate of all devices ("2900 tok/s") or of one ("2900 tok/s/gpu", and model
        FLOPs with full pairs: "400 TFLOP/s", "41% MFU"), which the report compares with the range.
    calibrate: a .csv file of measured runs, on which the stack is fitted.
    options: as of `memory`.
    Raises `InputError` for what is not modelled, and for an accelerator without peaks or bandwidth.
    """
    from .questions.time_and_cost_options import TimeOptions
    from .questions.times import ask_time

    time_options = checked_options_instance(TimeOptions, locals())
    parsed_options = sort_options(options, time, accepts_run=True, accepts_layout=True)
    run_question = run_question_of(parsed_options, model, launch, hardware, phase, None, with_mtp)
    return ask_time(run_question, time_options, parsed_options.setting_given_test(phase), parsed_options.read_model)


def serve(
    model: Model,
    hardware: str | None = None,
    input: int | str | None = None,
    output: int | str | None = None,
    *,
    trace: str | Path | None = None,
    engine: str | None = None,
    quantize: str | None = None,
    kv_dtype: str | None = None,
    price: float | str | None = None,
    concurrency: int | str | None = None,
    rate: float | str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    prefix_hit: float | str | None = None,
    mem_fraction_static: float | str | None = None,
    draft: Model | None = None,
    acceptance: float | str | None = None,
    draft_tokens: int | None = None,
    disaggregate: str | None = None,
    devices: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    stack: str | None = None,
    nic: float | str | None = None,
    calibrate: str | Path | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Finds servers for a request load: `.result.chosen_server` is the cheapest server that meets the limits.

    `.result.servers` are all that fit by the engine's own rule, `.result.load_curves` their times by concurrency, and
    `.result.pareto_front` is the Pareto front.

    input, output: tokens of a prompt, default 1,024, and of an answer, default 128, as `vllm bench serve` sends.
    trace: a file of requests that are simulated in place of equal ones; the times of each server are in
        `.result.trace_times`. engine: vllm (default), sglang or tensorrt-llm.
    quantize, kv_dtype: formats to try, with commas between them; `auto` is the published one.
    price: money of a device and hour. concurrency: requests at any time. rate: requests per second, in its place.
    ttft, tpot: most seconds to the first token and of each further token ("300ms"). prefix_hit: share of a prompt
        that is cached. mem_fraction_static: share of the memory for weights and cache, of SGLang.
    draft: what drafts tokens: a model in any form, `mtp` (the model's own modules) or `ngram` (its text);
        acceptance: chance that a drafted token is accepted, or the tokens of a step, as engines print them (2.8);
        draft_tokens: tokens drafted in a step, default 3.
    disaggregate: "auto" for replicas of their own for prompts, or how many for how many that decode ("1:3").
    devices, tp, pp, dp, ep: the layout, which is the only one then; devices alone are those of the whole server.
    stack, nic, calibrate: as of `time`. options: `set`, `head`, `allow_unknown`.
    Raises `InputError` for what is not modelled.
    """
    from .questions.serving import ask_serve
    from .questions.time_and_cost_options import ServeOptions
    from .sources.hardware import accelerators_and_devices

    parsed_options = sort_options(options, serve)
    draft = draft if draft in (None, "mtp", "ngram") else parsed_options.read_draft_model(draft)
    (accelerator,), devices = accelerators_and_devices([require_hardware(hardware)], devices)
    serve_options = checked_options_instance(ServeOptions, locals())
    return ask_serve(parsed_options.read_model(model), accelerator, serve_options, parsed_options.read_model)


def cost(
    model: Model,
    hardware: str | None = None,
    phase: MemoryPhase | None = None,
    *,
    tokens: int | str | None = None,
    requests: int | str | None = None,
    input: int | str | None = None,
    output: int | str | None = None,
    concurrency: int | str | None = None,
    price: float | str | None = None,
    power: float | str | None = None,
    step: float | str | None = None,
    global_batch: int | str | None = None,
    engine: str | None = None,
    stack: str | None = None,
    overlap: str | None = None,
    nic: float | str | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Computes days, device hours, energy and money of a run.

    `.result.cost.days`, `.result.cost.energy_kwh` and so on each have `.estimate`, `.low` and `.high`.

    tokens: of a training run ("15T"), with the fastest layout of `devices` (default the fewest) that fits. step:
        seconds of a measured step.
    requests: to serve, each with `input` and `output` tokens (default as of `serve`), on the cheapest server.
        concurrency, engine: of it.
    price: money of a device and hour. power: watts of a device; default its TDP.
    global_batch: sequences of a step; default about 4M tokens, or 1,024 of each device if that is more.
    stack, overlap, nic: as of `time`.
    options: as of `memory`.
    Raises `InputError` for what is not modelled, and where nothing fits.
    """
    from .questions.costs import ask_cost
    from .questions.runs import RunQuestion
    from .questions.time_and_cost_options import CostOptions

    cost_options = checked_options_instance(CostOptions, locals())
    parsed_options = sort_options(options, cost, accepts_run=True, accepts_layout=True)
    run_options = run_options_of(parsed_options, require_hardware(hardware), phase, frozenset(), None)
    run_question = RunQuestion(**vars(run_options), preset=parsed_options.read_model(model))
    return ask_cost(run_question, cost_options, parsed_options.setting_given_test(phase))


def compare(
    *models: Model,
    all: bool = False,
    kind: str | None = None,
    attention: str | None = None,
    moe: bool | None = None,
    min_params: int | str | None = None,
    max_params: int | str | None = None,
    sort: str | None = None,
    seq: int | str | None = None,
    kv_dtype: str = "bf16",
    hardware: str | None = None,
    users: int | str | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Compares models: sizes, ratios of sizes, cost per token. `.result` has (preset, quantities) of each model.

    all: every preset that the filters take: kind, attention, moe, min_params, max_params.
    sort: quantity to order by, smallest first; default the order given. options: `set`, `head`, `allow_unknown`.
    hardware: accelerator on which a token of each of `users` sequences (default 1) is timed.
    """
    from .questions.comparisons import ask_compare, check_comparison_options
    from .questions.listings import select_presets
    from .sources.hardware import find_hardware

    kv_dtype = options.pop("dtype", kv_dtype)
    parsed_options = sort_options(options, compare)
    model_filter = model_filter_of(kind, attention, moe, min_params, max_params)
    check_comparison_options(bool(models), all, model_filter, sort)
    compared_models: list[tuple[Any, Any]] = select_presets(model_filter) if all else []
    if not all or parsed_options.reading_options.get("set") or parsed_options.reading_options.get("head"):
        chosen_names = [preset.name for preset, _ in compared_models] if all else models
        compared_models = [(parsed_options.read_model(model), None) for model in chosen_names]
    accelerator = None if hardware is None else find_hardware(validate_text("--hardware", hardware, "h100"))
    return ask_compare(
        compared_models,
        parse_optional_token_count(seq),
        cache_format_of(kv_dtype),
        sort,
        hardware=accelerator,
        users=parse_optional_length("--users", users),
    )


def diff(
    *models: Model,
    git: str | None = None,
    models_only: bool = False,
    seq: int | str | None = None,
    kv_dtype: str = "bf16",
    **options: Any,
) -> ReportedAnswer:
    """Compares two models, or with `git` files with their versions at a commit. `.result`: each pair's differences.

    models_only: with git, whether files that are no config of a model are skipped. options: `set`, `head`,
    `allow_unknown`.
    """
    from .questions.differences import ask_diff, model_pairs_to_compare

    kv_dtype = options.pop("dtype", kv_dtype)
    parsed_options = sort_options(options, diff)
    reading_options = parsed_options.reading_options
    head_choice = reading_options.get("head")
    allow_unknown = reading_options.get("allow_unknown", False)
    model_pairs = model_pairs_to_compare(
        models,
        parsed_options.read_model,
        git,
        models_only,
        head_choice,
        allow_unknown,
        bool(reading_options.get("set")),
    )
    return ask_diff(model_pairs, parse_optional_token_count(seq), cache_format_of(kv_dtype))


def shape(
    model: Model | None = None,
    *,
    params: int | str | None = None,
    flops: float | str | None = None,
    tokens: int | str | None = None,
    ffn_ratio: float | str | None = None,
    head_dim: int | None = None,
    kv_ratio: float | str | None = None,
    vocab: int | str | None = None,
    tie: bool | None = None,
    rows: int = 12,
    tolerance: float = 2.0,
    literature: bool = False,
    seq: int | str | None = None,
    kv_dtype: str = "bf16",
    set: str | Iterable[str] = (),
    allow_unknown: bool = False,
) -> ReportedAnswer:
    """Finds other shapes of the same budget, deep to wide, with the ratios of a model: `.result` is the study.

    params, flops, tokens: the budget, of parameters or of training FLOPs; default the model's own parameters.
    rows: shapes to show. tolerance: how far off the budget, in percent.
    """
    from .questions.comparisons import ShapeQuestion

    overrides = validate_texts("--set", set, "num_hidden_layers=12")
    shape_question = ShapeQuestion(
        params,
        flops,
        tokens,
        None if ffn_ratio is None else number_text("--ffn-ratio", ffn_ratio),
        None if head_dim is None else validate_whole("--head-dim", head_dim, 2, 4096),
        None if kv_ratio is None else number_text("--kv-ratio", kv_ratio),
        vocab,
        tie,
        validate_whole("--rows", rows, 1, 256),
        _tolerance_of(tolerance),
        parse_optional_token_count(seq),
        cache_format_of(kv_dtype),
    )
    return shape_question.answer(
        model, lambda target: preset_of(target, overrides, None, allow_unknown), overrides, cites_literature=literature
    )


def _tolerance_of(percent: Any) -> float:
    tolerance = parse_number("--tolerance", percent)
    if not 0.001 <= tolerance <= 50:
        raise InputError(f"--tolerance: {short_repr(percent)}; expected 0.001 to 50 percent")
    return tolerance


def budget(file: str | Path = "llmcalc.toml", skip_missing: bool = False) -> ReportedAnswer:
    """Checks the bounds in a budget file: `.result` lists all checks, and `.ok` is true if all bounds hold.

    skip_missing: whether a file that does not exist is a budget without bounds; default an error.
    """
    from .questions.witnesses import ask_budget

    return ask_budget(Path(validate_path("FILE", file)), skip_missing)


def explain_log(
    log: str | Path,
    model: Model | None = None,
    *,
    launch: str | Path | None = None,
    engine: str | None = None,
    hardware: str | None = None,
    quantize: str | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Compares a start-up log or an out-of-memory message with computed memory: `.result.terms` pairs the two values.

    log: its path. model: the model, where the log names none that is known.
    launch: the file that started the training run, as `memory` reads it.
    engine: the engine and its version (`vllm==0.19`), where the log names none. hardware: the accelerator.
    quantize: the scheme of the weights. options: `set`, `head`, `allow_unknown`.
    Raises `InputError` for a log of which nothing is known.
    """
    from .questions.logs import LogQuestion, ask_log

    log_path = validate_path("LOG", log)
    if launch is not None:
        validate_path("--launch", launch)
        from .questions.launched_logs import launched_run

        parsed_options = sort_options(options, explain_log)
        engine_options = {"--engine": engine, "--quantize": quantize}
        run_question = launched_run(
            launch, model, parsed_options.read_model, hardware, engine_options, **parsed_options.reading_options
        )
        return ask_log(LogQuestion(log_path, hardware=hardware, run=run_question))
    reading_options = pop_reading_options(options)
    sort_options(options, explain_log)
    preset = None if model is None else preset_of(model, **reading_options)
    return ask_log(LogQuestion(log_path, preset, engine, hardware, quantize))


def verify(
    *models: Model,
    all: bool = False,
    device: Device = "meta",
    against: WitnessName = "reference",
    batch: int | str = 1,
    seq: int | str | None = None,
    every_layer: bool = False,
    memory: bool = False,
    distributed: bool = False,
    num_microbatches: int | None = None,
    **options: Any,
) -> ReportedAnswer:
    """Compares every closed form with a running model; `.result.verdicts` has a verdict per model, `.ok` covers all.

    all: whether every preset is verified. options: `set`, `head`, `allow_unknown`, and with distributed the sizes of a
    layout. The others: as on the command line.
    """
    from .parallel.layout_request import LayoutRequest
    from .questions.witnesses import VerifyQuestion
    from .sources.presets import model_names
    from .witnesses.reference import Device
    from .witnesses.verification import WitnessName

    parsed_options = sort_options(options, verify, accepts_layout=True)
    verify_question = VerifyQuestion(
        all,
        validate_choice("--device", device, Device),
        validate_choice("--against", against, WitnessName),
        validate_whole("--batch", checked_length("--batch", batch), maximum=1024),
        parse_optional_length("--seq", seq, maximum=2**20),
        every_layer,
        memory,
        distributed,
        LayoutRequest(**checked_values(declarations_of(LayoutRequest), parsed_options.layout_options)),
        parse_optional_length("--num-microbatches", num_microbatches),
    )
    verify_question.check_targets(bool(models))
    return verify_question.answer(model_names() if all else models, parsed_options.read_model)


def check(checkpoint: str | Path, model: Model | None = None, **options: Any) -> ReportedAnswer:
    """Compares the tensors of a checkpoint with a model: `.result` has the missing, extra and misshapen tensors.

    checkpoint: a file, a folder or a hub id; only its header is read. options: `set`, `head`, `allow_unknown`.
    """
    from .questions.witnesses import ask_check, read_checkpoint_header

    parsed_options = sort_options(options, check)
    checkpoint_path = validate_path("CHECKPOINT", checkpoint)
    preset = parsed_options.read_model(require_model(model, f"; {short_repr(checkpoint)} is the checkpoint"))
    return ask_check(preset, checkpoint_path, read_checkpoint_header(checkpoint_path))


def convert(model: Model, to: ModelFileFormat = "toml", **options: Any) -> str:
    """Returns a model as text: llmcalc's own description (`toml`), or a config.json of transformers (`hf`)."""
    from .questions.listings import ModelFileFormat, convert_model

    return convert_model(sort_options(options, convert).read_model(model), validate_choice("--to", to, ModelFileFormat))


def presets(
    *names: str,
    kind: str | None = None,
    attention: str | None = None,
    moe: bool | None = None,
    min_params: int | str | None = None,
    max_params: int | str | None = None,
    sort: str = "name",
    details: bool = False,
    stale: bool = False,
) -> ReportedAnswer:
    """Lists the models that come with llmcalc, with details if named. `.result`: (preset, parameters) of each model.

    stale: whether to list only those none of whose sources was read within 180 days.
    """
    from .questions.listings import ask_presets

    sort = validate_text("--sort", sort, "name")
    return ask_presets(names, model_filter_of(kind, attention, moe, min_params, max_params), sort, details, stale)


def hardware(*names: str) -> ReportedAnswer:
    """Lists accelerators, by default all: `.result` has each accelerator's record, with figures and sources."""
    from .questions.listings import ask_hardware

    return ask_hardware([validate_text("NAME", hardware_name, "h100") for hardware_name in names])


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of llmcalc's TOML model descriptions."""
    from .sources.json_schema import description_schema

    return description_schema()


def lock(*models: str | Path, check: bool = False, allow_unknown: bool = False) -> ReportedAnswer:
    """Records the counts of models for a lock file: `.document` is the file, `.result` has an entry for each model.

    models: names or paths, which a check reads again. allow_unknown: whether to ignore misspelt fields and unknown
        sizes of a config.
    check: whether `models` is a lock file, default llmcalc.lock.json, whose models are counted again: `.ok` says
        whether nothing changed, `.result` what did.
    Raises `InputError` for a model that cannot be counted, and for a file that is no lock file.
    """
    from .questions.locks import LOCK_FILE, ask_lock, ask_lock_check

    def read_preset(model_target: str) -> Preset:
        return preset_of(model_target, allow_unknown=allow_unknown)

    model_targets = [
        str(model) if isinstance(model, Path) else validate_text("model", model, "llama3-8b") for model in models
    ]
    if check:
        if len(model_targets) > 1:
            raise InputError("check: checks one lock file; expected one path")
        return ask_lock_check(Path(model_targets[0] if model_targets else LOCK_FILE), read_preset)
    if not model_targets:
        raise InputError("model: missing; expected the models to lock, or check")
    return ask_lock(model_targets, read_preset)


def mcp(offline: bool = False) -> None:
    """Serves the tools of `llmcalc mcp` on standard input and output, until the client closes them.

    The server is a process of its own, because its protocol takes both streams. offline: whether hub ids are answered
    from the cache alone.
    Raises `InputError` where the server cannot start; the reason is on standard error.
    """
    import subprocess
    import sys

    server_command = [sys.executable, "-m", __package__, "mcp", *(["--offline"] if offline else [])]
    if subprocess.run(server_command, check=False).returncode:
        raise InputError("mcp: the server did not start; the line above says why")


def plot(
    picture: Picture,
    *models: Model,
    output: str | Path | None = None,
    columns: Literal[1, 2] | None = None,
    **options: Any,
) -> Figure:
    """Draws an answer as a figure of matplotlib, which a notebook displays.

    picture: memory, schedule, time, serve, roofline, params, kv, flops, shape or aspect.
    models: one for memory, time, serve and roofline, none for schedule and aspect.
    output: a .svg, .png or .pdf file that is written too.
    columns: of a paper, for which the picture is laid out, so that its text can be read at the width of one column (3.4
        inches) or of two; default for a screen.
    options: those of `llmcalc plot` with that picture; the tokens of an answer of serve are `output_tokens`.
    Raises `InputError` for an option that the picture does not have, and `MissingExtra` without matplotlib.
    """
    from .drawing import draw_picture
    from .plots.figure import paper_columns

    if columns is not None:
        validate_whole("--columns", columns, 1, 2)
    with paper_columns(columns):
        return draw_picture(picture, models, output, options, {"time": time, "serve": serve})


@overload
def web(port: int = 0, export: None = None, rebuild: bool = False, browser: bool = True) -> PageServer: ...
@overload
def web(port: int = 0, *, export: str | Path, rebuild: bool = False, browser: bool = True) -> Path: ...
def web(
    port: int = 0, export: str | Path | None = None, rebuild: bool = False, browser: bool = True
) -> PageServer | Path:
    """Serves the browser page from a thread. The answer has `.address` and `.close()`.

    port: default any that is free. export: a new folder that the page is written into, instead; it is returned.
    rebuild: whether the page is built anew. browser: whether a browser opens it.
    Raises `InputError` without a checkout of the repository, and for what the build lacks.
    """
    import webbrowser

    from .page_server import PageServer, build_page, check_export, export_page

    if export is not None:
        check_export(Path(export))
    page_folder, _ = build_page(rebuild)
    if export is not None:
        export_page(page_folder, Path(export))
        return Path(export)
    server = PageServer(page_folder, port)
    server.start()
    if browser:
        webbrowser.open(server.address)
    return server

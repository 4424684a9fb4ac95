"""The question of `llmcalc time`: the seconds of a training step, a prompt or a token, with ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..device_memory.settings import NARROW_PRODUCTS, Settings
from ..errors import InputError, shown
from ..parallel.layout import ONE_DEVICE, Layout
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset
from ..sources.target import load
from ..timing.calibration import UNCHANGED, Calibration
from ..workload.lora import PARALLEL_LIBRARIES
from ..workload.setting import declared, option
from .options import OPTIONS_OF_AN_ORDER, TimeOptions
from .runs import RunQuestion

if TYPE_CHECKING:
    from ..accelerator import Hardware
    from ..device_memory.estimate import Memory
    from ..frameworks.framework import Framework
    from ..parallel.layout_request import LayoutRequest
    from ..studies.plan import LayoutPlan, Order, Plan
    from ..studies.run_time import TimedRun, TimeSettings


def time_phase(question: RunQuestion, options: TimeOptions, is_given: Callable[[str], bool]) -> Settings:
    """Returns the settings with the phase to time filled in.

    Without `--phase`: a token, or a prompt of a model that does not decode; a training step if an option asks for it.
    Raises `InputError` for a phase without a time.
    """
    settings = question.settings
    if settings.phase != "inference":
        return settings
    if is_given("phase"):
        raise InputError("--phase inference: is two passes; expected prefill (a prompt) or decode (a token)")
    from ..timing.stack import stack_names

    can_train = options.stack in stack_names("training")
    if options.global_batch is not None or can_train:
        return settings.with_(phase="training")
    reads_prompt = bool(question.preset.model.model_without_tokens) or options.server or options.context is not None
    return settings.with_(phase="prefill" if reads_prompt else "decode")


def ask_time(
    question: RunQuestion,
    options: TimeOptions,
    is_given: Callable[[str], bool] = lambda name: False,
    read_model: Callable[[str], Preset] = load,
) -> ReportedAnswer:
    """Computes the seconds of a training step, a prompt batch or a token, with a range.

    read_model: reads the models of measured runs; default without changes.
    Raises `InputError` for options that contradict each other, and for what is not modelled.
    """
    question.refuse_inputs("time")
    from ..reports.calibration import with_calibration
    from ..reports.seconds import report
    from ..studies.run_time import explain_measured

    if question.hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    if len(question.accelerators) > 1:
        raise InputError("--hardware: the time is of one accelerator; expected it once")
    question = replace(question, settings=time_phase(question, options, is_given))
    options, calibration = _calibrated_options(question, options, read_model)
    estimated_run = timed_run(question, options)
    measured = options.measured
    explanation = None if measured is None else (measured, explain_measured(estimated_run, measured))
    return ReportedAnswer(
        estimated_run,
        lambda: with_calibration(report(question.preset, estimated_run, options.by_node, explanation), calibration),
    )


def _calibrated_options(
    question: RunQuestion, options: TimeOptions, read_model: Callable[[str], Preset] = load
) -> tuple[TimeOptions, Calibration | None]:
    """Returns the options with a calibrated software stack, and the calibration; None without `--calibrate`."""
    if options.calibrate is None:
        return options, None
    from .measured_rows import calibration_of

    calibration = calibration_of(options.calibrate, question, options, read_model, timed_run)
    return replace(options, factors=calibration.factors), calibration


def timed_run(question: RunQuestion, options: TimeOptions) -> TimedRun:
    """Returns the time of a run. Raises the `InputError`s of `ask_time`."""
    return (
        _training_time(question, options)
        if question.settings.phase == "training"
        else _inference_time(question, options)
    )


def _training_time(question: RunQuestion, options: TimeOptions) -> TimedRun:
    from ..frameworks.registry import NAMES as FRAMEWORK_NAMES
    from ..frameworks.registry import framework
    from ..parallel.nearest import suggest_nearest_layouts
    from ..studies.run_time import time_training

    for name in ("engine", "context", "server"):
        if getattr(options, name):
            raise InputError(f"{option(name)}: is of inference; expected --phase prefill or decode")
    hardware = question.hardware
    assert hardware is not None
    layout_question = question.preset.model, question.layout, question.tokens
    with suggest_nearest_layouts(*layout_question):
        memory, record, layout = training_run(question)
        micro_batches, chosen_options = micro_batches_of(memory, layout, options.global_batch), ""
        needed_bytes = _bytes_of_training(memory, record, layout, micro_batches)
        fastest = _fastest_fitting_layout(question, options) if needed_bytes > hardware.capacity_bytes else None
        if fastest is not None:
            candidate, record = fastest.plan.feasible[0], fastest.framework
            memory = fastest.estimates.with_recompute(candidate.recompute).memory
            layout, micro_batches = candidate.layout, candidate.micro_batches
            chosen_options = f"{candidate.options} {fastest.assumed_batch}".strip()
        settings = time_settings(question, record, options)
    adapters = memory.states.adapters
    divides_adapters = adapters is not None and adapters.library in PARALLEL_LIBRARIES
    check_layout = partial(record.check_layout, memory) if divides_adapters else None
    with suggest_nearest_layouts(*layout_question, check_layout=check_layout):
        if check_layout is not None:  # as `memory` refuses it
            check_layout(layout)
        timed_run = time_training(memory, hardware, layout, micro_batches, settings)
    precision = question.settings.precision or ""
    is_planned = precision not in NARROW_PRODUCTS or any(
        precision in framework(name).narrow_precisions for name in FRAMEWORK_NAMES
    )
    return replace(timed_run, resident_bytes=needed_bytes, chosen_options=chosen_options, is_planned=is_planned)


def _bytes_of_training(memory: Memory, record: Framework, layout: Layout, micro_batches: int) -> int:
    """Returns the tensors of a layout's largest rank at its peak, or without the activations if these are not known."""
    estimate = record.estimate(memory)
    try:
        return max(estimate.least_bytes(layout), estimate.largest_rank(layout, micro_batches)[0])
    except InputError:
        return estimate.least_bytes(layout)


def _fastest_fitting_layout(question: RunQuestion, options: TimeOptions) -> LayoutPlan | None:
    """Returns the plan of a run over devices without a layout; None with a layout, and where nothing fits."""
    if not question.layout.is_undivided or question.launch is not None or question.settings.num_microbatches:
        return None
    try:
        return fastest_plan(question, options, options.global_batch)
    except InputError:
        return None


def fastest_plan(question: RunQuestion, options: TimeOptions, global_batch: int | None) -> LayoutPlan:
    """Returns the plan of layouts over devices, sorted by time. Raises `InputError` if no layout fits."""
    from ..studies.plan import early_end_error, plan_of
    from .runs import answer_that_fits

    hardware = question.hardware
    assert hardware is not None
    layout_plan = answer_that_fits(
        question,
        lambda memory, layout: plan_of(
            memory,
            hardware,
            layout,
            global_batch,
            1,
            order_name="time",
            nearest="never",
            time_settings=lambda record: time_settings(question, record, options),
        ),
        lambda layout_plan: bool(layout_plan.plan.feasible),
    )
    if layout_plan.plan.ended_early and not layout_plan.plan.feasible:
        raise early_end_error(layout_plan)
    if not layout_plan.plan.feasible or layout_plan.plan.feasible[0].seconds is None:
        raise _no_layout_error(layout_plan.plan, question, question.layout.devices)
    return layout_plan


def _no_layout_error(plan: Plan, question: RunQuestion, devices: int | None) -> InputError:
    """Returns the error for a training run of which no layout fits: for lack of memory, or of a model of its time."""
    from ..parallel.search import BATCH
    from ..studies.plan import TOO_MUCH

    assert question.hardware is not None
    if plan.refused and TOO_MUCH not in plan.refused:
        reason = max(plan.refused, key=plan.refused.__getitem__)
        if reason == BATCH:
            replicas = f"--global-batch as a multiple of {devices}, or another number of devices"
            return InputError(
                f"--devices {devices}: {plan.tried:,} layouts were tried, and {reason}; expected {replicas}"
            )
        return InputError(
            f"--devices {devices}: none of {plan.tried:,} layouts can be counted, most because {reason}; expected "
            "--step with a measured step"
        )
    more_memory = "more devices" if question.settings.recompute == "full" else "more devices, --recompute full"
    return InputError(
        f"--devices {devices}: no layout of {plan.tried:,} fits the memory of {question.hardware.title}; expected "
        f"{more_memory}, or --step with a measured step"
    )


def training_run(question: RunQuestion) -> tuple[Memory, Framework, Layout]:
    """Returns a training run on one device, its framework and its layout.

    Of several devices without a framework it is the one that `plan` takes, else that of `memory`.
    """
    from ..frameworks.registry import framework, framework_of, layout_of
    from .runs import planned_run

    if question.launch is not None:
        record = framework(question.launch.framework)
        return question.with_framework(record).on_one_device(), record, question.launch.layout
    layout = question.layout
    if layout.has_options and (layout.framework is None or framework_of(layout).name == layout.framework):
        needs_framework = layout.framework is not None and question.settings.lora_rank is not None
        _, layout = planned_run(_without_adapters(question) if needs_framework else question)
        record = framework_of(layout)
        return question.with_framework(record).on_one_device(), record, layout_of(layout)
    record = framework_of(layout)
    return question.with_framework(record).on_one_device(), record, ONE_DEVICE


def _without_adapters(question: RunQuestion) -> RunQuestion:
    """Returns the question about the same run without low-rank adapters.

    Frameworks whose memory of adapters is not modelled are checked with it: their time is that of two small products.
    """
    defaults = Settings(question.settings.phase)
    adapters = [name for name, field in declared(Settings).items() if "lora_rank" in (name, field.setting.needs)]
    return replace(question, settings=question.settings.with_(**{name: getattr(defaults, name) for name in adapters}))


def micro_batches_of(memory: Memory, layout: Layout, global_batch: int | None) -> int:
    """Returns the number of micro-batches per step.

    Raises `InputError` for a global batch that replicas and micro-batches do not divide, or that is given twice.
    """
    micro_batches = memory.settings.num_microbatches
    if global_batch is None:
        return micro_batches or layout.pp
    if micro_batches is not None:
        raise InputError("--global-batch: --num-microbatches says it already; expected one of the two")
    sequences_per_pass = layout.dp * int(memory.states.workload.batch)
    if global_batch % sequences_per_pass:
        raise InputError(
            f"--global-batch {global_batch}: expected a multiple of {sequences_per_pass}, "
            f"a micro-batch of each of {layout.dp} "
            "replicas"
        )
    return global_batch // sequences_per_pass


def time_settings(question: RunQuestion, record: Framework, options: TimeOptions) -> TimeSettings:
    """Returns the settings of a training time estimate with a framework."""
    from ..studies.run_time import TimeSettings
    from ..timing.stack import stack_of_vendor

    launch = question.launch
    file_settings = None if launch is None else launch.own_settings
    has_format = record.product_format is not None and file_settings is not None
    stack = options.stack or record.stack(launch, bool(question.settings.compile))
    if options.stack is None and launch is None and question.hardware is not None:
        stack = stack_of_vendor(question.hardware.vendor, "training") or stack
    return TimeSettings(
        stack,
        options.overlap,
        options.nic,
        record.product_format(file_settings) if has_format and record.product_format is not None else "",
        options.factors or UNCHANGED,
    )


def layout_time_settings(
    question: RunQuestion, order_name: str | None, options: TimeOptions
) -> Callable[[Framework], TimeSettings]:
    """Returns the settings of a plan's time estimates for each framework.

    Raises `InputError` for options of time in a plan by memory.
    """
    for name in OPTIONS_OF_AN_ORDER:
        if order_name == "memory" and getattr(options, name) is not None:
            raise InputError(f"{option(name)}: is of the order by time; expected --by time")
    return lambda record: time_settings(question, record, options)


def ask_timed_plan(
    question: RunQuestion,
    options: TimeOptions,
    global_batch: int | None = None,
    rows: int = 10,
    order_name: Order | None = None,
    where: str | None = None,
    read_model: Callable[[str], Preset] = load,
) -> ReportedAnswer:
    """Finds the layouts of `ask_plan` sorted by estimated time, calibrated on measured runs if a file is named.

    Raises `InputError` as that does, and for options of time in a plan by memory.
    """
    from ..reports.calibration import with_calibration
    from .runs import ask_plan

    layout_time_settings(question, order_name, options)  # refuses options of time in a plan by memory
    if any(getattr(options, name) is not None for name in OPTIONS_OF_AN_ORDER):
        order_name = "time"  # what cannot be timed with them is refused
    options, calibration = _calibrated_options(question, options, read_model)
    answer = ask_plan(
        question, global_batch, rows, order_name, where, layout_time_settings(question, order_name, options)
    )
    return replace(answer, make_report=lambda: with_calibration(answer.report(), calibration))


def _inference_time(question: RunQuestion, options: TimeOptions) -> TimedRun:
    from ..parallel.nearest import suggest_nearest_layouts
    from ..studies.decoding import usual_stack
    from ..studies.run_time import TimeSettings, in_format_of_stack, time_inference

    if options.global_batch is not None:
        raise InputError("--global-batch: is of training; expected --users, the sequences of a batch")
    phase, cached_tokens = question.settings.phase, options.context or 0
    for name in ("context", "server"):
        if getattr(options, name) and phase == "decode":
            expected_option = "--seq, the tokens in the cache" if name == "context" else "--phase prefill"
            raise InputError(f"{option(name)}: is of prompts; expected {expected_option}")
    hardware = question.hardware
    assert hardware is not None
    layout_request, memory = question.layout, question.on_one_device()
    for name in ("pp_layout", "cp", "zero", "fsdp", "vpp", "schedule"):
        if getattr(layout_request, name) not in (None, 1, 0):
            raise InputError(f"{option(name)}: is of training; expected --phase training")
    with suggest_nearest_layouts(question.preset.model, layout_request, question.tokens):
        settings = TimeSettings(
            options.stack
            or (stack_of_engine(options.engine, hardware) if options.engine else usual_stack(hardware, memory)),
            options.overlap,
            options.nic,
            factors=options.factors or UNCHANGED,
        )
        memory = in_format_of_stack(memory, settings.supporting_stack("decode"))
        layout = serving_layout(memory, hardware, layout_request)
        return time_inference(memory, hardware, layout, settings, cached_tokens, options.server)


def serving_layout(memory: Memory, hardware: Hardware, layout_request: LayoutRequest) -> Layout:
    """Returns the layout of an inference pass: the requested layout, or as many replicas as fit the devices."""
    from ..studies.fit_serving import serving_replicas

    if not layout_request.is_undivided:
        return layout_request.layout()
    return serving_replicas(memory.with_(phase="inference"), hardware, layout_request)[1].layout


def stack_of_engine(engine: str | None, hardware: Hardware) -> str:
    """Returns an engine's time stack: the record's stack for the version, else the stack with the engine's name.

    Raises `InputError` for an unknown engine, and for one that does not run on the accelerator.
    """
    from ..frameworks.engines.registry import FOLDERS, USUAL_ENGINE, engine_and_version
    from ..frameworks.engines.registry import engine as registered_engine
    from ..frameworks.engines.versions import numbers_of
    from ..timing.stack import stack_names

    name = (engine or USUAL_ENGINE).partition("==")[0].strip().lower()
    if name not in FOLDERS and engine is not None and "==" not in engine and name in stack_names("inference"):
        return name
    if name not in FOLDERS:
        known_names = sorted({*FOLDERS, *stack_names("inference")})
        raise InputError(
            f"--engine {shown(engine)}: not known; expected NAME or NAME==VERSION of {', '.join(FOLDERS)}, "
            f"or one of {', '.join(known_names)}"
        )
    record, version = engine_and_version(engine or USUAL_ENGINE)
    if not record.is_timed_on(hardware):
        other_engines = [f"--engine {name}, or " for name in FOLDERS if registered_engine(name).is_timed_on(hardware)][
            :1
        ]
        raise InputError(
            f"--engine {shown(engine)}: times of {record.title} on {hardware.title} are not modelled; expected "
            f"{''.join(other_engines)}{record.supported_accelerators}"
        )
    return record.stack(numbers_of(version.version))

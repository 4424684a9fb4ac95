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


def time_phase(
    run_question: RunQuestion, time_options: TimeOptions, is_setting_given: Callable[[str], bool]
) -> Settings:
    """Returns the settings with the phase to time filled in.

    Without `--phase`: a token, or a prompt of a model that does not decode; a training step if an option asks for it.
    Raises `InputError` for a phase without a time.
    """
    settings = run_question.settings
    if settings.phase != "inference":
        return settings
    if is_setting_given("phase"):
        raise InputError("--phase inference: is two passes; expected prefill (a prompt) or decode (a token)")
    from ..timing.stack import stack_names

    can_train = time_options.stack in stack_names("training")
    if time_options.global_batch is not None or can_train:
        return settings.with_(phase="training")
    reads_prompt = (
        bool(run_question.preset.model.model_without_tokens) or time_options.server or time_options.context is not None
    )
    return settings.with_(phase="prefill" if reads_prompt else "decode")


def ask_time(
    run_question: RunQuestion,
    time_options: TimeOptions,
    is_setting_given: Callable[[str], bool] = lambda setting_name: False,
    read_model: Callable[[str], Preset] = load,
) -> ReportedAnswer:
    """Computes the seconds of a training step, a prompt batch or a token, with a range.

    read_model: reads the models of measured runs; default without changes.
    Raises `InputError` for options that contradict each other, and for what is not modelled.
    """
    run_question.refuse_inputs("time")
    from ..reports.calibration import with_calibration
    from ..reports.seconds import report
    from ..studies.run_time import explain_measured

    if run_question.hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    if len(run_question.accelerators) > 1:
        raise InputError("--hardware: the time is of one accelerator; expected it once")
    run_question = replace(run_question, settings=time_phase(run_question, time_options, is_setting_given))
    time_options, calibration = _calibrated_options(run_question, time_options, read_model)
    estimated_run = timed_run(run_question, time_options)
    measured_seconds = time_options.measured
    explanation = (
        None if measured_seconds is None else (measured_seconds, explain_measured(estimated_run, measured_seconds))
    )
    return ReportedAnswer(
        estimated_run,
        lambda: with_calibration(
            report(run_question.preset, estimated_run, time_options.by_node, explanation), calibration
        ),
    )


def _calibrated_options(
    run_question: RunQuestion, time_options: TimeOptions, read_model: Callable[[str], Preset] = load
) -> tuple[TimeOptions, Calibration | None]:
    """Returns the options with a calibrated software stack, and the calibration; None without `--calibrate`."""
    if time_options.calibrate is None:
        return time_options, None
    from .measured_rows import calibration_of

    calibration = calibration_of(time_options.calibrate, run_question, time_options, read_model, timed_run)
    return replace(time_options, factors=calibration.factors), calibration


def timed_run(run_question: RunQuestion, time_options: TimeOptions) -> TimedRun:
    """Returns the time of a run. Raises the `InputError`s of `ask_time`."""
    return (
        _training_time(run_question, time_options)
        if run_question.settings.phase == "training"
        else _inference_time(run_question, time_options)
    )


def _training_time(run_question: RunQuestion, time_options: TimeOptions) -> TimedRun:
    from ..frameworks.registry import NAMES as FRAMEWORK_NAMES
    from ..frameworks.registry import framework
    from ..parallel.nearest import suggest_nearest_layouts
    from ..studies.run_time import time_training

    for option_field in ("engine", "context", "server"):
        if getattr(time_options, option_field):
            raise InputError(f"{option(option_field)}: is of inference; expected --phase prefill or decode")
    hardware = run_question.hardware
    assert hardware is not None
    layout_question = run_question.preset.model, run_question.layout, run_question.tokens
    with suggest_nearest_layouts(*layout_question):
        single_device_memory, framework_record, layout = training_run(run_question)
        micro_batches, chosen_options = micro_batches_of(single_device_memory, layout, time_options.global_batch), ""
        needed_bytes = _bytes_of_training(single_device_memory, framework_record, layout, micro_batches)
        fastest_layout_plan = (
            _fastest_fitting_layout(run_question, time_options) if needed_bytes > hardware.capacity_bytes else None
        )
        if fastest_layout_plan is not None:
            candidate, framework_record = fastest_layout_plan.plan.feasible[0], fastest_layout_plan.framework
            single_device_memory = fastest_layout_plan.estimates.with_recompute(candidate.recompute).memory
            layout, micro_batches = candidate.layout, candidate.micro_batches
            chosen_options = f"{candidate.options} {fastest_layout_plan.assumed_batch}".strip()
        time_settings_of_run = time_settings(run_question, framework_record, time_options)
    adapters = single_device_memory.states.adapters
    divides_adapters = adapters is not None and adapters.library in PARALLEL_LIBRARIES
    check_layout = partial(framework_record.check_layout, single_device_memory) if divides_adapters else None
    with suggest_nearest_layouts(*layout_question, check_layout=check_layout):
        if check_layout is not None:  # as `memory` refuses it
            check_layout(layout)
        timed_run = time_training(single_device_memory, hardware, layout, micro_batches, time_settings_of_run)
    precision = run_question.settings.precision or ""
    is_planned = precision not in NARROW_PRODUCTS or any(
        precision in framework(option_field).narrow_precisions for option_field in FRAMEWORK_NAMES
    )
    return replace(timed_run, resident_bytes=needed_bytes, chosen_options=chosen_options, is_planned=is_planned)


def _bytes_of_training(
    single_device_memory: Memory, framework_record: Framework, layout: Layout, micro_batches: int
) -> int:
    """Returns the peak tensor bytes of a layout's largest rank; without activations if they are unknown."""
    memory_estimate = framework_record.estimate(single_device_memory)
    try:
        return max(memory_estimate.least_bytes(layout), memory_estimate.largest_rank(layout, micro_batches)[0])
    except InputError:
        return memory_estimate.least_bytes(layout)


def _fastest_fitting_layout(run_question: RunQuestion, time_options: TimeOptions) -> LayoutPlan | None:
    """Returns the plan for a run without a stated layout; None for a stated layout, or if no layout fits."""
    if (
        not run_question.layout.is_undivided
        or run_question.launch is not None
        or run_question.settings.num_microbatches
    ):
        return None
    try:
        return fastest_plan(run_question, time_options, time_options.global_batch)
    except InputError:
        return None


def fastest_plan(run_question: RunQuestion, time_options: TimeOptions, global_batch: int | None) -> LayoutPlan:
    """Returns the plan of layouts over devices, sorted by time. Raises `InputError` if no layout fits."""
    from ..studies.plan import ended_search_error, plan_of
    from .runs import answer_that_fits

    hardware = run_question.hardware
    assert hardware is not None
    layout_plan = answer_that_fits(
        run_question,
        lambda single_device_memory, layout: plan_of(
            single_device_memory,
            hardware,
            layout,
            global_batch,
            1,
            order_name="time",
            nearest="never",
            time_settings=lambda framework_record: time_settings(run_question, framework_record, time_options),
        ),
        lambda layout_plan: bool(layout_plan.plan.feasible),
    )
    if layout_plan.plan.ended_early and not layout_plan.plan.feasible:
        raise ended_search_error(layout_plan)
    if not layout_plan.plan.feasible or layout_plan.plan.feasible[0].seconds is None:
        raise _no_layout_error(layout_plan.plan, run_question, run_question.layout.devices)
    return layout_plan


def _no_layout_error(layout_search: Plan, run_question: RunQuestion, devices: int | None) -> InputError:
    """Returns the error for a training run without a layout that fits, or without a layout with a modelled time."""
    from ..studies.plan import TOO_MUCH

    assert run_question.hardware is not None
    if layout_search.refused and TOO_MUCH not in layout_search.refused:
        common_reason = max(layout_search.refused, key=layout_search.refused.__getitem__)
        return InputError(
            f"--devices {devices}: none of {layout_search.tried:,} layouts can be counted, most because {common_reason}; expected "
            "--step with a measured step"
        )
    more_memory = "more devices" if run_question.settings.recompute == "full" else "more devices, --recompute full"
    return InputError(
        f"--devices {devices}: no layout of {layout_search.tried:,} fits the memory of {run_question.hardware.title}; expected "
        f"{more_memory}, or --step with a measured step"
    )


def training_run(run_question: RunQuestion) -> tuple[Memory, Framework, Layout]:
    """Returns a training run on one device, its framework and its layout.

    Of several devices without a framework it is the one that `plan` takes, else that of `memory`.
    """
    from ..frameworks.registry import framework, framework_of, layout_of
    from .runs import planned_run

    if run_question.launch is not None:
        framework_record = framework(run_question.launch.framework)
        return (
            run_question.with_framework(framework_record).on_one_device(),
            framework_record,
            run_question.launch.layout,
        )
    layout = run_question.layout
    if layout.has_options and (layout.framework is None or framework_of(layout).name == layout.framework):
        needs_framework = layout.framework is not None and run_question.settings.lora_rank is not None
        _, layout = planned_run(_without_adapters(run_question) if needs_framework else run_question)
        framework_record = framework_of(layout)
        return run_question.with_framework(framework_record).on_one_device(), framework_record, layout_of(layout)
    framework_record = framework_of(layout)
    return run_question.with_framework(framework_record).on_one_device(), framework_record, ONE_DEVICE


def _without_adapters(run_question: RunQuestion) -> RunQuestion:
    """Returns the question about the same run without low-rank adapters.

    Frameworks whose memory of adapters is not modelled are checked with it: their time is that of two small products.
    """
    defaults = Settings(run_question.settings.phase)
    adapters = [
        setting_name
        for setting_name, setting_field in declared(Settings).items()
        if "lora_rank" in (setting_name, setting_field.setting.needs)
    ]
    return replace(
        run_question,
        settings=run_question.settings.with_(
            **{setting_name: getattr(defaults, setting_name) for setting_name in adapters}
        ),
    )


def micro_batches_of(single_device_memory: Memory, layout: Layout, global_batch: int | None) -> int:
    """Returns the number of micro-batches per step.

    Raises `InputError` for a global batch that replicas and micro-batches do not divide, or that is given twice.
    """
    micro_batches = single_device_memory.settings.num_microbatches
    if global_batch is None:
        return micro_batches or 1
    if micro_batches is not None:
        raise InputError("--global-batch: --num-microbatches says it already; expected one of the two")
    sequences_per_pass = layout.dp * int(single_device_memory.states.workload.batch)
    if global_batch % sequences_per_pass:
        raise InputError(
            f"--global-batch {global_batch}: expected a multiple of {sequences_per_pass}, "
            f"a micro-batch of each of {layout.dp} "
            "replicas"
        )
    return global_batch // sequences_per_pass


def time_settings(run_question: RunQuestion, framework_record: Framework, time_options: TimeOptions) -> TimeSettings:
    """Returns the settings of a training time estimate with a framework."""
    from ..studies.run_time import TimeSettings
    from ..timing.stack import stack_of_vendor

    launch = run_question.launch
    file_settings = None if launch is None else launch.own_settings
    has_format = framework_record.product_format is not None and file_settings is not None
    software_stack = time_options.stack or framework_record.stack(launch, bool(run_question.settings.compile))
    if time_options.stack is None and launch is None and run_question.hardware is not None:
        software_stack = stack_of_vendor(run_question.hardware.vendor, "training") or software_stack
    return TimeSettings(
        software_stack,
        time_options.overlap,
        time_options.nic,
        framework_record.product_format(file_settings)
        if has_format and framework_record.product_format is not None
        else "",
        time_options.factors or UNCHANGED,
    )


def layout_time_settings(
    run_question: RunQuestion, order_name: str | None, time_options: TimeOptions
) -> Callable[[Framework], TimeSettings]:
    """Returns the settings of a plan's time estimates for each framework.

    Raises `InputError` for options of time in a plan by memory.
    """
    for option_field in OPTIONS_OF_AN_ORDER:
        if order_name == "memory" and getattr(time_options, option_field) is not None:
            raise InputError(f"{option(option_field)}: is of the order by time; expected --by time")
    return lambda framework_record: time_settings(run_question, framework_record, time_options)


def ask_timed_plan(
    run_question: RunQuestion,
    time_options: TimeOptions,
    global_batch: int | None = None,
    row_count: int = 10,
    order_name: Order | None = None,
    size_filter: str | None = None,
    read_model: Callable[[str], Preset] = load,
) -> ReportedAnswer:
    """Finds the layouts of `ask_plan` sorted by estimated time, calibrated on measured runs if a file is named.

    Raises `InputError` as that does, and for options of time in a plan by memory.
    """
    from ..reports.calibration import with_calibration
    from .runs import ask_plan

    layout_time_settings(run_question, order_name, time_options)  # refuses options of time in a plan by memory
    if any(getattr(time_options, option_field) is not None for option_field in OPTIONS_OF_AN_ORDER):
        order_name = "time"  # what cannot be timed with them is refused
    time_options, calibration = _calibrated_options(run_question, time_options, read_model)
    plan_answer = ask_plan(
        run_question,
        global_batch,
        row_count,
        order_name,
        size_filter,
        layout_time_settings(run_question, order_name, time_options),
    )
    return replace(plan_answer, make_report=lambda: with_calibration(plan_answer.report(), calibration))


def _inference_time(run_question: RunQuestion, time_options: TimeOptions) -> TimedRun:
    from ..parallel.nearest import suggest_nearest_layouts
    from ..studies.decoding import usual_stack
    from ..studies.run_time import TimeSettings, in_format_of_stack, time_inference

    if time_options.global_batch is not None:
        raise InputError("--global-batch: is of training; expected --users, the sequences of a batch")
    phase, cached_tokens = run_question.settings.phase, time_options.context or 0
    for option_field in ("context", "server"):
        if getattr(time_options, option_field) and phase == "decode":
            expected_option = "--seq, the tokens in the cache" if option_field == "context" else "--phase prefill"
            raise InputError(f"{option(option_field)}: is of prompts; expected {expected_option}")
    hardware = run_question.hardware
    assert hardware is not None
    layout_request, single_device_memory = run_question.layout, run_question.on_one_device()
    for option_field in ("pp_layout", "cp", "zero", "fsdp", "vpp", "schedule"):
        if getattr(layout_request, option_field) not in (None, 1, 0):
            raise InputError(f"{option(option_field)}: is of training; expected --phase training")
    with suggest_nearest_layouts(run_question.preset.model, layout_request, run_question.tokens):
        settings = TimeSettings(
            time_options.stack
            or (
                stack_of_engine(time_options.engine, hardware)
                if time_options.engine
                else usual_stack(hardware, single_device_memory)
            ),
            time_options.overlap,
            time_options.nic,
            factors=time_options.factors or UNCHANGED,
        )
        single_device_memory = in_format_of_stack(single_device_memory, settings.supporting_stack("decode"))
        layout = serving_layout(single_device_memory, hardware, layout_request)
        return time_inference(single_device_memory, hardware, layout, settings, cached_tokens, time_options.server)


def serving_layout(single_device_memory: Memory, hardware: Hardware, layout_request: LayoutRequest) -> Layout:
    """Returns the layout of an inference pass: the requested layout, or as many replicas as fit the devices."""
    from ..studies.fit_serving import serving_replicas

    if not layout_request.is_undivided:
        return layout_request.layout()
    return serving_replicas(single_device_memory.with_(phase="inference"), hardware, layout_request)[1].layout


def stack_of_engine(engine_text: str | None, hardware: Hardware) -> str:
    """Returns an engine's time stack: the record's stack for the version, else the stack with the engine's name.

    Raises `InputError` for an unknown engine, and for one that does not run on the accelerator.
    """
    from ..frameworks.engines.registry import FOLDERS, USUAL_ENGINE, engine_and_version
    from ..frameworks.engines.registry import engine as registered_engine
    from ..frameworks.engines.versions import numbers_of
    from ..timing.stack import stack_names

    engine_name = (engine_text or USUAL_ENGINE).partition("==")[0].strip().lower()
    if (
        engine_name not in FOLDERS
        and engine_text is not None
        and "==" not in engine_text
        and engine_name in stack_names("inference")
    ):
        return engine_name
    if engine_name not in FOLDERS:
        known_names = sorted({*FOLDERS, *stack_names("inference")})
        raise InputError(
            f"--engine {shown(engine_text)}: not known; expected NAME or NAME==VERSION of {', '.join(FOLDERS)}, "
            f"or one of {', '.join(known_names)}"
        )
    engine_record, version = engine_and_version(engine_text or USUAL_ENGINE)
    if not engine_record.is_timed_on(hardware):
        other_engines = [
            f"--engine {engine_name}, or "
            for engine_name in FOLDERS
            if registered_engine(engine_name).is_timed_on(hardware)
        ][:1]
        raise InputError(
            f"--engine {shown(engine_text)}: times of {engine_record.title} on {hardware.title} are not modelled; expected "
            f"{''.join(other_engines)}{engine_record.supported_accelerators}"
        )
    return engine_record.stack(numbers_of(version.version))

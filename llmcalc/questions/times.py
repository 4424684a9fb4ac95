"""The question of `llmcalc time`: the seconds of a training step, a prompt or a token, with ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, TypeGuard

from ..device_memory.settings import PRODUCT_FORMAT_BY_PRECISION, Settings, users_in_training_error
from ..errors import InputError, short_repr
from ..parallel.layout import ONE_DEVICE, Layout
from ..parallel.schedules import check_micro_batches
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset
from ..sources.presets import LIBRARY_ENGINE, names_gguf_file
from ..sources.target import load
from ..timing.calibration import UNIT_FACTORS, Calibration
from ..workload.lora import PARALLEL_LIBRARIES
from ..workload.setting import declarations_of, option
from .runs import RunQuestion, check_loss_implementation, layout_check_of_framework, name_file_in_errors
from .time_and_cost_options import TIME_ORDER_OPTIONS, TimeOptions

if TYPE_CHECKING:
    from ..accelerator import Hardware
    from ..device_memory.estimate import Memory
    from ..frameworks.framework import Framework
    from ..parallel.layout_request import LayoutRequest
    from ..studies.plan import LayoutPlan, OrderName
    from ..studies.run_time import TimeSettings
    from ..studies.timed_run import TimedRun


def settings_with_timed_phase(
    run_question: RunQuestion, options: TimeOptions, is_setting_given: Callable[[str], bool]
) -> Settings:
    """Returns the run's settings, with training, prefill or decode as the phase whose time is estimated.

    Without `--phase`: a token, or a prompt of a model that does not decode; a training step if an option asks for it.
    Raises `InputError` for a phase without a time.
    """
    settings = run_question.settings
    has_context_alone = options.context is not None and settings.seq is None
    if has_context_alone and settings.phase == "prefill":
        raise InputError("--context: is what a cache has before a prompt; expected --seq with the prompt's tokens too")
    if settings.phase != "inference":
        return settings
    if is_setting_given("phase"):
        raise InputError("--phase inference: is two passes; expected prefill (a prompt) or decode (a token)")
    from ..timing.software_stacks import stack_names

    can_train = (options.stack or "").partition("+")[0] in stack_names("training")
    framework_name = run_question.layout.framework
    if framework_name is not None and is_setting_given("users"):
        raise users_in_training_error(f"--framework {framework_name}")
    if has_context_alone:
        raise InputError(
            f"--context: is what a cache has before a prompt; expected --seq {options.context} for a token after so "
            "many, or --seq with the prompt's tokens too"
        )
    if options.global_batch is not None or can_train or framework_name is not None:
        return settings.with_changes(phase="training")
    reads_prompt = bool(run_question.preset.model.model_without_tokens) or options.server or options.context is not None
    return settings.with_changes(phase="prefill" if reads_prompt else "decode")


ASSUMED_PHASES = {"decode": "decoding of a token", "prefill": "a prompt"}
"""Phase that is timed if the user states none → its name in a sentence."""


@name_file_in_errors
def ask_time(
    run_question: RunQuestion,
    options: TimeOptions,
    is_setting_given: Callable[[str], bool] = lambda setting_name: False,
    read_model: Callable[[str], Preset] = load,
) -> ReportedAnswer:
    """Computes the seconds of a training step, a prompt batch or a token, with a range.

    read_model: reads the models of measured runs; default without changes.
    Raises `InputError` for options that contradict each other, and for what is not modelled.
    """
    run_question.refuse_images_and_audio("time")
    from ..reports.calibration import with_calibration
    from ..reports.time_estimate import report
    from ..studies.timed_run import explain_measured

    if run_question.hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    run_question.require_one_accelerator()
    is_phase_assumed = run_question.settings.phase == "inference"
    run_question = replace(run_question, settings=settings_with_timed_phase(run_question, options, is_setting_given))
    options, calibration = _calibrated_options(run_question, options, read_model)
    estimated_run = timed_run(run_question, options)
    explanation = None
    if options.measured is not None:
        measured_time = options.measured.seconds_of(
            estimated_run.tokens, estimated_run.devices, estimated_run.model_flops("full"), estimated_run.peak_flops
        )
        explanation_lines = explain_measured(estimated_run, measured_time)
        is_in_range = estimated_run.time_range.low <= measured_time <= estimated_run.time_range.high
        if is_phase_assumed and estimated_run.phase != "training" and not is_in_range:
            explanation_lines.insert(
                0, f"{ASSUMED_PHASES[estimated_run.phase]} is assumed: a training step has --phase training"
            )
        explanation = measured_time, explanation_lines
    return ReportedAnswer(
        estimated_run,
        lambda: with_calibration(report(run_question.preset, estimated_run, options.by_node, explanation), calibration),
    )


def _calibrated_options(
    run_question: RunQuestion, options: TimeOptions, read_model: Callable[[str], Preset] = load
) -> tuple[TimeOptions, Calibration | None]:
    """Returns the options with a calibrated software stack, and the calibration; None without `--calibrate`."""
    if options.calibrate is None:
        return options, None
    from .measured_rows import calibration_of_file

    calibration = calibration_of_file(options.calibrate, run_question, options, read_model, timed_run)
    return replace(options, factors=calibration.factors), calibration


def timed_run(run_question: RunQuestion, options: TimeOptions) -> TimedRun:
    """Returns the `TimedRun` of a run, with its estimated seconds. Raises the `InputError`s of `ask_time`."""
    if run_question.settings.phase == "training":
        return _training_time(run_question, options)
    return _inference_time(run_question, options)


def _training_time(run_question: RunQuestion, options: TimeOptions) -> TimedRun:
    from ..frameworks.registry import FRAMEWORK_NAMES, framework
    from ..parallel.nearest_layouts import suggest_nearest_layouts
    from ..studies.run_time import time_training

    for inference_option in ("engine", "context", "server"):
        if getattr(options, inference_option):
            raise InputError(f"{option(inference_option)}: is of inference; expected --phase prefill or decode")
    hardware = run_question.hardware
    assert hardware is not None
    layout_arguments = run_question.preset.model, run_question.layout, run_question.tokens
    with suggest_nearest_layouts(*layout_arguments):
        run_memory, framework_record, layout = training_run(run_question)
        check_loss_implementation(run_question.settings, framework_record)
        # as `cost` and `fit`
        is_planned_first = run_question.layout.is_undivided and (run_question.layout.devices or 1) > 1
        fastest_layout_plan = _fastest_fitting_layout(run_question, options) if is_planned_first else None
        needed_bytes, chosen_layout_options = 0, ""
        try:
            micro_batches = micro_batch_count_of_run(run_memory, layout, options.global_batch)
            if options.global_batch is not None or run_memory.settings.num_microbatches is not None:
                _check_schedule(run_question, options, framework_record, layout, micro_batches)
            needed_bytes = _peak_training_bytes(run_memory, framework_record, layout, micro_batches)
        except InputError:
            if fastest_layout_plan is None:
                raise
        if needed_bytes > hardware.capacity_bytes and not is_planned_first:
            fastest_layout_plan = _fastest_fitting_layout(run_question, options)
        if fastest_layout_plan is not None:
            layout_candidate = fastest_layout_plan.ranked_layouts.fitting_candidates[0]
            framework_record = fastest_layout_plan.framework
            run_memory = fastest_layout_plan.estimates.with_recompute(layout_candidate.recompute).memory
            layout, micro_batches = layout_candidate.layout, layout_candidate.micro_batches
            micro_batch_option = micro_batch_of_plan(run_question, fastest_layout_plan)
            chosen_layout_options = " ".join(
                filter(None, (layout_candidate.options, fastest_layout_plan.assumed_batch_option, micro_batch_option))
            )
        time_settings_of_run = time_settings(run_question, framework_record, options)
    adapters = run_memory.states.adapters
    divides_adapters = adapters is not None and adapters.library in PARALLEL_LIBRARIES
    check_layout = (
        layout_check_of_framework(run_memory, framework_record, run_question.layout) if divides_adapters else None
    )
    with suggest_nearest_layouts(*layout_arguments, check_layout=check_layout):
        if check_layout is not None:  # as `memory` refuses it
            check_layout(layout)
        timed_run = time_training(run_memory, hardware, layout, micro_batches, time_settings_of_run)
    precision = run_question.settings.precision or ""
    is_planned = precision not in PRODUCT_FORMAT_BY_PRECISION or any(
        precision in framework(field_name).low_precision_formats for field_name in FRAMEWORK_NAMES
    )
    return replace(
        timed_run,
        resident_bytes=needed_bytes,
        chosen_layout_options=chosen_layout_options,
        is_planned=is_planned,
        has_stated_micro_batches=is_planned_first and run_question.settings.num_microbatches is not None,
    )


def micro_batch_of_plan(run_question: RunQuestion, plan: LayoutPlan) -> str:
    """Returns the option of a micro-batch that the plan chose; empty for a stated one and for single sequences."""
    micro_batch = plan.memory.settings.batch
    return "" if micro_batch == run_question.settings.batch else f"--batch {micro_batch}"


def _check_schedule(
    run_question: RunQuestion, options: TimeOptions, framework_record: Framework, layout: Layout, micro_batches: int
) -> None:
    """Raises `InputError` for a number of micro-batches that the layout's schedule does not take, as `memory` does."""
    try:
        check_micro_batches(
            layout, micro_batches, _micro_batch_group_size(run_question, framework_record, layout, micro_batches)
        )
    except InputError as error:
        if options.global_batch is None:
            raise
        raise InputError(f"--global-batch {options.global_batch} makes {error}") from None


def _micro_batch_group_size(
    run_question: RunQuestion, framework_record: Framework, layout: Layout, micro_batches: int
) -> int | None:
    """Returns the group size of an interleaved schedule, by the file or the framework; None for the default."""
    file_settings = None if run_question.launch is None else run_question.launch.framework_settings
    group_size = getattr(file_settings, "microbatch_group_size_per_virtual_pipeline_stage", None)
    if group_size is None and framework_record.micro_batch_group is not None:
        group_size = framework_record.micro_batch_group(layout.pp, micro_batches)
    return group_size


def _peak_training_bytes(run_memory: Memory, framework_record: Framework, layout: Layout, micro_batches: int) -> int:
    """Returns the peak tensor bytes of a layout's largest rank; without activations if they are unknown."""
    memory_estimate = framework_record.estimate(run_memory)
    try:
        return max(memory_estimate.lower_bound_bytes(layout), memory_estimate.largest_rank_bytes(layout, micro_batches))
    except InputError:
        return memory_estimate.lower_bound_bytes(layout)


def _fastest_fitting_layout(run_question: RunQuestion, options: TimeOptions) -> LayoutPlan | None:
    """Returns the plan for a run without a stated layout; None for a stated layout, or if no layout fits."""
    if (
        not run_question.layout.is_undivided
        or run_question.launch is not None
        or run_question.settings.num_microbatches
    ):
        return None
    try:
        return fastest_plan(run_question, options, options.global_batch)
    except InputError:
        return None


def fastest_plan(run_question: RunQuestion, options: TimeOptions, global_batch: int | None) -> LayoutPlan:
    """Returns the plan of layouts over devices, sorted by time. Raises `InputError` if no layout fits.

    A typed layout is planned as typed, as by `time`; if it does not fit, with the fewest further options that make it
    fit. Of a stated step, micro-batches have more than one sequence if that is faster and none is stated.
    """
    from ..studies.plan import incomplete_search_error, plan_layouts
    from .plans import answer_of_fitting_run, longer_micro_batches

    hardware = run_question.hardware
    assert hardware is not None

    def fastest(
        layout_request: LayoutRequest = run_question.layout, tries_variants: bool = True, may_recompute: bool = True
    ) -> LayoutPlan:
        return answer_of_fitting_run(
            replace(run_question, layout=layout_request),
            lambda run_memory, layout: plan_layouts(
                run_memory,
                hardware,
                layout,
                global_batch,
                1,
                order_name="time",
                suggests_nearest="never",
                time_settings=lambda framework_record: time_settings(run_question, framework_record, options),
                may_recompute=may_recompute,
                tries_variants=tries_variants,
            ),
            lambda plan: bool(plan.ranked_layouts.fitting_candidates),
        )

    has_all_sizes = run_question.layout.has_all_sizes
    plan = fastest(may_recompute=not has_all_sizes, tries_variants=not has_all_sizes)
    if has_all_sizes and not plan.ranked_layouts.fitting_candidates:
        plan = _plan_with_fewest_added_options(run_question, fastest(), partial(fastest, tries_variants=False))
    if plan.ranked_layouts.ended_early and not plan.ranked_layouts.fitting_candidates:
        raise incomplete_search_error(plan)
    if not plan.ranked_layouts.fitting_candidates or plan.ranked_layouts.fitting_candidates[0].seconds is None:
        raise _no_layout_error(plan, run_question, run_question.layout.devices)
    longer_layout = None
    if global_batch is not None:
        longer_layout = longer_micro_batches(
            run_question, plan, lambda framework_record: time_settings(run_question, framework_record, options)
        )
    if longer_layout is None:
        return plan
    settings = run_question.settings.with_changes(batch=longer_layout.micro_batch)
    return fastest_plan(replace(run_question, settings=settings), options, global_batch)


def options_added_by_plan(run_question: RunQuestion, plan: LayoutPlan) -> dict[str, str]:
    """Returns the options that a plan's first layout has in addition to a typed layout: field → option with value."""
    from ..frameworks.registry import layout_of

    candidate = plan.ranked_layouts.fitting_candidates[0]
    typed_layout = layout_of(replace(run_question.layout, framework=plan.framework.name), run_question.preset.model)
    typed_options = typed_layout.options_by_field()
    added_options = {
        field_name: option_text
        for field_name, option_text in candidate.layout.options_by_field().items()
        if typed_options.get(field_name) != option_text
    }
    return added_options | ({"recompute": f"--recompute {candidate.recompute}"} if candidate.recompute else {})


def _plan_with_fewest_added_options(
    run_question: RunQuestion, plan: LayoutPlan, plan_request: Callable[..., LayoutPlan]
) -> LayoutPlan:
    """Returns the fastest plan of a typed layout that fits with the fewest options in addition to the typed options.

    plan: the plan whose first layout is the fastest of those that fit with any options.
    plan_request: (layout request, `may_recompute`) → the plan of that layout alone.
    """
    if not plan.ranked_layouts.fitting_candidates:
        return plan
    candidate, added_options = plan.ranked_layouts.fitting_candidates[0], options_added_by_plan(run_question, plan)
    layout_fields = [field_name for field_name in added_options if field_name != "recompute"]
    for option_count in range(1, len(added_options)):
        fitting_plans = []
        for may_recompute in (False, True):
            for chosen_fields in combinations(layout_fields, option_count - may_recompute):
                layout_request = replace(
                    run_question.layout,
                    **{field_name: getattr(candidate.layout, field_name) for field_name in chosen_fields},
                )
                smaller_plan = plan_request(layout_request, may_recompute=may_recompute)
                if (
                    smaller_plan.ranked_layouts.fitting_candidates
                    and len(options_added_by_plan(run_question, smaller_plan)) == option_count
                ):
                    fitting_plans.append(smaller_plan)
        if fitting_plans:
            return min(
                fitting_plans, key=lambda fitting_plan: fitting_plan.ranked_layouts.fitting_candidates[0].seconds or 0.0
            )
    return plan


def _no_layout_error(plan: LayoutPlan, run_question: RunQuestion, devices: int | None) -> InputError:
    """Returns the error for a training run without a layout that fits, or without a layout with a modelled time."""
    from ..frameworks.registry import layout_of
    from ..parallel.layout_search import (
        TOO_MANY_STAGES,
        UNDIVIDED_BATCH,
        UNDIVIDED_EXPERTS,
        UNDIVIDED_HEADS,
        UNDIVIDED_WIDTHS,
    )
    from ..parallel.nearest_layouts import nearest_layouts_text
    from ..studies.layout_order import TOO_MUCH_MEMORY
    from .plans import untried_framework_sentences

    ranked_layouts = plan.ranked_layouts
    assert run_question.hardware is not None
    if not ranked_layouts.tried_count:
        layout_of(replace(run_question.layout, framework=plan.framework.name))  # raises if it is impossible
        return InputError(f"--devices {devices}: no layout of this number is possible; expected another number")
    if ranked_layouts.refusal_counts and TOO_MUCH_MEMORY not in ranked_layouts.refusal_counts:
        refusal_reason = max(ranked_layouts.refusal_counts, key=ranked_layouts.refusal_counts.__getitem__)
        if refusal_reason == UNDIVIDED_BATCH:
            expected_text = f"--global-batch as a multiple of {devices}, or another number of devices"
            return InputError(
                f"--devices {devices}: {ranked_layouts.tried_count:,} layouts were tried, and {refusal_reason}; "
                f"expected {expected_text}"
            )
        suggestion_text, layout_request = "", run_question.layout
        has_typed_sizes = any((layout_request.tp, layout_request.pp, layout_request.cp, layout_request.ep))
        if has_typed_sizes and refusal_reason in (
            UNDIVIDED_HEADS,
            UNDIVIDED_WIDTHS,
            TOO_MANY_STAGES,
            UNDIVIDED_EXPERTS,
        ):
            suggestion_text = nearest_layouts_text(run_question.preset.model, layout_request, run_question.tokens)
        return InputError(
            f"--devices {devices}: none of {ranked_layouts.tried_count:,} layouts can be counted, "
            f"most because {refusal_reason}; {suggestion_text or 'expected --step with a measured step'}"
        )
    settings, memory_advice = run_question.settings, "more devices"
    if settings.lora_rank is not None and settings.base in (None, "none"):
        memory_advice += ", --base nf4"
    if settings.recompute not in (None, "full"):
        memory_advice += ", --recompute full"
    if settings.seq and plan.memory.states.total_bytes < (devices or 1) * run_question.hardware.capacity_bytes:
        memory_advice += f", a --seq below {settings.seq}"  # what is too much are activations
    untried_text = "".join(
        f" ({untried_sentence})" for untried_sentence in untried_framework_sentences(run_question, plan.framework.name)
    )
    return InputError(
        f"--devices {devices}: no layout of {ranked_layouts.tried_count:,} under {plan.framework.title} fits "
        f"the memory of {run_question.hardware.title}{untried_text}; expected {memory_advice}, or --step with a "
        "measured step"
    )


def training_run(run_question: RunQuestion) -> tuple[Memory, Framework, Layout]:
    """Returns a training run as (its memory on one device, its framework, its layout).

    For several devices without a stated framework, the framework is the one that `plan` takes, else that of `memory`.
    """
    from ..frameworks.registry import framework, framework_of, layout_of

    if run_question.launch is not None:
        framework_record = framework(run_question.launch.framework)
        memory_on_one_device = run_question.with_selective_modules_of_framework(framework_record).memory_on_one_device()
        return memory_on_one_device, framework_record, run_question.launch.layout
    layout = run_question.layout
    if layout.has_options and (layout.framework is None or framework_of(layout).name == layout.framework):
        needs_framework = layout.framework is not None and run_question.settings.lora_rank is not None
        _, layout = (_without_adapters(run_question) if needs_framework else run_question).planned_run()
        framework_record = framework_of(layout)
        model_memory = run_question.with_selective_modules_of_framework(framework_record).memory_on_one_device()
        return model_memory, framework_record, layout_of(layout, model_memory.spec)
    framework_record = framework_of(layout)
    return (
        run_question.with_selective_modules_of_framework(framework_record).memory_on_one_device(),
        framework_record,
        ONE_DEVICE,
    )


def _without_adapters(run_question: RunQuestion) -> RunQuestion:
    """Returns the question about the same run without low-rank adapters.

    It is used to check frameworks whose memory with adapters is not modelled: adapters only add the time of two small
    products.
    """
    default_settings = Settings(run_question.settings.phase)
    adapter_settings = [
        setting_name
        for setting_name, declaration in declarations_of(Settings).items()
        if "lora_rank" in (setting_name, declaration.setting.required_setting)
    ]
    settings = run_question.settings.with_changes(
        **{setting_name: getattr(default_settings, setting_name) for setting_name in adapter_settings}
    )
    return replace(run_question, settings=settings)


def micro_batch_count_of_run(run_memory: Memory, layout: Layout, global_batch: int | None) -> int:
    """Returns the number of micro-batches per training step, for each replica.

    Raises `InputError` for a global batch that replicas and micro-batches do not divide, or that is given twice.
    """
    from ..studies.step_size import usual_micro_batches

    micro_batches = run_memory.settings.num_microbatches
    if global_batch is None:
        return micro_batches or usual_micro_batches(layout.pp)
    if micro_batches is not None:
        raise InputError("--global-batch: --num-microbatches says it already; expected one of the two")
    sequences_per_pass = layout.dp * int(run_memory.states.workload.batch)
    if global_batch % sequences_per_pass:
        raise InputError(
            f"--global-batch {global_batch}: expected a multiple of {sequences_per_pass}, a micro-batch of each of "
            f"{layout.dp} replicas"
        )
    return global_batch // sequences_per_pass


def time_settings(run_question: RunQuestion, framework_record: Framework, options: TimeOptions) -> TimeSettings:
    """Returns the settings of a training time estimate with a framework."""
    from ..studies.run_time import TimeSettings
    from ..timing.software_stacks import stack_of_vendor

    launched_run = run_question.launch
    file_settings = None if launched_run is None else launched_run.framework_settings
    has_format_reader = framework_record.product_format is not None and file_settings is not None
    has_known_layout = run_question.layout.has_all_sizes or run_question.layout.devices in (None, 1)
    exchanges_tokens = run_question.preset.model.has_experts and not (
        has_known_layout and run_question.layout.ep in (None, 1)
    )
    program_stack_name = "" if launched_run is None else launched_run.software_stack
    stack_name = (
        options.stack
        or program_stack_name
        or framework_record.time_stack_name(launched_run, bool(run_question.settings.compile), exchanges_tokens)
    )
    if options.stack is None and launched_run is None and run_question.hardware is not None:
        stack_name = stack_of_vendor(run_question.hardware.vendor, "training") or stack_name
    return TimeSettings(
        stack_name,
        options.overlap,
        options.nic,
        framework_record.product_format(file_settings)
        if has_format_reader and framework_record.product_format is not None
        else "",
        options.factors or UNIT_FACTORS,
        None
        if launched_run is None or options.stack is not None or framework_record.overlapped_parallel_groups is None
        else framework_record.overlapped_parallel_groups(launched_run),
        _unpriced_settings(run_question),
        launched_run is not None and launched_run.calls_torch_attention,
        framework_record.loss,
        frozenset()
        if launched_run is None or framework_record.recomputed_modules is None
        else framework_record.recomputed_modules(launched_run),
        0.0
        if launched_run is None or framework_record.recomputed_layers is None
        else framework_record.recomputed_layers(launched_run),
    )


SLOW_VARIABLES = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
"""Environment variable → the value that makes the host wait for each kernel, or for all ranks before a message."""


def _unpriced_settings(run_question: RunQuestion) -> tuple[str, ...]:
    """Returns settings that slow each step but are not in the time estimate: the launch file's, or `--loss-chunk`.

    A program in a launch file has chunks of its own, with which its software was measured.
    """
    launched_run, loss_chunk = run_question.launch, run_question.settings.loss_chunk
    if launched_run is None:
        return () if loss_chunk is None else (f"--loss-chunk {loss_chunk}",)
    slow_variables = [
        f"{variable_name}={variable_value}"
        for variable_name, variable_value in SLOW_VARIABLES.items()
        if launched_run.env.get(variable_name) == variable_value
    ]
    is_deterministic = getattr(launched_run.framework_settings, "deterministic_mode", False)
    return (*slow_variables, *(["--deterministic-mode"] if is_deterministic else []))


def layout_time_settings(
    run_question: RunQuestion, order_name: str | None, options: TimeOptions
) -> Callable[[Framework], TimeSettings]:
    """Returns the settings of a plan's time estimates for each framework.

    Raises `InputError` for options of time in a plan by memory.
    """
    for field_name in TIME_ORDER_OPTIONS:
        if order_name == "memory" and getattr(options, field_name) is not None:
            raise InputError(f"{option(field_name)}: is of the order by time; expected --by time")
    return lambda framework_record: time_settings(run_question, framework_record, options)


def ask_timed_plan(
    run_question: RunQuestion,
    options: TimeOptions,
    global_batch: int | None = None,
    row_count: int | None = None,
    order_name: OrderName | None = None,
    size_filter: str | None = None,
    read_model: Callable[[str], Preset] = load,
    is_for_screen: bool = False,
) -> ReportedAnswer:
    """Finds the layouts of `ask_plan` sorted by estimated time, calibrated on measured runs if a file is named.

    Raises `InputError` as that does, and for options of time in a plan by memory.
    """
    from ..reports.calibration import with_calibration
    from .plans import ask_plan

    run_question.require_one_accelerator()
    layout_time_settings(run_question, order_name, options)  # refuses options of time in a plan by memory
    if any(getattr(options, field_name) is not None for field_name in TIME_ORDER_OPTIONS):
        order_name = "time"  # what cannot be timed with them is refused
    options, calibration = _calibrated_options(run_question, options, read_model)
    plan_answer = ask_plan(
        run_question,
        global_batch,
        row_count,
        order_name,
        size_filter,
        layout_time_settings(run_question, order_name, options),
        is_for_screen,
    )
    return replace(plan_answer, make_report=lambda: with_calibration(plan_answer.report(), calibration))


def _inference_time(run_question: RunQuestion, options: TimeOptions) -> TimedRun:
    from ..frameworks.engines.registry import engine
    from ..parallel.nearest_layouts import suggest_nearest_layouts
    from ..studies.decoding import SHORT_CONTEXT, usual_stack
    from ..studies.run_time import TimeSettings, time_inference, with_format_of_stack

    if options.global_batch is not None:
        raise InputError("--global-batch: is of training; expected --users, the sequences of a batch")
    phase, cached_tokens = run_question.settings.phase, options.context or 0
    for field_name in ("context", "server"):
        if getattr(options, field_name) and phase == "decode":
            expected_option = "--seq, the tokens in the cache" if field_name == "context" else "--phase prefill"
            raise InputError(f"{option(field_name)}: is of prompts; expected {expected_option}")
    hardware = run_question.hardware
    assert hardware is not None
    engine_text = options.engine
    engine_notes = _served_model_notes(run_question, engine_text)
    layout_request, run_memory = run_question.layout, run_question.memory_on_one_device()
    for field_name in ("pp_layout", "cp", "zero", "fsdp", "vpp", "schedule"):
        if getattr(layout_request, field_name) not in (None, 1, 0):
            raise InputError(f"{option(field_name)}: is of training; expected --phase training")
    framework_stack = _inference_stack_of_framework(layout_request.framework, options)
    run_memory, scheme_notes = _run_in_usual_scheme(
        run_question, run_memory, engine_text, options.stack or framework_stack
    )
    run_memory, context_notes, default_context = _with_server_context(
        run_question, run_memory, engine_text, options.stack or framework_stack
    )
    with suggest_nearest_layouts(run_question.preset.model, layout_request, run_question.tokens):
        stack_name = (
            options.stack
            or framework_stack
            or (engine_stack_name(engine_text, hardware) if engine_text else usual_stack(hardware, run_memory))
        )
        pass_settings = TimeSettings(stack_name, options.overlap, options.nic, factors=options.factors or UNIT_FACTORS)
        run_memory = with_format_of_stack(run_memory, pass_settings.supporting_stack("decode"))
        if layout_request.framework is None:
            layout_request = layout_request.with_experts_of_a_server()
        layout_request = _layout_of_named_server(run_question, run_memory, hardware, layout_request, engine_text)
        if pass_settings.supporting_stack("decode").runs_layers_on_host:
            layout, engine_bytes = _llama_cpp_layout(
                run_question.preset, run_memory, hardware, layout_request, default_context
            )
        else:
            layout, engine_bytes = serving_layout(run_memory, hardware, layout_request), None
        if default_context is not None:
            context_tokens = default_context(layout.replica_devices)
            run_memory = run_memory.with_changes(seq=run_memory.settings.seq_in_context(context_tokens))
            context_notes = (engine(LIBRARY_ENGINE).default_context_note(context_tokens),)
        try:
            _check_divided_blocks(run_memory, layout)
        except InputError as error:
            if not run_question.layout.is_undivided:
                raise
            raise InputError(f"--devices {layout.world_size}: {error}") from None
        timed_run = time_inference(run_memory, hardware, layout, pass_settings, cached_tokens, options.server)
        run_with_short_context = None
        if phase == "decode" and run_question.settings.seq is None and timed_run.context > SHORT_CONTEXT:
            short_memory = run_memory.with_changes(seq=SHORT_CONTEXT)
            run_with_short_context = time_inference(short_memory, hardware, layout, pass_settings)
        return replace(
            timed_run,
            short_context_run=run_with_short_context,
            engine_notes=(
                *scheme_notes,
                *context_notes,
                *_unused_devices_notes(run_question, layout, engine_text),
                *engine_notes,
            ),
            resident_bytes=engine_bytes or timed_run.resident_bytes,
            includes_buffers=engine_bytes is not None,
        )


def _layout_of_named_server(
    run_question: RunQuestion,
    run_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    engine_text: str | None,
) -> LayoutRequest:
    """Returns the layout options with all accelerators in one server of the named engine, as `memory` counts it.

    llama.cpp and Ollama divide layers, other engines each matrix. Options that divide the model stay, and so do
    computers, each of which runs a server of its own.
    """
    from ..frameworks.engines.registry import engine_and_version
    from ..parallel.layout import ImpossibleLayout
    from ..parallel.layout_search import UNDIVIDED_HEADS, UNDIVIDED_WIDTHS, layout_refusal
    from ..parallel.rank_program import model_axes
    from ..studies.fit_options import MAX_SPLIT_DEVICES
    from ..studies.fit_serving import is_separate_computer

    device_count, spec = layout_request.devices or 1, run_memory.spec
    if not _is_registered_engine(engine_text):
        return layout_request
    engine_record, _ = engine_and_version(engine_text)
    if engine_record.reads_library_tags:
        engine_record.read_options({name: getattr(layout_request, name) for name in ("tp", "pp", "dp", "ep")})
    if not layout_request.is_undivided or is_separate_computer(hardware):
        return layout_request
    if not engine_record.reads_library_tags:
        layout_request = replace(layout_request, tp=device_count)
        refusal_reason = layout_refusal(model_axes(spec), layout_request.layout(), spec.layer_count, 1)
        if refusal_reason in (UNDIVIDED_HEADS, UNDIVIDED_WIDTHS):
            raise ImpossibleLayout(
                f"--devices {device_count}: {engine_record.title} divides each matrix among all of them (tp "
                f"{device_count}), and "
                f"{refusal_reason}"
            )
        return layout_request
    if device_count > MAX_SPLIT_DEVICES:
        raise InputError(
            f"--devices {device_count}: {engine_record.title} divides layers among up to {MAX_SPLIT_DEVICES} "
            f"accelerators; "
            f"expected at most {MAX_SPLIT_DEVICES}"
        )
    stage_count = min(_used_devices(run_question, run_memory, hardware, engine_text, device_count), spec.layer_count)
    return replace(layout_request, devices=stage_count, pp=stage_count)


def _unused_devices_notes(run_question: RunQuestion, layout: Layout, engine_text: str | None) -> tuple[str, ...]:
    """Returns a note on accelerators that the named engine leaves idle, because fewer hold the model; empty if none."""
    from ..frameworks.engines.registry import engine_and_version

    stated_layout = run_question.layout
    if not _is_registered_engine(engine_text) or not stated_layout.is_undivided or stated_layout.devices is None:
        return ()
    if layout.world_size >= stated_layout.devices:
        return ()
    title = engine_and_version(engine_text)[0].title
    return (f"{title} uses {layout.world_size} of {stated_layout.devices} accelerators: the model fits there",)


def _used_devices(
    run_question: RunQuestion, run_memory: Memory, hardware: Hardware, engine_text: str, devices: int
) -> int:
    """Returns on how many of `devices` accelerators a server of the named engine places a run, as `memory` counts it.

    All of them where the engine's memory is not modelled.
    """
    from ..frameworks.engines.registry import engine_and_version

    engine_record, version = engine_and_version(engine_text)
    settings = run_memory.settings
    flag_values = {"devices": devices, "users": settings.batch, "seq": settings.seq, "quantize": settings.quantize}
    if devices == 1:
        return devices
    try:
        flags = engine_record.read_options(flag_values)
        return int(engine_record.memory_on(run_question.preset, hardware, version, flags).devices)
    except InputError:
        return devices


def _llama_cpp_layout(
    preset: Preset,
    run_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    default_context: Callable[[int], int] | None,
) -> tuple[Layout, int | None]:
    """Returns the layout in which llama.cpp divides a model, and a device's bytes; None if the bytes are unknown.

    It divides layers where only a number of accelerators is stated, as `fit` has it (--split-mode of
    tools/server/README.md, whose default is `layer`).
    """
    from ..studies.fit_serving import COMPUTER_VENDORS
    from .usual_engines import best_replica_under_usual_engine, with_replicas_divided_by_layers

    device_request = replace(layout_request, devices=layout_request.devices or layout_request.layout().world_size)
    replica_fit = best_replica_under_usual_engine(
        preset, run_memory.with_changes(phase="inference"), hardware, device_request, default_context
    )
    if replica_fit is not None:
        return replica_fit.layout, replica_fit.fit.needed_bytes
    layout = serving_layout(run_memory, hardware, layout_request)
    is_several_computers = hardware.vendor in COMPUTER_VENDORS and layout.world_size > 1
    if replace(layout_request, pp=None).is_undivided and not is_several_computers:
        layout = with_replicas_divided_by_layers(run_memory, layout)
    return layout, None


def _check_divided_blocks(run_memory: Memory, layout: Layout) -> None:
    """Raises `InputError`, as `memory` does, where tensor parallelism divides blocks of quantized weights.

    Servers pad experts in MXFP4 to whole blocks.
    """
    from ..device_memory.static import memory
    from ..parallel.rank_model import rank_model

    quantized_size = run_memory.states.quantized_size
    if layout.tp == 1 or quantized_size is None or quantized_size.scheme.label == "mxfp4":
        return
    first_rank_model, included_parts = rank_model(run_memory.spec, layout, 0), run_memory.states.parameter_count.include
    memory(first_rank_model, run_memory.settings, run_memory.published_dtype, included_parts, run_memory.model_config)


def _served_model_notes(run_question: RunQuestion, engine_text: str | None) -> tuple[str, ...]:
    """Returns notes on the support of the model's class by the engine of `--engine`; none without an engine.

    Raises `InputError` for a model that the engine does not run.
    """
    from ..frameworks.engines.rank import architectures
    from ..frameworks.engines.registry import engine_and_version

    if not _is_registered_engine(engine_text):
        return ()
    engine_record, version = engine_and_version(engine_text)
    if engine_record.check_model is not None:
        engine_record.check_model(run_question.preset, version)
    return tuple(engine_record.rules().class_notes(architectures(run_question.preset), version))


def _run_in_usual_scheme(
    run_question: RunQuestion, run_memory: Memory, engine_text: str | None, stack_text: str
) -> tuple[Memory, tuple[str, ...]]:
    """Returns a run with the engine's usual quantization scheme for 16-bit weights, and a note on the scheme, if any.

    The name of a GGUF file has the file's scheme, unless the named software does not read such files.
    engine_text: the value of `--engine`, an engine or a software stack. stack_text: a software stack; empty for none.
    """
    from ..frameworks.engines.registry import engine_and_version, engine_of_stack
    from ..reports.notes import published_tag_notes
    from ..timing.software_stacks import find_stack
    from .usual_engines import usual_scheme_of

    engine_record = engine_and_version(engine_text)[0] if _is_registered_engine(engine_text) else None
    engine_name = "" if engine_record is None else engine_record.name
    if names_gguf_file(run_question.preset.target):
        stack_name = stack_text or ("" if engine_record else engine_text or "")
        reading_engine = engine_of_stack(stack_name) if stack_name else engine_record
        if (stack_name or engine_record) and not (reading_engine and reading_engine.reads_library_tags):
            software_title = reading_engine.title if reading_engine else find_stack(stack_name, "inference").title
            is_typed = run_question.settings.quantize is not None
            return run_memory, () if is_typed else tuple(published_tag_notes(run_question.preset, software_title))
        engine_name = LIBRARY_ENGINE
    usual_scheme = usual_scheme_of(run_memory, engine_name, run_question.preset.target) if engine_name else None
    run_memory = replace(run_memory, names_gguf_file=engine_name == LIBRARY_ENGINE)
    if usual_scheme is None:
        return run_memory, ()
    scheme_name, scheme_remark = usual_scheme
    return run_memory.with_changes(quantize=scheme_name), (scheme_remark,)


def _with_server_context(
    run_question: RunQuestion, run_memory: Memory, engine_text: str | None, stack_text: str
) -> tuple[Memory, tuple[str, ...], Callable[[int], int] | None]:
    """Returns a decoding run with the engine's default context unless `--seq` is given, and a note on the context.

    The third value is the context by the number of a replica's accelerators, where it follows from that; else None.

    A tag of Ollama's library has the context that `memory` and `fit` count, if no software is named. The run is
    unchanged if the engine's default is the model's longest context and no shorter than the usual context, and if the
    engine does not start.

    engine_text, stack_text: as in `_run_in_usual_scheme`.
    """
    from ..costs.context_length import default_context_tokens
    from ..frameworks.engines.registry import engine_and_version

    settings, hardware = run_question.settings, run_question.hardware
    if engine_text is None and not stack_text:
        tag_question = run_question.with_defaults_of_tag()
        if tag_question.settings.seq == settings.seq:
            return run_memory, (), None
        note_count = len(run_question.preset.run_notes)
        tag_memory = run_memory.with_changes(seq=tag_question.settings.seq)
        return tag_memory, tag_question.preset.run_notes[note_count:], tag_question.default_context
    if (
        hardware is None
        or settings.phase != "decode"
        or settings.seq is not None
        or not _is_registered_engine(engine_text)
    ):
        return run_memory, (), None
    engine_record, version = engine_and_version(engine_text)
    devices = run_question.layout.devices or 1
    if devices > 1 and engine_record.default_context is None:
        return run_memory, (), None
    if engine_record.shows_alternatives:  # its default shrinks until layers lie on the host, which no stack times
        return run_memory, (), None
    try:
        engine_flags = engine_record.read_options(
            {"quantize": run_memory.settings.quantize, "devices": devices if devices > 1 else None}
        )
        engine_server = engine_record.server(run_question.preset, hardware, version, engine_flags)
        context_tokens = int(engine_record.memory(engine_server).max_model_len)
    except InputError:
        return run_memory, (), None
    is_context_of_memory = engine_record.default_context is not None
    if context_tokens <= 1 or (
        not is_context_of_memory and context_tokens > default_context_tokens(run_memory.spec, is_decoding=True)
    ):
        return run_memory, (), None
    decoding_memory = run_memory.with_changes(seq=settings.seq_in_context(context_tokens))
    return decoding_memory, (engine_record.default_context_note(context_tokens),), None


def _is_registered_engine(engine_text: str | None) -> TypeGuard[str]:
    """Whether a text names an engine, with or without a version, and not a software stack."""
    from ..frameworks.engines.registry import ENGINE_FOLDERS

    return engine_text is not None and engine_text.partition("==")[0].strip().lower() in ENGINE_FOLDERS


def _inference_stack_of_framework(framework_name: str | None, options: TimeOptions) -> str:
    """Returns the name of a framework's software stack for inference; empty without a framework.

    Raises `InputError` for a framework that only trains, and for one beside an engine.
    """
    if framework_name is None:
        return ""
    from ..frameworks.registry import framework
    from ..studies.decoding import TRANSFORMERS_STACK

    if not framework(framework_name).runs_inference:
        raise InputError(f"--framework {framework_name}: only trains; expected --phase training, or --engine vllm")
    if options.engine is not None:
        raise InputError(f"--framework {framework_name}: is no server; expected --engine without it")
    return TRANSFORMERS_STACK


def serving_layout(run_memory: Memory, hardware: Hardware, layout_request: LayoutRequest) -> Layout:
    """Returns the layout of an inference pass: the requested layout, or as many replicas as fit the devices."""
    from ..studies.fit_serving import serving_replicas

    if not layout_request.is_undivided:
        return layout_request.layout()
    return serving_replicas(run_memory.with_changes(phase="inference"), hardware, layout_request)[1].layout


def engine_stack_name(engine_text: str | None, hardware: Hardware) -> str:
    """Returns the name of an engine's software stack. engine_text: the engine, with or without a version.

    Raises `InputError` for an unknown engine, and for one that does not run on the accelerator.
    """
    from ..frameworks.engines.registry import (
        ENGINE_FOLDERS,
        LLAMA_CPP_LAUNCHERS,
        UNMODELLED_ENGINES,
        USUAL_ENGINE,
        engine_and_version,
    )
    from ..frameworks.engines.registry import engine as registered_engine
    from ..frameworks.engines.versions import parse_version
    from ..timing.software_stacks import stack_names

    engine_name = (engine_text or USUAL_ENGINE).partition("==")[0].strip().lower()
    if (
        engine_name not in ENGINE_FOLDERS
        and engine_text is not None
        and "==" not in engine_text
        and engine_name in stack_names("inference")
    ):
        return engine_name
    if engine_text is not None and (
        engine_name in {*LLAMA_CPP_LAUNCHERS, *UNMODELLED_ENGINES} or "=" in engine_text.replace("==", "")
    ):
        engine_and_version(engine_text)  # raises, with what to type instead
    if engine_name not in ENGINE_FOLDERS:
        known_names = sorted({*ENGINE_FOLDERS, *stack_names("inference")})
        raise InputError(
            f"--engine {short_repr(engine_text)}: not known; expected NAME or NAME==VERSION of "
            f"{', '.join(ENGINE_FOLDERS)}, "
            f"or one of {', '.join(known_names)}"
        )
    engine_record, version = engine_and_version(engine_text or USUAL_ENGINE)
    if not engine_record.is_timed_on(hardware):
        other_engines = [
            f"--engine {other_engine}, or "
            for other_engine in ENGINE_FOLDERS
            if registered_engine(other_engine).is_timed_on(hardware)
        ][:1]
        raise InputError(
            f"--engine {short_repr(engine_text)}: times of {engine_record.title} on {hardware.title} are not modelled; "
            f"expected {''.join(other_engines)}{engine_record.supported_accelerators}"
        )
    return engine_record.software_stack(parse_version(version.version), hardware.vendor)

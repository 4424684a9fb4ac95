"""The question of `llmcalc cost`: days, device-hours, energy and money of training or of many requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..costs.context_length import learned_positions, longest_sequence
from ..errors import InputError
from ..reports.answer import ReportedAnswer
from ..studies.cost import Cost, RunCost, add_lost_time
from ..studies.step_size import default_batch, is_pretraining, usual_batch
from ..timing.time_ranges import RangedAmount
from ..workload.lengths import DEFAULT_TRAINING_TOKENS
from ..workload.setting import declarations_of, option
from .runs import RunQuestion
from .serving import serve_study, with_assumed_request_tokens
from .time_and_cost_options import CostOptions, ServeOptions, TimeOptions
from .times import fastest_plan, options_added_by_plan


def ask_cost(
    run_question: RunQuestion,
    options: CostOptions,
    is_setting_given: Callable[[str], bool] = lambda setting_name: False,
) -> ReportedAnswer:
    """Computes days, energy and money of a training run or of a number of requests.

    is_setting_given: parameter → whether the user gave it; default none.
    Raises `InputError` for options that contradict each other, and where no layout fits.
    """
    run_question.refuse_images_and_audio("cost")
    from ..reports.cost import report

    if (options.tokens is None) == (options.requests is None):
        expected_text = "--tokens 15T --devices 64 to train, or --requests 1M --input 1000 --output 200 to serve"
        if options.tokens is not None:
            expected_text = "one of the two"
        raise InputError(
            f"--tokens, --requests: {'both are' if options.tokens else 'neither is'} given; expected {expected_text}"
        )
    run_question.require_one_accelerator()
    hardware = run_question.hardware
    if hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    watts, hourly_price = hardware.tdp_watts if options.power is None else options.power, options.price
    if options.tokens is not None:
        _refuse_inference_settings(run_question.settings.phase, is_setting_given)
        run_cost = _training_cost(run_question, options, watts, hourly_price)
    else:
        run_cost = _serving_cost(run_question, options, watts, hourly_price)
    return ReportedAnswer(run_cost, lambda: report(run_question.preset, hardware, run_cost))


def _refuse_inference_settings(phase: str, is_setting_given: Callable[[str], bool]) -> None:
    """Raises `InputError` for a phase of inference or a number of users, which training on `--tokens` does not have."""
    if phase != "training" and (is_setting_given("phase") or phase != "inference"):
        raise InputError(f"--phase {phase}: --tokens are of training; expected --requests, or no --phase")
    if is_setting_given("users"):
        raise InputError("--users: --tokens are of training; expected --batch, or --requests with --concurrency")


def _training_cost(
    run_question: RunQuestion, options: CostOptions, watts: float | None, hourly_price: float | None
) -> RunCost:
    for serving_option in ("input", "output", "concurrency", "engine"):
        if getattr(options, serving_option) is not None:
            raise InputError(
                f"{option(serving_option)}: is of --requests; expected --requests in place of --tokens, or neither"
            )
    if run_question.layout.devices is None:
        return _cost_on_fewest_devices(run_question, options, watts, hourly_price)
    devices = run_question.layout.devices
    assert options.tokens is not None
    run_question, assumed_options = _with_usual_step_tokens(run_question)
    assert run_question.settings.seq is not None
    spec, settings = run_question.preset.model, run_question.settings
    has_usual_steps = is_pretraining(spec, settings.lora_rank)
    global_batch = options.global_batch or (
        usual_batch(run_question.settings.seq, devices, run_question.preset.training.step_tokens)
        if has_usual_steps
        else default_batch(run_question.settings.seq, devices, settings.batch or 1)
    )
    assumed_options += [] if options.global_batch is not None else [f"--global-batch {global_batch}"]
    step_tokens = global_batch * run_question.settings.seq
    step_count = -(-options.tokens // step_tokens)
    estimate_fields: dict[str, Any] = {"is_measured": True}
    if options.step is not None:
        step_seconds = RangedAmount.without_range(options.step)
        run_seconds = step_seconds.scaled_by(step_count)
    else:
        time_options = TimeOptions(stack=options.stack, overlap=options.overlap, nic=options.nic)
        layout_plan = fastest_plan(run_question, time_options, global_batch)
        step_time_range = layout_plan.step_time_range(layout_plan.ranked_layouts.fitting_candidates[0])
        assert step_time_range is not None
        assert layout_plan.training_times is not None
        step_seconds = step_time_range.amount
        estimate_fields = {
            "time_range": step_time_range,
            "stack_title": layout_plan.training_times.stack.title,
            "plan": layout_plan,
            "options_added_by_plan": " ".join(options_added_by_plan(run_question, layout_plan).values())
            if run_question.layout.has_all_sizes
            else "",
        }
        run_seconds = add_lost_time(step_seconds.scaled_by(step_count), devices)
    return RunCost(
        Cost(run_seconds, devices, watts, hourly_price),
        options.tokens,
        step_count=step_count,
        step_seconds=step_seconds,
        step_tokens=step_tokens,
        published_step_tokens=run_question.preset.training.step_tokens,
        step_sequences=global_batch,
        assumed_options=tuple(assumed_options),
        is_pretraining=has_usual_steps,
        **estimate_fields,
    )


MAX_DOUBLINGS = 4
"""How often the number of devices that hold a run's states is doubled at most, until a layout fits."""


def _cost_on_fewest_devices(
    run_question: RunQuestion, options: CostOptions, watts: float | None, hourly_price: float | None
) -> RunCost:
    """Returns the cost of training on the fewest devices on which a layout fits; their number is doubled until it fits.

    The first number tried has memory for the states (weights, gradients, optimizer), and is a multiple of the typed
    group sizes. Raises `InputError` beside a measured step, whose devices are its own, and where no layout fits.
    """
    layout, hardware = run_question.layout, run_question.hardware
    if options.step is not None:
        raise InputError("--devices: missing; expected the number of accelerators of the measured --step")
    assert hardware is not None
    question_with_step, _ = _with_usual_step_tokens(run_question)
    state_bytes = question_with_step.memory_on_one_device().states.total_bytes
    first_device_count = (layout.tp or 1) * (layout.pp or 1) * (layout.cp or 1) * (layout.dp or layout.fsdp or 1)
    while first_device_count * hardware.capacity_bytes < state_bytes:
        first_device_count *= 2
    tried_device_counts = [first_device_count << doubling_count for doubling_count in range(MAX_DOUBLINGS + 1)]
    error_on_fewer_devices = ""
    for first_device_count in tried_device_counts:
        run_on_devices = replace(run_question, layout=replace(layout, devices=first_device_count))
        try:
            run_cost = _training_cost(run_on_devices, options, watts, hourly_price)
            break
        except InputError as error:
            if str(error) == error_on_fewer_devices:
                raise  # the number of devices is not what is wrong
            error_on_fewer_devices = str(error)
            if first_device_count == tried_device_counts[-1]:
                raise InputError(
                    f"{error} (--devices is missing: {tried_device_counts[0]} to {first_device_count} were tried)"
                ) from None
    return replace(
        run_cost,
        assumed_options=(f"--devices {first_device_count}", *run_cost.assumed_options),
        has_assumed_devices=True,
    )


def _with_usual_step_tokens(run_question: RunQuestion) -> tuple[RunQuestion, list[str]]:
    """Adds the usual training length to a question without a length, and returns a note about it."""
    settings = run_question.settings.with_changes(phase="training").with_usual_recomputation()
    assumed_options: list[str] = []
    if settings.seq is None:
        spec = run_question.preset.model
        longest_sequence_length = learned_positions(spec) or longest_sequence(spec) or DEFAULT_TRAINING_TOKENS
        settings = settings.with_changes(seq=min(DEFAULT_TRAINING_TOKENS, longest_sequence_length))
        assumed_options.append(f"--seq {settings.seq}")
    return replace(run_question, settings=settings), assumed_options


def _refuse_training_options(command_options: Any, training_options: tuple[str, ...]) -> None:
    """Raises `InputError` for an option that does not apply to a server under load."""
    for field_name in declarations_of(type(command_options)):
        if field_name not in training_options and getattr(command_options, field_name) is not None:
            raise InputError(f"{option(field_name)}: does not change servers of --requests; remove it")


def _serving_cost(
    run_question: RunQuestion, options: CostOptions, watts: float | None, hourly_price: float | None
) -> RunCost:
    for field_name in ("step", "global_batch", "overlap"):
        if getattr(options, field_name) is not None:
            raise InputError(f"{option(field_name)}: is of training; expected --tokens in place of --requests")
    options, assumed_options, assumption_origin = with_assumed_request_tokens(run_question.preset, options)
    assert options.input is not None
    assert options.output is not None
    assert options.requests is not None
    assert run_question.hardware is not None
    concurrency = options.concurrency
    if concurrency is not None and concurrency > options.requests:
        raise InputError(
            f"--concurrency {concurrency}: --requests {options.requests} are fewer; expected at most {options.requests}"
        )
    layout, settings = run_question.layout, run_question.settings
    _refuse_training_options(settings, ("phase", "quantize", "kv_dtype"))
    _refuse_training_options(layout, ("devices", "tp", "pp", "dp", "ep"))
    if settings.phase != "inference":
        raise InputError(f"--phase {settings.phase}: --requests are served; expected --tokens, or no --phase")
    server_study = serve_study(
        run_question.preset,
        run_question.hardware,
        ServeOptions(
            options.input,
            options.output,
            concurrency=concurrency,
            devices=layout.devices,
            tp=layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            ep=layout.ep,
            engine=options.engine,
            quantize=settings.quantize,
            kv_dtype=settings.kv_dtype,
            stack=options.stack,
            nic=options.nic,
        ),
    )
    studied_servers = server_study.find_servers()
    if studied_servers.chosen_server is None:
        refusal_text = ", ".join(studied_servers.rejection_counts)
        raise InputError(f"--devices: no server of {server_study.hardware.title} serves these requests: {refusal_text}")
    load_point = studied_servers.chosen_server.load_point
    if load_point.concurrency > options.requests:  # no more requests at a time than there are
        limited_options = replace(options, concurrency=options.requests)
        run_cost = _serving_cost(run_question, limited_options, watts, hourly_price)
        return replace(run_cost, assumed_options=tuple(assumed_options), assumed_request_origin=assumption_origin)
    run_seconds = load_point.end_to_end_seconds.scaled_by(options.requests / load_point.concurrency)
    cost = Cost(run_seconds, load_point.devices, watts, hourly_price)
    chosen_server = studied_servers.servers[studied_servers.chosen_server.server_index]
    return RunCost(
        cost,
        requests=options.requests,
        time_range=load_point.tpot,
        stack_title=server_study.stack.title,
        server=chosen_server,
        load_point=load_point,
        assumed_options=tuple(assumed_options),
        assumed_request_origin=assumption_origin,
    )

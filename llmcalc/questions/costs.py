"""The question of `llmcalc cost`: days, device-hours, energy and money of training or of many requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..costs.context_length import learned_positions, longest_sequence
from ..errors import InputError
from ..reports.answer import ReportedAnswer
from ..studies.cost import Cost, RunCost
from ..studies.step_size import default_batch, is_pretraining, usual_batch
from ..timing.spread import Amount
from ..workload.setting import declared, option
from .options import CostOptions, ServeOptions, TimeOptions
from .runs import RunQuestion
from .serving import serve_study
from .times import fastest_plan

USUAL_TRAINING_SEQ = 4096
"""Default tokens of a sequence: what most pre-training runs since Llama 2 start with."""


def ask_cost(run_question: RunQuestion, cost_options: CostOptions) -> ReportedAnswer:
    """Computes days, energy and money of a training run or of a number of requests.

    Raises `InputError` for options that contradict each other, and where no layout fits.
    """
    run_question.refuse_inputs("cost")
    from ..reports.cost import report

    if (cost_options.tokens is None) == (cost_options.requests is None):
        expected_options = (
            "one of the two" if cost_options.tokens is not None else "--tokens 15T to train, or --requests 1M to serve"
        )
        raise InputError(
            f"--tokens, --requests: {'both are' if cost_options.tokens else 'neither is'} given; expected {expected_options}"
        )
    hardware = run_question.hardware
    if hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    watts, hourly_price = hardware.tdp_watts if cost_options.power is None else cost_options.power, cost_options.price
    if cost_options.tokens is not None:
        answer = _training_cost(run_question, cost_options, watts, hourly_price)
    else:
        answer = _serving_cost(run_question, cost_options, watts, hourly_price)
    return ReportedAnswer(answer, lambda: report(run_question.preset, hardware, answer))


def _training_cost(
    run_question: RunQuestion, cost_options: CostOptions, watts: float | None, hourly_price: float | None
) -> RunCost:
    for option_field in ("input", "output", "concurrency", "engine"):
        if getattr(cost_options, option_field) is not None:
            raise InputError(
                f"{option(option_field)}: is of --requests; expected --requests in place of --tokens, or neither"
            )
    if run_question.settings.phase in ("prefill", "decode"):
        raise InputError(
            f"--phase {run_question.settings.phase}: --tokens are of training; expected --requests, or no --phase"
        )
    devices = run_question.layout.devices
    if devices is None:
        raise InputError("--devices: missing; expected the number of accelerators that train")
    assert cost_options.tokens is not None
    run_question, assumed_options = _with_usual_step(run_question, cost_options)
    assert run_question.settings.seq is not None
    spec, settings = run_question.preset.model, run_question.settings
    has_usual_steps = is_pretraining(spec, settings.lora_rank)
    batch = cost_options.global_batch or (
        usual_batch(run_question.settings.seq, devices)
        if has_usual_steps
        else default_batch(run_question.settings.seq, devices, settings.batch or 1)
    )
    assumed_options += [] if cost_options.global_batch is not None else [f"--global-batch {batch}"]
    step_tokens = batch * run_question.settings.seq
    step_count = -(-cost_options.tokens // step_tokens)
    time_estimate: dict[str, Any] = {"is_measured": True}
    if cost_options.step is not None:
        step_seconds = Amount.without_range(cost_options.step)
    else:
        time_options = TimeOptions(stack=cost_options.stack, overlap=cost_options.overlap, nic=cost_options.nic)
        layout_plan = fastest_plan(run_question, time_options, batch)
        seconds = layout_plan.range(layout_plan.plan.feasible[0])
        assert seconds is not None
        assert layout_plan.times is not None
        step_seconds = seconds.amount
        time_estimate = {"range": seconds, "stack_title": layout_plan.times.stack.title, "plan": layout_plan}
    return RunCost(
        Cost(step_seconds.scaled_by(step_count), devices, watts, hourly_price),
        cost_options.tokens,
        steps=step_count,
        step=step_seconds,
        step_tokens=step_tokens,
        assumed_options=tuple(assumed_options),
        is_pretraining=has_usual_steps,
        **time_estimate,
    )


def _with_usual_step(run_question: RunQuestion, cost_options: CostOptions) -> tuple[RunQuestion, list[str]]:
    """Adds the usual training length to a question without a length, and returns a note about it."""
    settings = run_question.settings.with_(phase="training").with_usual_recomputation()
    assumed_options: list[str] = []
    if settings.seq is None:
        spec = run_question.preset.model
        longest_sequence_length = learned_positions(spec) or longest_sequence(spec) or USUAL_TRAINING_SEQ
        settings = settings.with_(seq=min(USUAL_TRAINING_SEQ, longest_sequence_length))
        assumed_options.append(f"--seq {settings.seq}")
    return replace(run_question, settings=settings), assumed_options


def _refuse_training_options(command_options: Any, training_options: tuple[str, ...]) -> None:
    """Raises `InputError` for an option that does not apply to a server under load."""
    for option_field in declared(type(command_options)):
        if option_field not in training_options and getattr(command_options, option_field) is not None:
            raise InputError(f"{option(option_field)}: does not change servers of --requests; remove it")


def _serving_cost(
    run_question: RunQuestion, cost_options: CostOptions, watts: float | None, hourly_price: float | None
) -> RunCost:
    for option_field in ("step", "global_batch", "overlap"):
        if getattr(cost_options, option_field) is not None:
            raise InputError(f"{option(option_field)}: is of training; expected --tokens in place of --requests")
    for option_field in ("input", "output"):
        if getattr(cost_options, option_field) is None:
            token_kind = "prompt" if option_field == "input" else "answer"
            raise InputError(f"{option(option_field)}: missing; expected the tokens of a request's {token_kind}")
    assert cost_options.input is not None
    assert cost_options.output is not None
    assert cost_options.requests is not None
    assert run_question.hardware is not None
    layout, settings = run_question.layout, run_question.settings
    _refuse_training_options(settings, ("phase", "quantize", "kv_dtype"))
    _refuse_training_options(layout, ("devices", "tp", "pp", "dp", "ep"))
    if settings.phase != "inference":
        raise InputError(f"--phase {settings.phase}: --requests are served; expected --tokens, or no --phase")
    server_study = serve_study(
        run_question.preset,
        run_question.hardware,
        ServeOptions(
            cost_options.input,
            cost_options.output,
            concurrency=cost_options.concurrency,
            devices=layout.devices,
            tp=layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            ep=layout.ep,
            engine=cost_options.engine,
            quantize=settings.quantize,
            kv_dtype=settings.kv_dtype,
            stack=cost_options.stack,
            nic=cost_options.nic,
        ),
    )
    server_search = server_study.answer()
    if server_search.chosen is None:
        refusal_reasons = ", ".join(server_search.why_not)
        raise InputError(
            f"--devices: no server of {server_study.hardware.title} serves these requests: {refusal_reasons}"
        )
    chosen_point = server_search.chosen.point
    serving_cost = Cost(
        chosen_point.end_to_end.scaled_by(cost_options.requests / chosen_point.concurrency),
        chosen_point.devices,
        watts,
        hourly_price,
    )
    chosen_server = server_search.servers[server_search.chosen.index]
    return RunCost(
        serving_cost,
        requests=cost_options.requests,
        range=chosen_point.tpot,
        stack_title=server_study.stack.title,
        server=chosen_server,
        load_point=chosen_point,
    )

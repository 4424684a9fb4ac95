"""The report of `llmcalc cost`: days, device-hours, energy and money of a run, with ranges."""

from __future__ import annotations

from typing import Any

from .. import units
from ..accelerator import Hardware
from ..sources.preset import Preset
from ..studies.cost import LEAST_TIME_IN_STEPS, UNCOUNTED_COSTS, RunCost
from ..studies.plan import LayoutPlan
from ..studies.step_size import LEAST_DEVICE_TOKENS, STEP_TOKENS, usual_step_tokens
from ..timing.time_ranges import RangedAmount
from .document import Column, DisplayedValue, Report, Table, displayed_text, row
from .notes import counted_noun, device_phrase, float16_notes, large_step_notes, published_tag_notes
from .rank_texts import candidate_cell
from .serve import layout_text
from .summary import model_data
from .time_estimate import duration_text, range_unit, test_errors_text, unpriced_notes

TITLE_AND_UNIT_BY_AMOUNT = {
    "days": ("days", "days"),
    "device_hours": ("device hours", "hours"),
    "energy_kwh": ("energy", "kWh"),
    "money": ("money", "as --price"),
}
"""Quantity → its name and its unit."""

COLUMNS = (
    Column("quantity", "what", justify="left"),
    Column("low", "low", displayed_text),
    Column("high", "high", displayed_text),
    Column("estimate", "likely", displayed_text),
    Column("unit", "unit", justify="left"),
)


def amount_text(amount: float, digit_count: int = 2) -> str:
    """Returns an amount as text with two significant digits: `0.23`, `37`, `12,000`."""
    rounded_value = float(f"{amount:.{digit_count}g}")
    return f"{rounded_value:,.0f}" if rounded_value >= 10 ** (digit_count - 1) else f"{rounded_value:g}"


def report(preset: Preset, hardware: Hardware, run_cost: RunCost) -> Report:
    """Returns the report of a run's cost as data and as a table."""
    cost_amounts, digit_count = run_cost.cost.amounts_by_name, 3 if run_cost.is_measured else 2
    table_rows = [
        row(
            TITLE_AND_UNIT_BY_AMOUNT[amount_name][0],
            *(
                DisplayedValue(range_end, amount_text(range_end, digit_count))
                for range_end in _low_high_and_likely(ranged_amount)
            ),
            TITLE_AND_UNIT_BY_AMOUNT[amount_name][1],
        )
        for amount_name, ranged_amount in cost_amounts.items()
        if ranged_amount is not None
    ]
    if run_cost.tokens:
        run_text = f"{units.count(run_cost.tokens)} tokens"
    else:
        run_text = f"{units.count(run_cost.requests or 0)} request{'' if run_cost.requests == 1 else 's'}"
    title = f"{preset.display}, {run_text}"
    notes = [*_library_tag_notes(preset, run_cost), *_cost_notes(hardware, run_cost)]
    subtitle = _subtitle_text(hardware, run_cost)
    table = Table(title, COLUMNS, table_rows, subtitle, notes, _answer_text(run_cost), name="cost")
    return Report(_cost_data(preset, hardware, run_cost), [table]).with_target(preset.target)


def _low_high_and_likely(amount: RangedAmount) -> tuple[float, float, float]:
    return amount.low, amount.high, amount.estimate


def _answer_text(run_cost: RunCost) -> str:
    money_amount = run_cost.cost.money
    shortest_time_text, longest_time_text, likely_time_text, time_unit = _likely_time_with_range_and_unit(run_cost)
    money_suffix = "" if money_amount is None else f", money {money_range(money_amount)}"
    if run_cost.is_measured:
        return f"{likely_time_text} {time_unit}{money_suffix}"
    likely_cost = "" if money_amount is None else f", likely {amount_text(money_amount.estimate)}"
    return (
        f"{shortest_time_text} to {longest_time_text} {time_unit}, likely {likely_time_text}{money_suffix}{likely_cost}"
    )


def _likely_time_with_range_and_unit(run_cost: RunCost) -> tuple[str, str, str, str]:
    """Returns low, high and likely time and their unit: days, or less for a run of less than a day."""
    days_amount, digit_count = run_cost.cost.days, 3 if run_cost.is_measured else 2
    low_text, high_text, likely_text = (
        amount_text(range_end, digit_count) for range_end in _low_high_and_likely(days_amount)
    )
    if days_amount.high >= 1:
        return low_text, high_text, likely_text, "days"
    run_seconds = run_cost.cost.seconds
    time_unit = range_unit(run_seconds.low, run_seconds.high)
    low_text, high_text, likely_text = (
        duration_text(range_end, time_unit, digit_count).removesuffix(f" {time_unit}")
        for range_end in _low_high_and_likely(run_seconds)
    )
    return low_text, high_text, likely_text, time_unit


def money_range(money_amount: RangedAmount) -> str:
    """Returns a range of money as text without a currency: `1,200 to 1,900`."""
    if money_amount.low == money_amount.high:
        return amount_text(money_amount.estimate, 3)
    return f"{amount_text(money_amount.low)} to {amount_text(money_amount.high)}"


def _subtitle_text(hardware: Hardware, run_cost: RunCost) -> str:
    devices_text = device_phrase(run_cost.cost.devices, hardware.title)
    if run_cost.server is not None and run_cost.load_point is not None:
        requests_text = counted_noun(int(run_cost.load_point.concurrency), "request")
        return f"{layout_text(run_cost.server)} on {devices_text}, {requests_text} at any time"
    assert run_cost.step_seconds is not None
    assert run_cost.step_count is not None
    step_text = duration_text(run_cost.step_seconds.estimate, digit_count=3)
    step_origin = "measured" if run_cost.is_measured else "likely"
    layout = "" if run_cost.plan is None else f", {_planned_layout_text(run_cost.plan)}"
    return (
        f"{counted_noun(run_cost.step_count, 'step')} of {run_cost.step_tokens:,} tokens, {step_origin} {step_text} "
        f"each, on {devices_text}{layout}; {_lost_time_text(run_cost)}"
    )


def _lost_time_text(run_cost: RunCost) -> str:
    """Returns text on whether a training run's amounts include time lost to restarts, data loading and checkpoints."""
    if run_cost.cost.includes_lost_time:
        return f"high: {units.percent(1 - LEAST_TIME_IN_STEPS, 0)} of the time lost to restarts and the like"
    return "without restarts, data loading, checkpoints"


def _planned_layout_text(plan: LayoutPlan) -> str:
    """Returns a plan's first layout as text, with the recomputation, and with micro-batches of several sequences."""
    layout_candidate = plan.ranked_layouts.fitting_candidates[0]
    layout_words = candidate_cell(
        layout_candidate.layout, layout_candidate.recompute or plan.memory.settings.recompute or ""
    )
    micro_batch = plan.memory.settings.batch or 1
    return (
        layout_words
        if micro_batch == 1
        else f"{layout_words}, micro-batches of {counted_noun(micro_batch, 'sequence')}"
    )


def _step_description(run_cost: RunCost) -> str:
    """Returns the assumed batch of a training step as text in brackets; empty if the user stated the batch."""
    if run_cost.assumed_request_origin:
        return f" ({run_cost.assumed_request_origin})"
    if run_cost.is_measured:
        return " (the tokens of the measured step)"
    is_usual_batch = any(option_name.startswith("--global-batch") for option_name in run_cost.assumed_options)
    if not is_usual_batch:
        return ""
    if run_cost.is_pretraining:
        if run_cost.published_step_tokens:
            return f" (a step of about {units.count(run_cost.published_step_tokens)} tokens, as published)"
        if usual_step_tokens(run_cost.cost.devices) > STEP_TOKENS:
            return f" (a step of about {LEAST_DEVICE_TOKENS:,} tokens a device, as of Llama 3 405B on 16,384)"
        return " (a step of about 4M tokens, as of Llama 2 and 3)"
    return " (a micro-batch of each device)"


def _library_tag_notes(preset: Preset, run_cost: RunCost) -> list[str]:
    """Returns a note on a tag of Ollama's library whose published weights are served."""
    is_served_as_published = run_cost.server is not None and run_cost.server.quantize is None
    return published_tag_notes(preset, run_cost.stack_title, "llmcalc time") if is_served_as_published else []


def _cost_notes(hardware: Hardware, run_cost: RunCost) -> list[str]:
    notes = []
    if run_cost.step_tokens and run_cost.step_sequences:
        notes += large_step_notes(run_cost.step_sequences, run_cost.step_tokens // run_cost.step_sequences)
    notes += [] if run_cost.time_range is None else [test_errors_text(run_cost.time_range, run_cost.stack_title)]
    if run_cost.time_range is not None:
        time_model = None if run_cost.plan is None else run_cost.plan.training_times
        notes += float16_notes(hardware, "bf16" if time_model is None else time_model.dtype)
        notes += unpriced_notes([] if time_model is None else time_model.unpriced_options)
    if run_cost.options_added_by_plan:
        notes.insert(0, f"what is typed does not fit: the cost is with {run_cost.options_added_by_plan}")
    if run_cost.assumed_options:
        notes.append(f"assumed: {' '.join(run_cost.assumed_options)}{_step_description(run_cost)}")
    cost_of_run = run_cost.cost
    if run_cost.has_assumed_devices:
        notes.append(f"--devices {cost_of_run.devices}: the fewest that were found to fit; more take fewer days")
    notes.append(_not_counted_text(run_cost))
    if cost_of_run.price_per_hour is None:
        notes.append("no --price: no money; it is the price of a device and hour")
    if cost_of_run.watts_per_device is None:
        notes.append(f"{hardware.title}: no TDP is known; --power WATTS gives its energy")
    else:
        notes.append(
            f"energy: {cost_of_run.watts_per_device:,.0f} W of each accelerator (its TDP, or --power), without "
            f"{', '.join(UNCOUNTED_COSTS['power'])}"
        )
        if run_cost.time_range is not None and cost_of_run.watts_per_device < (hardware.tdp_watts or 0):
            notes.append(
                f"if --power is a limit and not the average draw, the run is slower than these times, which are of "
                f"{hardware.tdp_watts or 0:,.0f} W"
            )
    return notes


def _not_counted_text(run_cost: RunCost) -> str:
    """Returns text on the costs that the amounts leave out, and on whether the range's upper end covers lost time."""
    uncounted_text = f"not counted: {', '.join(UNCOUNTED_COSTS['training' if run_cost.tokens else 'requests'])}"
    if not run_cost.tokens or not run_cost.cost.includes_lost_time:
        return uncounted_text
    least_time_share = units.percent(LEAST_TIME_IN_STEPS, 0)
    return (
        f"{uncounted_text}; high alone has time for them: of six published long runs five spent {least_time_share} or "
        "more of their time in steps that count"
    )


def _cost_data(preset: Preset, hardware: Hardware, run_cost: RunCost) -> dict[str, Any]:
    from .serve import load_point_data

    layout_entry: Any = None
    if run_cost.plan is not None:
        layout_entry = run_cost.plan.ranked_layouts.fitting_candidates[0].layout.data()
    elif run_cost.server is not None:
        layout_entry = {**vars(run_cost.server.layout_sizes), "replicas": run_cost.server.replicas}
    return {
        "model": model_data(preset),
        "hardware": hardware.name,
        "devices": run_cost.cost.devices,
        "tokens": run_cost.tokens,
        "requests": run_cost.requests,
        "cost": {
            amount_name: None if amount is None else amount.as_data()
            for amount_name, amount in run_cost.cost.amounts_by_name.items()
        },
        "steps": run_cost.step_count,
        "step_tokens": run_cost.step_tokens,
        "step": None if run_cost.step_seconds is None else run_cost.step_seconds.as_data(),
        "measured": run_cost.is_measured,
        "layout": layout_entry,
        "server": None if run_cost.load_point is None else load_point_data(run_cost.load_point),
        "class": None if run_cost.time_range is None else run_cost.time_range.class_data(),
        "power_watts": run_cost.cost.watts_per_device,
        "price": run_cost.cost.price_per_hour,
        "assumed": list(run_cost.assumed_options),
        "not_counted": list(UNCOUNTED_COSTS["training" if run_cost.tokens else "requests"]),
    }

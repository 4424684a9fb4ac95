"""The report of `llmcalc cost`: days, device-hours, energy and money of a run, each as a range."""

from __future__ import annotations

from typing import Any

from .. import units
from ..accelerator import Hardware
from ..sources.preset import Preset
from ..studies.cost import NOT_COUNTED, RunCost
from ..timing.spread import Amount
from .document import Column, Report, Row, Shown, Table, text_of
from .notes import plural
from .seconds import class_text, duration
from .serve import layout_text
from .share import layout_cell
from .summary import model_data

TITLES = {
    "days": ("days", "days"),
    "device_hours": ("device hours", "hours"),
    "energy_kwh": ("energy", "kWh"),
    "money": ("money", "as --price"),
}
"""Quantity → its name and its unit."""

COLUMNS = (
    Column("quantity", "what", justify="left"),
    Column("low", "low", text_of),
    Column("high", "high", text_of),
    Column("estimate", "likely", text_of),
    Column("unit", "unit", justify="left"),
)


def amount_text(value: float, digits: int = 2) -> str:
    """Writes an amount with two significant digits: `0.23`, `37`, `12,000`."""
    rounded_value = float(f"{value:.{digits}g}")
    return f"{rounded_value:,.0f}" if rounded_value >= 10 ** (digits - 1) else f"{rounded_value:g}"


def report(preset: Preset, hardware: Hardware, answer: RunCost) -> Report:
    """Returns the report of a run's cost as data and as a table."""
    amounts, digits = answer.cost.amounts, 3 if answer.measured else 2
    rows = [
        Row(
            [
                TITLES[name][0],
                *(Shown(value, amount_text(value, digits)) for value in _range_ends(amount)),
                TITLES[name][1],
            ]
        )
        for name, amount in amounts.items()
        if amount is not None
    ]
    run_text = (
        f"{units.count(answer.tokens)} tokens" if answer.tokens else f"{units.count(answer.requests or 0)} requests"
    )
    title = f"{preset.display}, {run_text}"
    table = Table(
        title,
        COLUMNS,
        rows,
        _aside_text(hardware, answer),
        _cost_notes(hardware, answer),
        _answer_text(answer),
        name="cost",
    )
    return Report(_cost_data(preset, hardware, answer), [table]).of(preset.target)


def _range_ends(amount: Amount) -> tuple[float, float, float]:
    return amount.low, amount.high, amount.estimate


def _answer_text(answer: RunCost) -> str:
    days, cost = answer.cost.days, answer.cost.money
    spent = "" if cost is None else f", {money_range(cost)}"
    if answer.measured:
        return f"{amount_text(days.estimate, 3)} days{spent}"
    return f"{amount_text(days.low)} to {amount_text(days.high)} days{spent}, likely {_likely_text(answer)}"


def _likely_text(answer: RunCost) -> str:
    cost = answer.cost.money
    days = f"{amount_text(answer.cost.days.estimate)} days"
    return days if cost is None else f"{days} and {amount_text(cost.estimate)}"


def money_range(cost: Amount) -> str:
    """Writes the range of money, without a currency: `1,200 to 1,900`."""
    if cost.low == cost.high:
        return amount_text(cost.estimate, 3)
    return f"{amount_text(cost.low)} to {amount_text(cost.high)}"


def _aside_text(hardware: Hardware, answer: RunCost) -> str:
    devices_text = f"{answer.cost.devices:,} {hardware.title}"
    if answer.server is not None and answer.point is not None:
        return (
            f"{layout_text(answer.server)} on {devices_text}, {plural(answer.point.concurrency, 'request')} at any time"
        )
    assert answer.step is not None
    assert answer.steps is not None
    step = duration(answer.step.estimate, digits=3)
    kind = "measured" if answer.measured else "likely"
    layout = "" if answer.plan is None else f", {layout_cell(answer.plan.plan.feasible[0].layout)}"
    return f"{answer.steps:,} steps of {answer.step_tokens:,} tokens, {kind} {step} each, on {devices_text}{layout}"


def _cost_notes(hardware: Hardware, answer: RunCost) -> list[str]:
    notes = [] if answer.range is None else [class_text(answer.range, answer.stack_title)]
    if answer.assumed:
        of_step = (
            "the tokens of the measured step" if answer.measured else "a step of about 4M tokens, as of Llama 2 and 3"
        )
        notes.append(f"assumed: {' '.join(answer.assumed)} ({of_step})")
    cost = answer.cost
    if cost.price is None:
        notes.append("no --price: no money; it is the price of a device and hour")
    if cost.power is None:
        notes.append(f"{hardware.title}: no TDP is known; --power WATTS gives its energy")
    else:
        notes.append(
            f"energy: {cost.power:,.0f} W of each accelerator (its TDP, or --power), without "
            f"{', '.join(NOT_COUNTED['power'])}"
        )
    kind = "training" if answer.tokens else "requests"
    return [*notes, f"not counted: {', '.join(NOT_COUNTED[kind])}"]


def _cost_data(preset: Preset, hardware: Hardware, answer: RunCost) -> dict[str, Any]:
    from .serve import point_data

    layout: Any = None
    if answer.plan is not None:
        layout = answer.plan.plan.feasible[0].layout.data()
    elif answer.server is not None:
        layout = {**vars(answer.server.sizes), "replicas": answer.server.replicas}
    return {
        "model": model_data(preset),
        "hardware": hardware.name,
        "devices": answer.cost.devices,
        "tokens": answer.tokens,
        "requests": answer.requests,
        "cost": {name: None if amount is None else amount.data() for name, amount in answer.cost.amounts.items()},
        "steps": answer.steps,
        "step_tokens": answer.step_tokens,
        "step": None if answer.step is None else answer.step.data(),
        "measured": answer.measured,
        "layout": layout,
        "server": None if answer.point is None else point_data(answer.point),
        "class": None if answer.range is None else answer.range.class_data(),
        "power_watts": answer.cost.power,
        "price": answer.cost.price,
        "assumed": list(answer.assumed),
        "not_counted": list(NOT_COUNTED["training" if answer.tokens else "requests"]),
    }

"""The report of `llmcalc budget`: all checked values with their bounds, as tables, JSON data and JUnit XML."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from .. import units
from ..studies.budget import BudgetCheck, count_violations
from ..studies.budget_file import KIND_BY_QUANTITY, BudgetLimit
from .document import (
    Column,
    DisplayedValue,
    Report,
    Row,
    Table,
    displayed_text,
    row,
    with_notes_below,
    without_repetitions,
)
from .junit import xml_text
from .notes import counted_noun

COLUMNS = (
    Column("key", "bound on", justify="left", may_wrap=True),
    Column("measured", "value", displayed_text),
    Column("limit", "bound", displayed_text),
    Column("share", "of it", units.percent),
    Column("verdict", "verdict", justify="left", is_verdict=True),
)

WRITER_BY_KIND: dict[str, Callable[[Any], str]] = {"count": units.count, "FLOPs": units.flops, "bytes": units.memory}


def report(file_name: str, budget_checks: list[BudgetCheck]) -> Report:
    """Returns the report of checked values: data, and a table for each model. file_name: the budget file's name."""
    violation_count = count_violations(budget_checks)
    success_text = f"all {len(budget_checks)} bounds hold" if len(budget_checks) > 1 else "the bound holds"
    headline_text = (
        f"{counted_noun(violation_count, 'bound')} of {len(budget_checks)} broken" if violation_count else success_text
    )
    warnings = without_repetitions(f"{check.target}: {check.warning}" for check in budget_checks if check.warning)
    has_memory_check = any(budget_check.key in ("memory", "fits") for budget_check in budget_checks)
    memory_note = "memory: that of one device, which has to fit (device_bytes); without a phase inference"
    if not budget_checks:
        headline_text = "no such file"
        warnings = [f"no {file_name}, so no bound is checked"]
    notes = [*warnings, memory_note if has_memory_check else ""]
    model_targets = dict.fromkeys(budget_check.target for budget_check in budget_checks)
    model_tables = [
        Table(
            model_target, COLUMNS, _bound_rows_of_model(model_target, budget_checks), name="bounds", target=model_target
        )
        for model_target in model_targets
    ]
    summary_table = Table(file_name, COLUMNS, [], answer=headline_text, name="bounds")
    tables = with_notes_below([summary_table, *model_tables], notes)
    return Report(_budget_data(file_name, budget_checks), tables, warnings=warnings)


def _bound_rows_of_model(model_target: str, budget_checks: list[BudgetCheck]) -> list[Row]:
    """Returns a table row for each bound of the budget on one model."""
    return [
        row(
            _displayed_check_name(check),
            DisplayedValue(_int_or_float(check.measured_value), _value_text(check, check.measured_value)),
            DisplayedValue(
                _limits_text(check, lambda limit: str(_int_or_float(limit.value))),
                _limits_text(check, partial(_limit_text, check)),
            ),
            _fraction_of_limit(check),
            "fits" if check.ok and check.accelerator else "ok" if check.ok else "no",
        )
        for check in budget_checks
        if check.target == model_target
    ]


def _displayed_check_name(budget_check: BudgetCheck) -> str:
    """Returns the displayed name of a budget check: `fits on h100-sxm (seq 8192)`."""
    settings_text = ", ".join(
        f"{setting_name} {setting_value}" for setting_name, setting_value in budget_check.settings.items()
    )
    check_name = f"fits on {budget_check.accelerator}" if budget_check.accelerator else budget_check.key
    return f"{check_name} ({settings_text})" if settings_text else check_name


def _value_text(budget_check: BudgetCheck, checked_value: Fraction) -> str:
    """Returns a checked value as short text, or with all digits if rounding would hide a difference from the limit."""
    write_value = WRITER_BY_KIND[KIND_BY_QUANTITY.get(budget_check.key, "bytes")]
    other_limits = [
        checked_limit.value
        for checked_limit in budget_check.limits
        if checked_limit.value != budget_check.measured_value
    ]
    rounds_to_limit = any(
        write_value(_int_or_float(limit_value)) == write_value(_int_or_float(budget_check.measured_value))
        for limit_value in other_limits
    )
    if rounds_to_limit:
        return f"{_int_or_float(checked_value):,}"
    return write_value(_int_or_float(checked_value))


def _limits_text(budget_check: BudgetCheck, write_limit: Callable[[BudgetLimit], str]) -> str:
    """Returns both limits of a budget check as text: `>= 8.00 B, <= 8.10 B`."""
    return ", ".join(f"{checked_limit.operator} {write_limit(checked_limit)}" for checked_limit in budget_check.limits)


def _limit_text(budget_check: BudgetCheck, checked_limit: BudgetLimit) -> str:
    """Returns one limit of a budget check as text, with all digits if the value must equal the limit."""
    if checked_limit.operator == "==":
        return f"{_int_or_float(checked_limit.value):,}"
    return _value_text(budget_check, checked_limit.value)


def _fraction_of_limit(budget_check: BudgetCheck) -> float | None:
    checked_limit = budget_check.violated_limit or budget_check.limits[0]
    return float(budget_check.measured_value / checked_limit.value) if checked_limit.value else None


def _int_or_float(fraction: Fraction) -> int | float:
    return int(fraction) if fraction.denominator == 1 else float(fraction)


def _budget_data(file_name: str, budget_checks: list[BudgetCheck]) -> dict[str, Any]:
    checks = [
        {
            "target": budget_check.target,
            "key": budget_check.key,
            "on": budget_check.accelerator or None,
            "settings": budget_check.settings,
            "measured": _int_or_float(budget_check.measured_value),
            "bounds": [
                {"operator": checked_limit.operator, "value": _int_or_float(checked_limit.value)}
                for checked_limit in budget_check.limits
            ],
            "ok": budget_check.ok,
        }
        for budget_check in budget_checks
    ]
    return {"budget": file_name, "ok": not count_violations(budget_checks), "checks": checks}


def junit(file_name: str, budget_checks: list[BudgetCheck]) -> str:
    """Returns JUnit XML with a suite per model and a test case per bound."""
    suites_element = ET.Element("testsuites", name="llmcalc budget")
    for model_target in dict.fromkeys(budget_check.target for budget_check in budget_checks):
        model_checks = [budget_check for budget_check in budget_checks if budget_check.target == model_target]
        failure_count_text = str(count_violations(model_checks))
        test_suite = ET.SubElement(
            suites_element, "testsuite", name=model_target, tests=str(len(model_checks)), failures=failure_count_text
        )
        for budget_check in model_checks:
            test_case = ET.SubElement(
                test_suite,
                "testcase",
                classname=f"{file_name}.{model_target}",
                name=_displayed_check_name(budget_check),
            )
            if (checked_limit := budget_check.violated_limit) is not None:
                ET.SubElement(test_case, "failure", message=failure_message(budget_check, checked_limit))
    return xml_text(suites_element)


def failure_message(budget_check: BudgetCheck, checked_limit: BudgetLimit) -> str:
    """Returns the message about a broken limit: `params: 8,030,261,248 parameters; expected <= 8,000,000,000`."""
    quantity_kind = KIND_BY_QUANTITY.get(budget_check.key, "bytes")
    unit_name = "parameters" if quantity_kind == "count" else quantity_kind
    checked_values = (budget_check.measured_value, checked_limit.value)
    measured_text, bound_text = (f"{_int_or_float(checked_value):,}" for checked_value in checked_values)
    expected_text = f"{checked_limit.operator} {bound_text}"
    return f"{_displayed_check_name(budget_check)}: {measured_text} {unit_name}; expected {expected_text}"

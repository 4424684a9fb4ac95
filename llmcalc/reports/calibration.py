"""Calibration in a report (`--calibrate`): cross-validated errors before and after the fit, and factors."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .. import units
from ..timing.calibration import UNPROVED_CHANGE_SHARE, Calibration, ErrorStatistics
from ..timing.time_ranges import round_to_digits
from .document import Report
from .notes import counted_noun


def with_calibration(report: Report, calibration: Calibration | None) -> Report:
    """Adds the factors and errors of a calibration, and its notes, to a report; no change without a calibration."""
    if calibration is None or isinstance(report.data, list):
        return report
    first_table, *other_tables = report.tables
    first_table = first_table._replace(notes=[*_calibration_notes(calibration), *first_table.notes])
    tables = [first_table, *other_tables]
    return report._replace(data=report.data | {"calibration": calibration_data(calibration)}, tables=tables)


def calibration_data(calibration: Calibration) -> dict[str, Any]:
    """Returns a calibration's factors and errors as plain data for JSON."""
    return {
        "runs": calibration.run_count,
        "before": _errors_data(calibration.errors_without_fit),
        "after": _errors_data(calibration.errors_with_fit),
        "left_out": _errors_data(calibration.left_out_errors),
        "fitted": {
            factor_name: round_to_digits(factor) for factor_name, factor in asdict(calibration.fitted_factors).items()
        },
        "refused": calibration.refusal_reason or None,
    }


def _errors_data(validation_errors: ErrorStatistics) -> dict[str, float | None]:
    return {
        error_name: None if error is None else round_to_digits(error)
        for error_name, error in asdict(validation_errors).items()
    }


def _calibration_notes(calibration: Calibration) -> list[str]:
    errors_before = calibration.errors_without_fit
    errors_after = calibration.errors_with_fit
    errors_left_out = calibration.left_out_errors
    error_text = ", ".join(
        f"{units.percent(error_statistics.median_error, 0)} {moment_text}"
        for error_statistics, moment_text in (
            (errors_before, "before"),
            (errors_after, "after"),
            (errors_left_out, "of runs left out"),
        )
    )
    factors_text = ", ".join(
        f"{factor_name} × {fitted_factor:.2f}"
        for factor_name, fitted_factor in asdict(calibration.fitted_factors).items()
    )
    runs_text = counted_noun(calibration.run_count, "measured run")
    notes = [f"calibrated on {runs_text}, median error {error_text}; {factors_text}"]
    if not calibration.is_proved:
        notes = [
            f"hardly calibrated: of {runs_text}, those left out of a fit are not "
            "clearly estimated better by it, so no estimate of them changes by more than "
            f"{units.percent(UNPROVED_CHANGE_SHARE, 0)} "
            f"of the median error; median error {error_text}; {factors_text}"
        ]
    if calibration.refusal_reason:
        notes = [f"not calibrated: {calibration.refusal_reason} (median error {error_text})"]
    if errors_before.regret is not None and errors_after.regret is not None:
        choice_text = f"{units.percent(errors_before.regret)} before, {units.percent(errors_after.regret)} after"
        before_text = units.percent(errors_before.best_of_three or 0)
        errors_text = f"{before_text}, {units.percent(errors_after.best_of_three or 0)}"
        notes.append(f"regret of the first layout {choice_text}; of the best of three {errors_text}")
    return notes

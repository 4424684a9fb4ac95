"""Fits a software stack to measured runs, by factors for compute, memory, network and waiting seconds.

A factor of 1.2 of `memory` says that bytes take 1.2 times as long as on other systems with this accelerator and stack.
An estimate is nearly linear in the factors: its share that each of them bounds is found by changing that one. The fit
keeps the factors near each other and near 1, because few rows do not say which of them it is. Each row is estimated by
a fit of the others too. Where that is clearly better than no fit (a test that chance passes once in forty times),
the factors go as far from 1 as such fits explain the errors; else no estimate changes by more than a twentieth of the
median error. Where the estimates are as near as equal runs are to each other, none is made.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import astuple, fields, replace
from statistics import NormalDist, mean, median, stdev
from typing import TypeAlias

from ..errors import InputError
from ..frozen import frozen
from .device import Device
from .time_ranges import TIE_SHARE
from .timing_constants import SoftwareStack

SecondsFunction: TypeAlias = Callable[["CalibrationFactors"], float]
"""A function from calibration factors to the estimated seconds of a run."""

WAIT_CONSTANTS = (
    "least_kernel_gap_seconds",
    "host_seconds_per_kernel",
    "host_seconds_per_prompt_kernel",
    "host_seconds_per_step",
    "host_seconds_per_sequence",
    "first_token_seconds",
    "layer_wait_seconds",
    "exchange_wait_seconds",
    "host_update_seconds_per_parameter",
    "offloaded_update_seconds_per_parameter",
    "host_seconds_per_dtensor_operation",
)
"""Names of a software stack's constants for seconds in which no kernel runs."""

WAIT_CONSTANTS_BY_FORMAT = "product_wait_by_format", "expert_wait_by_format", "host_seconds_per_expert"
"""Names of a software stack's waiting constants that have a value for each number format."""


@frozen
class CalibrationFactors:
    """The factors by which a calibration multiplies the estimated compute, memory, network and waiting seconds."""

    compute: float = 1.0
    memory: float = 1.0
    network: float = 1.0
    wait: float = 1.0

    def scale_device(self, device: Device) -> Device:
        """Returns the device with compute and memory rates scaled by the factors, itself if they are 1."""
        if self == UNIT_FACTORS:
            return device
        generation = device.generation.model_copy(
            update={
                "kernel_start": device.generation.kernel_start * self.wait,
                "launch_gap": device.generation.launch_gap * self.wait,
                "far_latency": device.generation.far_latency * self.network,
            }
        )
        return replace(
            device,
            generation=generation,
            peak_rates={factor_name: peak_rate / self.compute for factor_name, peak_rate in device.peak_rates.items()},
            memory_bandwidth=device.memory_bandwidth / self.memory,
            link_bandwidth=device.link_bandwidth / self.network,
            network_bandwidth=device.network_bandwidth / self.network,
            latency=device.latency * self.network,
            link_protocols=tuple(
                (rate_share, message_seconds * self.network, step_seconds * self.network)
                for rate_share, message_seconds, step_seconds in device.link_protocols
            ),
        )

    def scale_stack(self, software_stack: SoftwareStack) -> SoftwareStack:
        """Returns the software stack with waits and network times multiplied by the factors (itself if all are 1)."""
        if self == UNIT_FACTORS:
            return software_stack
        scaled_waits = {factor_name: getattr(software_stack, factor_name) * self.wait for factor_name in WAIT_CONSTANTS}
        waits_by_format = {
            factor_name: {dtype: seconds * self.wait for dtype, seconds in getattr(software_stack, factor_name).items()}
            for factor_name in WAIT_CONSTANTS_BY_FORMAT
        }
        return software_stack.model_copy(update=scaled_waits | waits_by_format)


FACTOR_NAMES = tuple(field.name for field in fields(CalibrationFactors))

UNIT_FACTORS = CalibrationFactors()


@frozen
class CalibrationRun:
    """A measured run: its measured seconds, and a function that estimates them under calibration factors.

    name: its place in the file. seconds: what was measured. estimate_seconds: its estimate by factors.
    comparison_group: what has to be equal for the run's layout to be a choice among others; empty for none.
    """

    name: str
    seconds: float
    estimate_seconds: SecondsFunction
    comparison_group: tuple[object, ...] = ()


class LinearizedRuns:
    """The estimated seconds of several runs as linear functions of the four calibration factors."""

    def __init__(
        self, measured_runs: Sequence[CalibrationRun], base_factors: CalibrationFactors = UNIT_FACTORS
    ) -> None:
        self.measured_seconds: list[float] = [measured_run.seconds for measured_run in measured_runs]
        self.seconds_by_factor: list[tuple[float, ...]] = [
            tuple(_seconds_by_factor(measured_run.estimate_seconds, base_factors)) for measured_run in measured_runs
        ]

    def without_runs(self, run_indices: Container[int]) -> LinearizedRuns:
        """Returns the linearized estimates without those of the runs with these indices."""
        remaining_runs = LinearizedRuns([])
        remaining_runs.measured_seconds = [
            seconds for run_index, seconds in enumerate(self.measured_seconds) if run_index not in run_indices
        ]
        remaining_runs.seconds_by_factor = [
            seconds_by_factor
            for run_index, seconds_by_factor in enumerate(self.seconds_by_factor)
            if run_index not in run_indices
        ]
        return remaining_runs

    def errors(self, factors: Iterable[float]) -> list[float]:
        """Returns, for each run, the logarithm of estimated / measured seconds under these factors."""
        factor_values = tuple(factors)
        return [
            math.log(
                sum(
                    factor * part_seconds for factor, part_seconds in zip(factor_values, seconds_by_factor, strict=True)
                )
                / measured_seconds
            )
            for seconds_by_factor, measured_seconds in zip(self.seconds_by_factor, self.measured_seconds, strict=True)
        ]


FACTOR_STEP = 1.1
"""Factor by which one calibration factor is changed to find its share of an estimate."""

FACTOR_RANGE = (1 / 8, 8.0)
"""Smallest and largest calibration factor."""


def _seconds_by_factor(estimate_seconds: SecondsFunction, base_factors: CalibrationFactors) -> Iterator[float]:
    """Yields, for each calibration factor, the part of the estimated seconds that the factor multiplies."""
    base_seconds = estimate_seconds(base_factors)
    seconds_by_factor = []
    for factor_name in FACTOR_NAMES:
        factor_value = getattr(base_factors, factor_name)
        changed_estimate = estimate_seconds(replace(base_factors, **{factor_name: factor_value * FACTOR_STEP}))
        seconds_by_factor.append(max(0.0, (changed_estimate - base_seconds) / (factor_value * (FACTOR_STEP - 1))))
    total_seconds = sum(
        factor_seconds * getattr(base_factors, factor_name)
        for factor_seconds, factor_name in zip(seconds_by_factor, FACTOR_NAMES, strict=True)
    )
    for factor_seconds in seconds_by_factor:
        yield factor_seconds * base_seconds / total_seconds if total_seconds else base_seconds / len(FACTOR_NAMES)


COMMON_SPREAD = 0.05
"""Prior spread of the factor common to all parts of the estimate, as a logarithm. Some systems differ by far more: the
prior has heavy tails, so that it hardly shrinks a clear difference.
"""

FACTOR_SPREAD = 0.2
"""Prior spread of each calibration factor around the common factor, as a logarithm."""

LEAST_ERROR_SCALE = 0.02
"""Smallest error scale of a fit, as a logarithm, because equal runs do not repeat more exactly."""

MAX_ROUNDS = 60
"""Largest number of rounds of a fit; each round weights the runs by the errors of the previous round."""


def fit_factors(linearized_runs: LinearizedRuns) -> CalibrationFactors:
    """Returns the factors that fit the runs best; outliers have little weight, and factors near 1 are preferred.

    It is the maximum of a posterior: errors have the density of Cauchy's distribution around a typical error, factors
    that of normal ones around a common factor, which is itself near 1. Each round is a step of Gauss and Newton with
    runs weighed by 1 / (typical error² + error²). It starts with the median error as common factor.
    """
    log_factors = [-median(linearized_runs.errors(astuple(UNIT_FACTORS)))] * len(FACTOR_NAMES)
    factor_indices = range(len(FACTOR_NAMES))
    for _ in range(MAX_ROUNDS):
        factors = [math.exp(log_factor) for log_factor in log_factors]
        log_errors = linearized_runs.errors(factors)
        error_scale = max(LEAST_ERROR_SCALE, NORMAL_SCALE * median(map(abs, log_errors)))
        common_variance = COMMON_SPREAD**2 + mean(log_factors) ** 2
        # the inverse of FACTOR_SPREAD² I + common_variance 1 1ᵀ
        prior_diagonal = 1 / FACTOR_SPREAD**2
        prior_coupling = prior_diagonal / (len(FACTOR_NAMES) + FACTOR_SPREAD**2 / common_variance)
        curvature = [
            [prior_diagonal * (row_index == column_index) - prior_coupling for column_index in factor_indices]
            for row_index in factor_indices
        ]
        gradient = [prior_diagonal * log_factor - prior_coupling * sum(log_factors) for log_factor in log_factors]
        for log_error, seconds_by_factor in zip(log_errors, linearized_runs.seconds_by_factor, strict=True):
            run_weight = 1 / (error_scale**2 + log_error**2)
            estimated_seconds = sum(map(operator.mul, factors, seconds_by_factor))
            factor_shares = [
                factor * part_seconds / estimated_seconds
                for factor, part_seconds in zip(factors, seconds_by_factor, strict=True)
            ]
            for row_index in factor_indices:
                gradient[row_index] += run_weight * log_error * factor_shares[row_index]
                for column_index in factor_indices:
                    curvature[row_index][column_index] += (
                        run_weight * factor_shares[row_index] * factor_shares[column_index]
                    )
        clipped_step = [
            max(-0.5, min(0.5, parameter_step)) for parameter_step in _solve_linear_equations(curvature, gradient)
        ]
        log_factors = list(map(operator.sub, log_factors, clipped_step))
        if max(map(abs, clipped_step)) < 1e-3:
            break
    return CalibrationFactors(
        *(min(FACTOR_RANGE[1], max(FACTOR_RANGE[0], math.exp(log_factor))) for log_factor in log_factors)
    )


NORMAL_SCALE = 1 / NormalDist().inv_cdf(0.75)
"""The standard deviation of normal values over the median of their sizes."""


def _solve_linear_equations(matrix: Sequence[Sequence[float]], right_sides: Sequence[float]) -> list[float]:
    """Returns the solution of linear equations with a positive definite matrix, by elimination."""
    equations = [[*equation, right_side] for equation, right_side in zip(matrix, right_sides, strict=True)]
    for pivot_index, pivot_row in enumerate(equations):
        for row_index, equation in enumerate(equations):
            if pivot_index != row_index:
                elimination_ratio = equation[pivot_index] / pivot_row[pivot_index]
                equations[row_index] = [
                    row_cell - elimination_ratio * pivot_cell
                    for row_cell, pivot_cell in zip(equation, pivot_row, strict=True)
                ]
    return [equation[-1] / equation[pivot_index] for pivot_index, equation in enumerate(equations)]


@frozen
class ErrorStatistics:
    """Statistics of the ratio of estimated to measured seconds over several runs.

    median_error, p90_error: |estimate / measured - 1|.
    regret: how much longer the layout that is estimated fastest takes than the fastest, mean of the groups; None
        without a group of three layouts. best_of_three: the same of the best of the first three.
    """

    median_error: float
    p90_error: float
    regret: float | None
    best_of_three: float | None

    @classmethod
    def from_runs(cls, measured_runs: Sequence[CalibrationRun], estimates: Sequence[float]) -> ErrorStatistics:
        """Returns the error statistics of these estimates against the measured runs, in the same order."""
        log_errors = sorted(
            abs(estimated_seconds / measured_run.seconds - 1)
            for measured_run, estimated_seconds in zip(measured_runs, estimates, strict=True)
        )
        groups_by_setting: dict[tuple[object, ...], list[tuple[float, float]]] = {}
        for measured_run, estimated_seconds in zip(measured_runs, estimates, strict=True):
            groups_by_setting.setdefault(measured_run.comparison_group, []).append(
                (estimated_seconds, measured_run.seconds)
            )
        layout_choices = [
            layout_group
            for setting_name, layout_group in groups_by_setting.items()
            if setting_name and len(layout_group) >= LEAST_LAYOUTS
        ]
        return cls(
            median(log_errors),
            log_errors[min(len(log_errors) - 1, int(0.9 * len(log_errors)))],
            mean(_regret(layout_group, 1) for layout_group in layout_choices) if layout_choices else None,
            mean(_regret(layout_group, 3) for layout_group in layout_choices) if layout_choices else None,
        )


LEAST_LAYOUTS = 3
"""Least number of measured layouts of one run for a known regret."""


def _regret(layout_group: Sequence[tuple[float, float]], choice_count: int) -> float:
    fastest_estimates = sorted(layout_group)[:choice_count]
    return min(seconds for _, seconds in fastest_estimates) / min(seconds for _, seconds in layout_group) - 1


LEAST_RUNS = 3
"""Least number of measured runs for a fit."""

LARGEST_ERROR_RATIO = 0.9
"""Largest ratio of the left-out runs' median error with a fit to that without, for the fit to count as proved."""

LEAST_BETTER_SHARE = 2 / 3
"""Least fraction of left-out runs that a proved fit estimates better, so that a few outliers cannot decide."""

LEAST_Z_SCORE = NormalDist().inv_cdf(0.975)
"""Least z-score of the runs' gains for a proved fit; chance alone reaches it once in forty times."""

UNPROVED_CHANGE_SHARE = 0.05
"""Largest change of an estimate by a fit that is not proved, as a fraction of the median error.

Such a change lowers the median error of other runs of the source more often than not, and cannot raise it by much.
"""


@frozen
class Calibration:
    """The result of a calibration: fitted factors, with errors before and after the fit.

    run_count: number of measured runs.
    errors_without_fit, errors_with_fit: errors without and with the fit. left_out_errors: of each run, estimated by a
    fit of all others.
    fitted_factors: the factors. refusal_reason: why they are not used; empty where they are.
    is_proved: whether runs that are left out are estimated clearly better; else the factors are near 1.
    """

    run_count: int
    errors_without_fit: ErrorStatistics
    errors_with_fit: ErrorStatistics
    left_out_errors: ErrorStatistics
    fitted_factors: CalibrationFactors
    refusal_reason: str
    is_proved: bool

    @property
    def factors(self) -> CalibrationFactors:
        """The factors to use: the fitted factors, or 1 each if the fit is rejected."""
        return UNIT_FACTORS if self.refusal_reason else self.fitted_factors


def calibrate(measured_runs: Sequence[CalibrationRun]) -> Calibration:
    """Fits the factors to measured runs. Raises `InputError` for fewer than three runs."""
    if len(measured_runs) < LEAST_RUNS:
        raise InputError(f"--calibrate: {len(measured_runs)} measured runs; expected at least {LEAST_RUNS}")
    linearized_runs = LinearizedRuns(measured_runs)
    estimates = [measured_run.estimate_seconds(UNIT_FACTORS) for measured_run in measured_runs]
    log_errors = [
        math.log(estimated_seconds / run.seconds)
        for run, estimated_seconds in zip(measured_runs, estimates, strict=True)
    ]
    left_out_fit_errors = _left_out_errors(linearized_runs)
    is_clearly_better = _is_clearly_better(log_errors, left_out_fit_errors)
    factors = fit_factors(linearized_runs)
    if is_clearly_better:
        applied_share = 1 - _mean_ratio(left_out_fit_errors, log_errors) ** 2
    else:
        largest_change = max(map(abs, map(operator.sub, linearized_runs.errors(astuple(factors)), log_errors)))
        applied_share = min(1.0, UNPROVED_CHANGE_SHARE * median(map(abs, log_errors)) / max(largest_change, 1e-12))
    factors = CalibrationFactors(*(factor**applied_share for factor in astuple(factors)))
    damped_errors = [
        applied_share * left_out_fit_error + (1 - applied_share) * log_error
        for left_out_fit_error, log_error in zip(left_out_fit_errors, log_errors, strict=True)
    ]
    errors_without_fit, errors_with_fit, left_out_errors = (
        ErrorStatistics.from_runs(measured_runs, seconds)
        for seconds in (
            estimates,
            [run.estimate_seconds(factors) for run in measured_runs],
            [run.seconds * math.exp(log_error) for run, log_error in zip(measured_runs, damped_errors, strict=True)],
        )
    )
    return Calibration(
        len(measured_runs),
        errors_without_fit,
        errors_with_fit,
        left_out_errors,
        factors,
        _rejection_reason(errors_without_fit, errors_with_fit),
        is_clearly_better,
    )


def _mean_absolute_error(log_errors: Sequence[float]) -> float:
    return mean(map(abs, log_errors))


def _mean_ratio(errors_with_fit: Sequence[float], errors_without_fit: Sequence[float]) -> float:
    """Returns the mean absolute error with the fitted factors, divided by the error without them."""
    return _mean_absolute_error(errors_with_fit) / max(_mean_absolute_error(errors_without_fit), 1e-12)


def _is_clearly_better(log_errors: Sequence[float], left_out_fit_errors: Sequence[float]) -> bool:
    """Whether factors that were fitted to the other runs estimate a run clearly better than no factors, over all runs.

    log_errors, left_out_fit_errors: logs of estimated over measured seconds, of each run without a fit, and by a fit to
        the others.
    """
    error_gains = [
        abs(log_error) - abs(left_out_fit_error)
        for log_error, left_out_fit_error in zip(log_errors, left_out_fit_errors, strict=True)
    ]
    median_ratio = median(map(abs, left_out_fit_errors)) / max(median(map(abs, log_errors)), 1e-12)
    return (
        median_ratio <= LARGEST_ERROR_RATIO
        and mean(error_gain > 0 for error_gain in error_gains) >= LEAST_BETTER_SHARE
        and _z_score_of_mean(error_gains) >= LEAST_Z_SCORE
    )


def _z_score_of_mean(error_gains: Sequence[float]) -> float:
    """Returns the normal z-score with the same probability as the values' Student t; 0 for a mean below 0.

    Student's t, as a normal value by Wallace's approximation (Annals of Mathematical Statistics 30, 1959).
    """
    degrees_of_freedom = len(error_gains) - 1
    mean_gain = mean(error_gains)
    t_statistic = mean_gain * math.sqrt(len(error_gains)) / max(stdev(error_gains), 1e-12)
    if mean_gain <= 0:
        return 0.0
    return (
        (8 * degrees_of_freedom + 1)
        / (8 * degrees_of_freedom + 3)
        * math.sqrt(degrees_of_freedom * math.log1p(t_statistic**2 / degrees_of_freedom))
    )


def _rejection_reason(errors_without_fit: ErrorStatistics, errors_with_fit: ErrorStatistics) -> str:
    """Returns the reason to reject the fitted factors; empty if they are accepted."""
    if errors_without_fit.median_error <= TIE_SHARE:
        return f"the estimates are within {100 * TIE_SHARE:.0f} % already, as near as equal runs are to each other"
    if (
        errors_without_fit.regret is not None
        and errors_with_fit.regret is not None
        and errors_with_fit.regret > errors_without_fit.regret
    ):
        return "it would raise the regret of the chosen layout"
    return ""


MAX_ESTIMATES = 3000
"""Limit on the sum of runs over all leave-out fits: up to 54 runs are left out one by one, 300 runs in groups of 30."""


def _left_out_errors(linearized_runs: LinearizedRuns) -> list[float]:
    """Returns the logarithmic error of each run's estimate with factors fitted to the other runs.

    Of many runs several are left out together, so that the time grows in proportion to the number of runs.
    """
    run_count = len(linearized_runs.measured_seconds)
    fit_count = min(run_count, MAX_ESTIMATES // run_count)
    log_errors = [0.0] * run_count
    for first_index in range(fit_count):
        left_out_indices = range(first_index, run_count, fit_count)
        run_errors = linearized_runs.errors(astuple(fit_factors(linearized_runs.without_runs(left_out_indices))))
        for run_index in left_out_indices:
            log_errors[run_index] = run_errors[run_index]
    return log_errors

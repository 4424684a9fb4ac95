"""Fits a time stack to measured runs, by factors of compute, memory, network and waiting seconds.

A factor of 1.2 of `memory` says that bytes take 1.2 times as long as on other systems with this accelerator and stack.
An estimate is nearly linear in the factors: its share that each of them bounds is found by changing that one. The fit
keeps the factors near each other, because few rows do not say which of them it is; how near is chosen by the rows
themselves, each estimated by a fit of the others. The factors go only as far from 1 as fits of the others explain the
errors. Where such fits do not estimate most rows clearly better, or the estimates are as near as equal runs are to each
other, none is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import astuple, fields, replace
from functools import partial
from statistics import mean, median
from typing import NamedTuple, TypeAlias

from ..errors import InputError
from ..frozen import frozen
from .device import Device
from .records import Stack
from .spread import TIE

Pricer: TypeAlias = Callable[["Factors"], float]
"""Seconds that are estimated for a run with these factors."""

WAITS = (
    "kernel_gap", "host_kernel", "host_prompt_kernel", "host_step", "host_sequence", "first_token", "layer_wait",
    "exchange_wait", "host_update",
)  # fmt: skip
"""Seconds of a stack in which no kernel runs."""

WAITS_BY_FORMAT = "product_wait", "expert_wait"
"""Those that a stack states for each number format."""


@frozen
class Factors:
    """The calibration factors that multiply the estimated seconds of compute, memory, network and waits."""

    compute: float = 1.0
    memory: float = 1.0
    network: float = 1.0
    wait: float = 1.0

    def device(self, device: Device) -> Device:
        """Returns the device with compute and memory rates scaled by the factors."""
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
            peaks={name: peak / self.compute for name, peak in device.peaks.items()},
            bandwidth=device.bandwidth / self.memory,
            link=device.link / self.network,
            nic=device.nic / self.network,
            latency=device.latency * self.network,
        )

    def stack(self, stack: Stack) -> Stack:
        """Returns the time stack with waits and network times scaled by the factors."""
        waits = {name: getattr(stack, name) * self.wait for name in WAITS}
        waits_by_format = {
            name: {dtype: wait * self.wait for dtype, wait in getattr(stack, name).items()} for name in WAITS_BY_FORMAT
        }
        return stack.model_copy(update=waits | waits_by_format)


NAMES = tuple(field.name for field in fields(Factors))

UNCHANGED = Factors()


@frozen
class MeasuredRun:
    """A run with measured seconds.

    name: its place in the file. seconds: what was measured. pricer: its estimate by factors.
    group: what has to be equal for the run's layout to be a choice among others; empty for none.
    """

    name: str
    seconds: float
    pricer: Pricer
    group: tuple[object, ...] = ()


class LinearizedRuns:
    """The estimates of several runs, linearized in the four factors."""

    def __init__(self, runs: Sequence[MeasuredRun], base_factors: Factors = UNCHANGED) -> None:
        self.measured: list[float] = [measured_run.seconds for measured_run in runs]
        self.parts: list[tuple[float, ...]] = [
            tuple(_factor_shares(measured_run.pricer, base_factors)) for measured_run in runs
        ]

    def without(self, left_out: Container[int]) -> LinearizedRuns:
        """Returns the linearized estimates without the runs of these indices."""
        remaining_runs = LinearizedRuns([])
        remaining_runs.measured = [seconds for index, seconds in enumerate(self.measured) if index not in left_out]
        remaining_runs.parts = [parts for index, parts in enumerate(self.parts) if index not in left_out]
        return remaining_runs

    def errors(self, factors: Iterable[float]) -> list[float]:
        """Returns the logarithm of estimated over measured seconds for each run."""
        all_factors = tuple(factors)
        return [
            math.log(sum(factor * part for factor, part in zip(all_factors, parts, strict=True)) / seconds)
            for parts, seconds in zip(self.parts, self.measured, strict=True)
        ]

    def loss(self, logarithms: Sequence[float], penalty: Penalty) -> float:
        """Returns the mean error, plus a penalty for factors that differ from each other and from 1."""
        mean_logarithm = sum(logarithms) / len(logarithms)
        spread = sum((logarithm - mean_logarithm) ** 2 for logarithm in logarithms)
        errors = sum(map(abs, self.errors(map(math.exp, logarithms))))
        return (errors + penalty.spread * spread + penalty.common * mean_logarithm**2) / len(self.measured)


STEP = 1.1
"""Factor by which one part of an estimate is changed to find its share."""


class Penalty(NamedTuple):
    """The weights of a fit's penalty, in which the logarithms of the factors are squared.

    spread: of each factor's distance from their common factor. common: of the common factor's distance from 1.
    """

    spread: float
    common: float = 0.02


AS_ONE = Penalty(1e6)
"""The penalty by which the four factors are one."""

PENALTIES = (AS_ONE, Penalty(10.0))
"""How much the factors are kept near each other: as one, or somewhat by themselves."""

LOOSE_PENALTIES = (Penalty(1.0), Penalty(0.3))
"""Penalties of factors that are nearly free, used where they leave at most `LOOSE_GAIN` of the error of runs left out.

Used wherever they are a little better, they raised the error of the other half of a source by more than a tenth in 5
of 92 cases, in place of 2 of 79.
"""

LOOSE_GAIN = 0.5

RANGE = (1 / 8, 8.0)
"""Smallest and largest factor."""


def _factor_shares(pricer: Pricer, base_factors: Factors) -> Iterator[float]:
    """Yields for each factor the seconds of an estimate that are proportional to the factor, per unit of the factor."""
    base_seconds = pricer(base_factors)
    slopes = []
    for name in NAMES:
        factor = getattr(base_factors, name)
        changed_estimate = pricer(replace(base_factors, **{name: factor * STEP}))
        slopes.append(max(0.0, (changed_estimate - base_seconds) / (factor * (STEP - 1))))
    total = sum(slope * getattr(base_factors, name) for slope, name in zip(slopes, NAMES, strict=True))
    for slope in slopes:
        yield slope * base_seconds / total if total else base_seconds / len(NAMES)


def minimize(linear_fit: LinearizedRuns, penalty: Penalty, sweeps: int = 3) -> Factors:
    """Returns the factors with the least loss, by fitting a common factor, then each factor in several rounds."""
    low, high = map(math.log, RANGE)
    common_factor = _golden_section_minimum(
        lambda logarithm: linear_fit.loss([logarithm] * len(NAMES), penalty), low, high
    )
    logarithms = [common_factor] * len(NAMES)

    def loss_with(i: int, logarithm: float) -> float:
        return linear_fit.loss([*logarithms[:i], logarithm, *logarithms[i + 1 :]], penalty)

    for _ in range(sweeps if penalty.spread < AS_ONE.spread else 0):
        for i in range(len(NAMES)):
            nearby_range = max(low, logarithms[i] - 1), min(high, logarithms[i] + 1)
            logarithms[i] = _golden_section_minimum(partial(loss_with, i), *nearby_range)
    return Factors(*map(math.exp, logarithms))


GOLDEN = (math.sqrt(5) - 1) / 2


def _golden_section_minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Returns the argument of the minimum of a unimodal function, by golden-section search."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    value_left, value_right = function(left), function(right)
    while high - low > 1e-3:
        if value_left <= value_right:
            high, right, value_right = right, left, value_left
            left = high - GOLDEN * (high - low)
            value_left = function(left)
        else:
            low, left, value_left = left, right, value_right
            right = low + GOLDEN * (high - low)
            value_right = function(right)
    return (low + high) / 2


@frozen
class Errors:
    """Statistics of estimated / measured seconds of several runs.

    median_error, p90_error: |estimate / measured - 1|.
    regret: how much longer the layout that is estimated fastest takes than the fastest, mean of the groups; None
        without a group of three layouts. best_of_three: the same of the best of the first three.
    """

    median_error: float
    p90_error: float
    regret: float | None
    best_of_three: float | None

    @classmethod
    def from_runs(cls, runs: Sequence[MeasuredRun], estimates: Sequence[float]) -> Errors:
        """Returns the statistics of the errors of these runs' estimates, in the order of the runs."""
        errors = sorted(
            abs(estimate / measured_run.seconds - 1) for measured_run, estimate in zip(runs, estimates, strict=True)
        )
        groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
        for measured_run, estimate in zip(runs, estimates, strict=True):
            groups.setdefault(measured_run.group, []).append((estimate, measured_run.seconds))
        choices = [group for name, group in groups.items() if name and len(group) >= LEAST_LAYOUTS]
        return cls(
            median(errors),
            errors[min(len(errors) - 1, int(0.9 * len(errors)))],
            mean(_regret(group, 1) for group in choices) if choices else None,
            mean(_regret(group, 3) for group in choices) if choices else None,
        )


LEAST_LAYOUTS = 3
"""Measured layouts of one run from which its regret is known."""


def _regret(group: Sequence[tuple[float, float]], first_index: int) -> float:
    chosen_indices = sorted(group)[:first_index]
    return min(seconds for _, seconds in chosen_indices) / min(seconds for _, seconds in group) - 1


LEAST_RUNS = 3
"""Fewest runs from which factors are fitted."""

GAIN = 0.9
"""Error of runs that are left out over that without a fit, in the mean and in the median, up to which a fit is used."""

BETTER = 0.75
"""Share of the runs that are left out which the fit has to estimate better: else a few far ones decided it."""


@frozen
class Calibration:
    """The fitted factors of a calibration, with errors before and after the fit.

    runs: number of measured runs.
    before, after: errors without and with the fit. left_out: of each run, estimated by a fit of all others.
    fitted: the factors. refused: why they are not used; empty where they are.
    """

    runs: int
    before: Errors
    after: Errors
    left_out: Errors
    fitted: Factors
    refused: str

    @property
    def factors(self) -> Factors:
        """The factors in use."""
        return UNCHANGED if self.refused else self.fitted


def calibrate(runs: Sequence[MeasuredRun]) -> Calibration:
    """Fits the factors to measured runs. Raises `InputError` for fewer than three runs."""
    if len(runs) < LEAST_RUNS:
        raise InputError(f"--calibrate: {len(runs)} measured runs; expected at least {LEAST_RUNS}")
    linear_fit = LinearizedRuns(runs)
    estimates = [measured_run.pricer(UNCHANGED) for measured_run in runs]
    errors = [math.log(estimate / run.seconds) for run, estimate in zip(runs, estimates, strict=True)]
    trial, loose_trial = (
        min(
            ((penalty, _left_out_errors(linear_fit, penalty)) for penalty in penalties),
            key=lambda trial: _mean_size(trial[1]),
        )
        for penalties in (PENALTIES, LOOSE_PENALTIES)
    )
    if _mean_size(loose_trial[1]) <= LOOSE_GAIN * _mean_size(trial[1]):
        trial = loose_trial
    penalty, errors_of_fits = trial
    explained_share = max(0.0, 1 - _mean_ratio(errors_of_fits, errors) ** 2)
    factors = Factors(*(factor**explained_share for factor in astuple(minimize(linear_fit, penalty))))
    left_out_errors = [
        explained_share * error_of_fit + (1 - explained_share) * error
        for error_of_fit, error in zip(errors_of_fits, errors, strict=True)
    ]
    before, after, left_out = (
        Errors.from_runs(runs, seconds)
        for seconds in (
            estimates,
            [run.pricer(factors) for run in runs],
            [run.seconds * math.exp(error) for run, error in zip(runs, left_out_errors, strict=True)],
        )
    )
    refusal = _refusal(before, after, left_out, errors, left_out_errors)
    return Calibration(len(runs), before, after, left_out, factors, refusal)


def _mean_size(errors: Sequence[float]) -> float:
    return mean(map(abs, errors))


def _mean_ratio(errors_after: Sequence[float], errors_before: Sequence[float]) -> float:
    """Returns the mean absolute error with a fit, divided by the error without."""
    return _mean_size(errors_after) / max(_mean_size(errors_before), 1e-12)


def _refusal(
    before: Errors, after: Errors, left_out: Errors, errors: Sequence[float], left_out_errors: Sequence[float]
) -> str:
    """Returns the reason to reject a fit; empty if accepted.

    errors, left_out_errors: logarithms of estimated over measured seconds, of each run without a fit, and by a fit of
        the others.
    """
    if before.median_error <= TIE:
        return f"the estimates are within {100 * TIE:.0f} % already, as near as equal runs are to each other"
    improved_share = mean(abs(left_out) < abs(error) for left_out, error in zip(left_out_errors, errors, strict=True))
    gain = max(_mean_ratio(left_out_errors, errors), left_out.median_error / before.median_error)
    if gain > GAIN or improved_share < BETTER:
        return (
            "fits of the other runs estimate fewer than 3 of 4 runs better, or lower their errors by less than a tenth"
        )
    if before.regret is not None and after.regret is not None and after.regret > before.regret:
        return "it would raise the regret of the chosen layout"
    return ""


MOST_ESTIMATES = 3000
"""Most runs over all fits with runs left out: of up to 54 runs each is left out alone, of 300 every tenth together."""


def _left_out_errors(linear_fit: LinearizedRuns, penalty: Penalty) -> list[float]:
    """Returns each run's logarithmic error, estimated with factors fitted to the other runs.

    Of many runs several are left out together, so that the time grows in proportion to the number of runs.
    """
    run_count = len(linear_fit.measured)
    fit_count = min(run_count, MOST_ESTIMATES // run_count)
    errors = [0.0] * run_count
    for first_index in range(fit_count):
        left_out = range(first_index, run_count, fit_count)
        errors_of_all = linear_fit.errors(astuple(minimize(linear_fit.without(left_out), penalty)))
        for index in left_out:
            errors[index] = errors_of_all[index]
    return errors

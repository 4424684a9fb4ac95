"""Fits a stack on a user's own measured runs: at most four numbers, by which computing, memory, network and waits differ.

A factor of 1.2 of `memory` says that bytes take 1.2 times as long as on other systems with this accelerator and stack.
An estimate is nearly linear in the factors: its share that each of them bounds is found by changing that one. The fit
keeps the factors near each other, because few rows do not say which of them it is; how near is chosen by the rows
themselves, each estimated by a fit of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import TypeAlias

from .device import Device
from .records import Stack

Pricer: TypeAlias = Callable[["Factors"], float]
"""Seconds that are estimated for a run with these factors."""

WAITS = (
    "kernel_gap", "host_kernel", "host_prompt_kernel", "host_step", "host_sequence", "first_token", "layer_wait",
    "host_update",
)  # fmt: skip
"""Seconds of a stack in which no kernel runs."""


@dataclass(frozen=True)
class Factors:
    """Seconds over those without calibration, of what each of these bounds."""

    compute: float = 1.0
    memory: float = 1.0
    network: float = 1.0
    wait: float = 1.0

    def device(self, device: Device) -> Device:
        """The device as it runs here."""
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
        """The stack as it runs here."""
        return stack.model_copy(update={name: getattr(stack, name) * self.wait for name in WAITS})


NAMES = tuple(field.name for field in fields(Factors))

UNCHANGED = Factors()


@dataclass(frozen=True)
class MeasuredRun:
    """A run that the user measured.

    name: its place in the file. seconds: what was measured. pricer: its estimate by factors.
    group: what has to be equal for the run's layout to be a choice among others; empty for none.
    """

    name: str
    seconds: float
    pricer: Pricer
    group: tuple[object, ...] = ()


class Linear:
    """Estimates of runs as sums of the four factors, near those at which it was made."""

    def __init__(self, runs: Sequence[MeasuredRun], at: Factors = UNCHANGED) -> None:
        self.measured = [run.seconds for run in runs]
        self.parts: list[tuple[float, ...]] = [tuple(_parts(run.pricer, at)) for run in runs]

    def without(self, left_out: int) -> Linear:
        """The estimates of all runs but one."""
        rest = Linear([])
        rest.measured = [*self.measured[:left_out], *self.measured[left_out + 1 :]]
        rest.parts = [*self.parts[:left_out], *self.parts[left_out + 1 :]]
        return rest

    def error(self, index: int, factors: Sequence[float]) -> float:
        """Logarithm of the estimate over what was measured."""
        estimate = sum(factor * part for factor, part in zip(factors, self.parts[index], strict=True))
        return math.log(estimate / self.measured[index])

    def loss(self, logarithms: Sequence[float], stiffness: float) -> float:
        """Mean error, and how far the factors are from each other."""
        factors = [math.exp(value) for value in logarithms]
        middle = sum(logarithms) / len(logarithms)
        spread = sum((value - middle) ** 2 for value in logarithms)
        count = len(self.measured)
        errors = sum(abs(self.error(index, factors)) for index in range(count)) / count
        return errors + stiffness * spread / count + ANCHOR * middle**2 / count


STEP = 1.1
"""Factor by which one part of an estimate is changed to find its share."""

ANCHOR = 0.02
"""Weight of the factors' distance from 1, over the number of runs."""

STIFFNESSES = (1e6, 1.0, 0.1)
"""How much the factors are kept near each other: as one, or more and more by themselves."""

RANGE = (1 / 8, 8.0)
"""Smallest and largest factor."""


def _parts(pricer: Pricer, at: Factors) -> Iterator[float]:
    """Yields the share of an estimate that is in proportion to each factor, over that factor."""
    base = pricer(at)
    slopes = []
    for name in NAMES:
        factor = getattr(at, name)
        changed = pricer(replace(at, **{name: factor * STEP}))
        slopes.append(max(0.0, (changed - base) / (factor * (STEP - 1))))
    total = sum(slope * getattr(at, name) for slope, name in zip(slopes, NAMES, strict=True))
    for slope in slopes:
        yield slope * base / total if total else base / len(NAMES)


def minimize(linear: Linear, stiffness: float, sweeps: int = 6) -> Factors:
    """The factors of the least loss: the common one first, then each by itself, in turns."""
    logarithms = [0.0] * len(NAMES)

    def common(value: float) -> float:
        return linear.loss([value] * len(NAMES), stiffness)

    logarithms = [_least(common, *map(math.log, RANGE))] * len(NAMES)
    for _ in range(sweeps if stiffness < STIFFNESSES[0] else 0):
        for i in range(len(NAMES)):
            def alone(value: float, i: int = i) -> float:
                return linear.loss([*logarithms[:i], value, *logarithms[i + 1 :]], stiffness)

            logarithms[i] = _least(alone, max(math.log(RANGE[0]), logarithms[i] - 1), min(math.log(RANGE[1]), logarithms[i] + 1))
    return Factors(*map(math.exp, logarithms))


GOLDEN = (math.sqrt(5) - 1) / 2


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """The argument of the least value of a function with one valley, by golden sections."""
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


def left_out_errors(linear: Linear, stiffness: float) -> list[float]:
    """The error of each run, estimated by a fit of all others."""
    return [
        abs(math.expm1(linear.error(index, vars(minimize(linear.without(index), stiffness)).values())))  # type: ignore[arg-type]
        for index in range(len(linear.measured))
    ]

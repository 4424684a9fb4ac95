"""Whether models are within their budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..accelerator import Hardware
from ..costs.cache import kv
from ..costs.context_length import beyond
from ..costs.flops import flops, sight_of
from ..costs.params import params
from ..device_memory.cuda_runtime import HOPPER, Runtime, runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import MemoryPhase, Settings
from ..errors import InputError
from ..sources.budgets import Bound, Budget, Fits, Limit, ModelBudget
from ..sources.hardware import find_hardware
from ..sources.preset import Preset
from ..sources.target import load
from ..units import dtype
from ..workload.validation import one_of
from ..workload.workload import Phase


@dataclass(frozen=True)
class Check:
    """One value of a model beside its bounds.

    target: as the budget names it. key: of the budget. settings: of the run, those that the budget states. on: the
    accelerator, for `fits`; empty elsewhere. measured: in parameters, FLOPs or bytes; exact. warning: that the model
    was not made for so many tokens; empty if it was.
    """

    target: str
    key: str
    settings: dict[str, Any]
    measured: Fraction
    limits: tuple[Limit, ...]
    on: str = ""
    warning: str = ""

    @property
    def ok(self) -> bool:
        return all(limit.holds(self.measured) for limit in self.limits)

    @property
    def broken(self) -> Limit | None:
        """The first limit that does not hold; None if all do."""
        return next((limit for limit in self.limits if not limit.holds(self.measured)), None)


def check_budget(budget: Budget, folder: Path) -> list[Check]:
    """Counts everything that a budget bounds. folder: the budget's, from which paths of its models start.

    Raises `InputError`, before anything is counted, for a target, an accelerator or a setting that does not exist.
    """
    asked = [(each, _loaded(each, folder)) for each in budget.model]
    counts = [count for each, preset in asked for count in _prepared(each, preset)]
    return [count() for count in counts]


def _loaded(each: ModelBudget, folder: Path) -> Preset:
    beside = folder / each.target
    with _about(each.target):
        return load(str(beside) if beside.exists() else each.target)


@contextmanager
def _about(where: str) -> Iterator[None]:
    """Says which model and key an error is about."""
    try:
        yield
    except InputError as error:
        said = str(error).startswith(f"{where}: ")
        raise InputError(str(error) if said else f"{where}: {error}") from None


def _prepared(each: ModelBudget, preset: Preset) -> Iterator[Callable[[], Check]]:
    """Everything that is to be counted for one model, checked, and not yet counted."""
    for key, bound in each.bounds.items():
        where = f"{each.target}: {key}"
        with _about(where):
            _check_settings(key, bound)
        if isinstance(bound, Fits):
            for name in bound.on:
                with _about(where):
                    hardware = find_hardware(name)
                yield _fitting(each, preset, bound, hardware, where)
        else:
            yield _counting(each, preset, key, bound, where)


def _check_settings(key: str, bound: Bound | Fits) -> None:
    if bound.phase is not None:
        one_of("phase", bound.phase, Phase if key == "flops_per_token" else MemoryPhase)
    if bound.dtype is not None and key != "kv_per_token":
        try:
            dtype(bound.dtype)
        except ValueError as error:
            raise InputError(f"dtype: {error}") from None


def _counting(each: ModelBudget, preset: Preset, key: str, bound: Bound, where: str) -> Callable[[], Check]:
    def count() -> Check:
        with _about(where):
            measured = _measured(preset, key, bound)
        return Check(each.target, key, bound.given, measured, bound.limits, warning=_too_long(preset, bound))

    return count


def _fitting(each: ModelBudget, preset: Preset, bound: Fits, hardware: Hardware, where: str) -> Callable[[], Check]:
    def count() -> Check:
        with _about(where):
            needed = _device_bytes(preset, bound, runtime_of(hardware))
        limit = Limit(operator="<=", value=Fraction(hardware.capacity_bytes))
        warning = _too_long(preset, bound)
        return Check(each.target, "fits", bound.given, Fraction(needed), (limit,), hardware.name, warning)

    return count


def _too_long(preset: Preset, bound: Bound | Fits) -> str:
    return beyond(preset.model, bound.seq or 0)


def _measured(preset: Preset, key: str, bound: Bound) -> Fraction:
    spec = preset.model
    match key:
        case "params":
            return Fraction(params(spec).total)
        case "active":
            return Fraction(params(spec).active)
        case "kv_per_token":
            return Fraction(kv(spec, dtype_name=bound.dtype or "bfloat16").bytes_per_token)
        case "flops_per_token":
            phase: Any = bound.phase or "forward"
            count = flops(spec, sight_of(spec, batch=bound.batch or 1, seq=bound.seq, phase=phase))
            return Fraction(count.total) / Fraction(count.tokens)
        case _:
            return Fraction(_device_bytes(preset, bound, HOPPER))


def _device_bytes(preset: Preset, bound: Bound | Fits, runtime: Runtime) -> int:
    phase: Any = bound.phase or "inference"
    settings = Settings(
        phase=phase,
        batch=bound.batch,
        seq=bound.seq,
        dtype=None if bound.dtype is None else dtype(bound.dtype),
        quantize=bound.quantize,
    )
    return memory(preset.model, settings, preset.dtype, config=preset.checkpoint, runtime=runtime).device.device_bytes


def broken(checks: Sequence[Check]) -> int:
    """How many bounds do not hold."""
    return sum(not check.ok for check in checks)

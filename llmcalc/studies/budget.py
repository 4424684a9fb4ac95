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
from ..device_memory.cuda_runtime import runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import settings_with_shorthands
from ..errors import InputError
from ..sources.hardware import find_hardware
from ..sources.preset import Preset
from ..sources.target import load
from .budget_file import SETTINGS, Bound, Budget, Fits, Limit, ModelBudget


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
            settings = _checked(key, bound)
        if isinstance(bound, Fits):
            for name in bound.on:
                with _about(where):
                    hardware = find_hardware(name)
                yield _fitting(each, preset, bound, settings, hardware, where)
        else:
            yield _counting(each, preset, key, bound, settings, where)


def _checked(key: str, bound: Bound | Fits) -> dict[str, Any]:
    """The values that the settings of a bound mean. Raises `InputError` for a value that a setting does not take."""
    known = SETTINGS[key]
    return {known[name].name: known[name].checked(value, name) for name, value in bound.settings.items()}


def _counting(
    each: ModelBudget, preset: Preset, key: str, bound: Bound, settings: dict[str, Any], where: str
) -> Callable[[], Check]:
    def count() -> Check:
        with _about(where):
            measured = _measured(preset, key, settings)
        return Check(each.target, key, bound.settings, measured, bound.limits, warning=_too_long(preset, settings))

    return count


def _fitting(
    each: ModelBudget, preset: Preset, bound: Fits, settings: dict[str, Any], hardware: Hardware, where: str
) -> Callable[[], Check]:
    def count() -> Check:
        with _about(where):
            needed = _device_bytes(preset, settings, hardware)
        limit = Limit(operator="<=", value=Fraction(hardware.capacity_bytes))
        warning = _too_long(preset, settings)
        return Check(each.target, "fits", bound.settings, Fraction(needed), (limit,), hardware.name, warning)

    return count


def _too_long(preset: Preset, settings: dict[str, Any]) -> str:
    return beyond(preset.model, settings.get("seq") or 0)


def _measured(preset: Preset, key: str, settings: dict[str, Any]) -> Fraction:
    spec = preset.model
    match key:
        case "params":
            return Fraction(params(spec).total)
        case "active":
            return Fraction(params(spec).active)
        case "kv_per_token":
            return Fraction(kv(spec, dtype_name=settings.get("kv_dtype", "bfloat16")).bytes_per_token)
        case "flops_per_token":
            count = flops(spec, sight_of(spec, **settings))
            return Fraction(count.total) / Fraction(count.tokens)
        case _:
            return Fraction(_device_bytes(preset, settings))


def _device_bytes(preset: Preset, given: dict[str, Any], hardware: Hardware | None = None) -> int:
    settings = settings_with_shorthands(given)
    runtime = runtime_of(hardware, expandable=settings.allocator == "expandable")
    return memory(preset.model, settings, preset.dtype, config=preset.checkpoint, runtime=runtime).device.device_bytes


def broken(checks: Sequence[Check]) -> int:
    """How many bounds do not hold."""
    return sum(not check.ok for check in checks)

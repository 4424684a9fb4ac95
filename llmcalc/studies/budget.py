"""Checks counts of models against the bounds of a budget file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from ..accelerator import Hardware
from ..costs.cache import kv
from ..costs.context_length import too_long_note
from ..costs.flops import flops, run_config_of
from ..costs.params import params
from ..device_memory.cuda_runtime import cuda_runtime_of
from ..device_memory.estimate import memory
from ..device_memory.settings import settings_with_shorthands
from ..errors import InputError
from ..sources.hardware import find_hardware
from ..sources.preset import Preset
from ..sources.target import load
from .budget_file import SETTINGS_BY_KEY, Budget, BudgetLimit, FitsBound, ModelBudget, QuantityBound


@dataclass(frozen=True)
class BudgetCheck:
    """One checked value of a model, with the limits that it must meet.

    target: the model, as the budget names it.
    key: the key of the budget, such as `params`.
    settings: settings of the run in the budget.
    measured_value: exact value, in parameters, FLOPs or bytes.
    limits: the bounds.
    accelerator: the accelerator for the key `fits`; else empty.
    warning: note that the sequence exceeds the model's context length; else empty.
    """

    target: str
    key: str
    settings: dict[str, Any]
    measured_value: Fraction
    limits: tuple[BudgetLimit, ...]
    accelerator: str = ""
    warning: str = ""

    @property
    def ok(self) -> bool:
        """Whether the checked value meets all its limits."""
        return all(bound_limit.is_met_by(self.measured_value) for bound_limit in self.limits)

    @property
    def violated_limit(self) -> BudgetLimit | None:
        """The first limit that the checked value does not meet; None if it meets all."""
        return next(
            (bound_limit for bound_limit in self.limits if not bound_limit.is_met_by(self.measured_value)), None
        )


def check_budget(budget: Budget, folder: Path) -> list[BudgetCheck]:
    """Checks every value that a budget limits. folder: the budget file's folder, to which model paths are relative.

    Raises `InputError`, before it counts, for a target, an accelerator or a setting that does not exist.
    """
    budgets_and_presets = [(model_budget, _read_preset(model_budget, folder)) for model_budget in budget.model]
    check_functions = [
        check_function
        for model_budget, preset in budgets_and_presets
        for check_function in _prepare_checks(model_budget, preset)
    ]
    return [check_function() for check_function in check_functions]


def _read_preset(model_budget: ModelBudget, folder: Path) -> Preset:
    model_path = folder / model_budget.target
    with _errors_naming_model(model_budget.target):
        return load(str(model_path) if model_path.exists() else model_budget.target)


@contextmanager
def _errors_naming_model(budget_location: str) -> Iterator[None]:
    """Returns a context manager that adds the model and the budget's key to an `InputError`."""
    try:
        yield
    except InputError as error:
        names_model = str(error).startswith(f"{budget_location}: ")
        raise InputError(str(error) if names_model else f"{budget_location}: {error}") from None


def _prepare_checks(model_budget: ModelBudget, preset: Preset) -> Iterator[Callable[[], BudgetCheck]]:
    """Checks the settings of one model's bounds, and yields functions that each compute and check a value."""
    for bound_key, quantity_bound in model_budget.bounds.items():
        with _errors_naming_model(f"{model_budget.target}: {bound_key}"):
            bound_settings = _setting_values(bound_key, quantity_bound)
            accelerators: list[Hardware | None] = [None]
            if isinstance(quantity_bound, FitsBound):
                accelerators = [find_hardware(accelerator_name) for accelerator_name in quantity_bound.on]
        for hardware in accelerators:
            yield partial(
                _check_bound, model_budget.target, preset, bound_key, quantity_bound, bound_settings, hardware
            )


def _setting_values(bound_key: str, bound: QuantityBound | FitsBound) -> dict[str, Any]:
    """Returns the values of the settings beside a bound. Raises `InputError` for an invalid value."""
    declared_settings = SETTINGS_BY_KEY[bound_key]
    return {
        declared_settings[setting_name].name: declared_settings[setting_name].checked_value(setting_value, setting_name)
        for setting_name, setting_value in bound.settings.items()
    }


def _check_bound(
    model_target: str,
    preset: Preset,
    bound_key: str,
    bound: QuantityBound | FitsBound,
    bound_settings: dict[str, Any],
    hardware: Hardware | None,
) -> BudgetCheck:
    """Computes the value that a bound limits. hardware: the accelerator of the key `fits`; else None."""
    with _errors_naming_model(f"{model_target}: {bound_key}"):
        measured_value = _measured_quantity(preset, bound_key, bound_settings, hardware)
    length_note = too_long_note(preset.model, bound_settings.get("seq") or 0)
    if isinstance(bound, QuantityBound):
        return BudgetCheck(model_target, bound_key, bound.settings, measured_value, bound.limits, warning=length_note)
    assert hardware is not None
    capacity_limit = BudgetLimit(operator="<=", value=Fraction(hardware.capacity_bytes))
    return BudgetCheck(
        model_target, bound_key, bound.settings, measured_value, (capacity_limit,), hardware.name, length_note
    )


def _measured_quantity(
    preset: Preset, bound_key: str, bound_settings: dict[str, Any], hardware: Hardware | None
) -> Fraction:
    spec = preset.model
    match bound_key:
        case "params":
            return Fraction(params(spec).total)
        case "active":
            return Fraction(params(spec).active)
        case "kv_per_token":
            return Fraction(kv(spec, format_name=bound_settings.get("kv_dtype", "bfloat16")).bytes_per_token)
        case "flops_per_token":
            flop_count = flops(spec, run_config_of(spec, **bound_settings))
            return Fraction(flop_count.total) / Fraction(flop_count.tokens)
        case _:
            return Fraction(_device_bytes(preset, bound_settings, hardware))


def _device_bytes(preset: Preset, setting_values: dict[str, Any], hardware: Hardware | None) -> int:
    bound_settings = settings_with_shorthands(setting_values).with_usual_recomputation()
    cuda_runtime = cuda_runtime_of(hardware, has_expandable_segments=bound_settings.allocator == "expandable")
    return memory(
        preset.model, bound_settings, preset.dtype, model_config=preset.checkpoint, cuda_runtime=cuda_runtime
    ).device.device_bytes


def count_violations(checks: Sequence[BudgetCheck]) -> int:
    """Returns the number of checks whose value violates a limit."""
    return sum(not budget_check.ok for budget_check in checks)

"""Reads a budget file: TOML with upper and lower bounds on the costs of models.

[[model]]
target = "configs/small.json"
params = "<= 8.1B"
kv_per_token = { max = "128 KiB", dtype = "fp8" }
fits = ["h100-sxm"]
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import model_validator

from ..device_memory.settings import SETTINGS_BY_SHORTHAND
from ..device_memory.settings import Settings as RunSettings
from ..errors import InputError, short_repr, suggest
from ..record import Record
from ..sources.files import parse_toml, read_text, validate
from ..units import LONGEST_NUMBER, NUMBER_PATTERN, exact_number
from ..workload.setting import DeclaredSetting, Setting, declarations_of
from ..workload.workload import Phase

QuantityKind: TypeAlias = Literal["count", "FLOPs", "bytes"]

KIND_BY_QUANTITY: Mapping[str, QuantityKind] = {
    "params": "count",
    "active": "count",
    "kv_per_token": "bytes",
    "flops_per_token": "FLOPs",
    "memory": "bytes",
}
"""Key of a bound in a budget file → the kind of its value."""

RUN_SETTINGS = {**declarations_of(RunSettings), **SETTINGS_BY_SHORTHAND}
"""Name of a setting → the declared setting of a run on one device."""

CACHE_FORMAT_SETTING = RUN_SETTINGS["kv_dtype"]
PHASE_SETTING = DeclaredSetting("phase", Phase, Setting("The pass that is counted.", "What runs"))

SETTINGS_BY_KEY: Mapping[str, Mapping[str, DeclaredSetting]] = {
    "params": {},
    "active": {},
    "kv_per_token": {"kv_dtype": CACHE_FORMAT_SETTING, "dtype": CACHE_FORMAT_SETTING},
    "flops_per_token": {"phase": PHASE_SETTING, "batch": RUN_SETTINGS["batch"], "seq": RUN_SETTINGS["seq"]},
    "memory": RUN_SETTINGS,
    "fits": RUN_SETTINGS,
}
"""Key of a bound → the settings that change its value, by their names in the budget file."""

DECIMAL_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18, "z": 10**21}
UNIT_FACTORS: Mapping[QuantityKind, Mapping[str, int]] = {
    "count": {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12},
    "FLOPs": {
        **DECIMAL_FACTORS,
        "b": 10**9,
        **{f"{prefix}flops": factor for prefix, factor in DECIMAL_FACTORS.items()},
    },
    "bytes": {
        "": 1,
        "b": 1,
        **{f"{prefix}b": factor for prefix, factor in DECIMAL_FACTORS.items() if prefix},
        **{f"{prefix}ib": 2 ** (10 * i) for i, prefix in enumerate("kmgtp", start=1)},
    },
}
"""Kind of value → unit in lower case → the unit's factor."""

LIMIT_EXAMPLES: Mapping[QuantityKind, str] = {
    "count": "8.1B or 350M",
    "FLOPs": "20 GFLOPs or 2e10",
    "bytes": "128 KiB or 24 GB",
}

MAX_MODELS = 1_000
"""Largest number of models in one budget."""

MAX_ACCELERATORS = 100
"""Largest number of accelerators on which one model has to fit."""

Operator: TypeAlias = Literal["<=", ">=", "==", "<", ">"]

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}

_LIMIT_PATTERN = re.compile(rf"\s*+(<=|>=|==|<|>)?\s*+({NUMBER_PATTERN})\s*+([A-Za-z]*+)\s*+")


class BudgetLimit(Record):
    """The upper or lower limit of a value. value: exact number of parameters, FLOPs or bytes."""

    operator: Operator
    value: Fraction

    def is_met_by(self, measured_value: Fraction) -> bool:
        """Whether a value is within the limit."""
        return bool(COMPARISONS[self.operator](measured_value, self.value))


class QuantityBound(Record):
    """A bound on one value: an upper limit, a lower limit or both. settings: the settings to count it with."""

    limits: tuple[BudgetLimit, ...]
    settings: dict[str, Any] = {}


class FitsBound(Record):
    """The accelerators on which a run must fit. on: their names. settings: the settings of the run."""

    on: tuple[str, ...]
    settings: dict[str, Any] = {}


class ModelBudget(Record):
    """The bounds of one model: one per key, or None; `fits` names accelerators instead of a bound."""

    target: str
    params: QuantityBound | None = None
    active: QuantityBound | None = None
    kv_per_token: QuantityBound | None = None
    flops_per_token: QuantityBound | None = None
    memory: QuantityBound | None = None
    fits: FitsBound | None = None

    keys: ClassVar[tuple[str, ...]] = tuple(SETTINGS_BY_KEY)

    @model_validator(mode="before")
    @classmethod
    def _parse_bounds(cls, budget_table: Any) -> Any:
        """Converts the values of a budget file to tables of limits and settings."""
        if not isinstance(budget_table, dict):
            return budget_table
        for field_name in budget_table:
            _check_key(field_name, cls.keys)
        bounds_by_key = {
            bound_key: _parse_bound(bound_key, bound_value) if bound_key in KIND_BY_QUANTITY else bound_value
            for bound_key, bound_value in budget_table.items()
        }
        if "fits" in bounds_by_key:
            bounds_by_key["fits"] = _parse_fits(bounds_by_key["fits"])
        if bounds_by_key.keys() <= {"target"}:
            raise ValueError(f"bounds: none; expected one or more of {', '.join(cls.keys)}")
        return bounds_by_key

    @property
    def bounds(self) -> dict[str, QuantityBound | FitsBound]:
        """The bounds of the model, by key, in the order of the keys."""
        return {
            bound_key: quantity_bound
            for bound_key in self.keys
            if (quantity_bound := getattr(self, bound_key)) is not None
        }


class Budget(Record):
    """The bounds of several models, from a budget file."""

    model: tuple[ModelBudget, ...]


def read_budget(budget_path: Path) -> Budget:
    """Reads a budget. Raises `InputError`, which names the field, for an unknown key, unit or value."""
    budget_table = parse_toml(read_text(budget_path), str(budget_path))
    if not budget_table.get("model"):
        raise InputError(f"{budget_path}: no model; expected tables [[model]] with a target and bounds")
    if isinstance(budget_table["model"], list) and len(budget_table["model"]) > MAX_MODELS:
        raise InputError(
            f"{budget_path}: {len(budget_table['model']):,} models are too many; expected at most {MAX_MODELS:,} in "
            "a file"
        )
    if isinstance(budget_table["model"], dict):
        raise InputError(f"{budget_path}: model: is one table; expected a list of them, each under [[model]]")
    return validate(Budget, budget_table, str(budget_path))


def _check_key(field_name: str, known_keys: tuple[str, ...]) -> None:
    """Raises `ValueError` for an unknown key in a model's table of a budget."""
    settings_key = next(
        (bound_key for bound_key in reversed(known_keys) if field_name in SETTINGS_BY_KEY[bound_key]), None
    )
    if settings_key is not None:
        raise ValueError(
            f"{field_name}: is a setting of a bound; expected it in one, such as {settings_key} = "
            f"{{ …, {field_name} = … }}"
        )
    expected_fields = ["target", *known_keys]
    if field_name not in expected_fields:
        raise ValueError(
            f"{field_name}: unknown field; expected one of "
            f"{', '.join(expected_fields)}.{suggest(field_name, expected_fields)}"
        )


def _parse_bound(bound_key: str, bound_value: Any) -> dict[str, Any]:
    quantity_kind, budget_limits = KIND_BY_QUANTITY[bound_key], []
    bound_settings: dict[str, Any] = {}
    if isinstance(bound_value, dict):
        bound_settings = {
            entry_key: entry_value for entry_key, entry_value in bound_value.items() if entry_key not in ("max", "min")
        }
        _check_settings(bound_key, bound_settings, ("max", "min"))
        for setting_name, comparison_operator in (("max", "<="), ("min", ">=")):
            if setting_name in bound_value:
                budget_limits.append(
                    _parse_limit(
                        f"{bound_key}.{setting_name}",
                        bound_value[setting_name],
                        quantity_kind,
                        comparison_operator,
                        is_operator_fixed=True,
                    )
                )
        if not budget_limits:
            raise ValueError(f"{bound_key}: no bound; expected max or min")
        if len(budget_limits) == 2 and budget_limits[0]["value"] < budget_limits[1]["value"]:
            raise ValueError(f"{bound_key}: max is below min, and so no value holds; expected max of at least min")
    else:
        budget_limits.append(_parse_limit(bound_key, bound_value, quantity_kind, "<="))
    return {"settings": bound_settings, "limits": budget_limits}


def _parse_fits(fits_value: Any) -> Any:
    if isinstance(fits_value, dict):
        bound_settings = {
            setting_name: setting_value for setting_name, setting_value in fits_value.items() if setting_name != "on"
        }
        _check_settings("fits", bound_settings, ("on",))
        return {"settings": bound_settings, "on": _accelerator_names(fits_value.get("on"))}
    return {"on": _accelerator_names(fits_value)}


def _accelerator_names(names_value: Any) -> Any:
    """Returns the accelerators' names. Raises `ValueError` for an empty list, and for too many names."""
    if not names_value:
        raise ValueError("fits: no accelerator; expected names such as h100-sxm (llmcalc hardware lists all)")
    if isinstance(names_value, list) and len(names_value) > MAX_ACCELERATORS:
        raise ValueError(f"fits: {len(names_value):,} accelerators are too many; expected at most {MAX_ACCELERATORS}")
    return [names_value] if isinstance(names_value, str) else names_value


def _check_settings(bound_key: str, bound_settings: Mapping[str, Any], other_keys: tuple[str, ...]) -> None:
    """Raises `ValueError` for a setting that does not apply to a key of the budget."""
    allowed_keys = sorted([*other_keys, *SETTINGS_BY_KEY[bound_key]])
    if SETTINGS_BY_KEY[bound_key] is RUN_SETTINGS:
        expected_text = f"{', '.join(other_keys)} or an option of llmcalc memory"
    else:
        expected_text = ", ".join(allowed_keys)
    for setting_name in bound_settings:
        if setting_name not in allowed_keys:
            raise ValueError(
                f"{bound_key}.{setting_name}: unknown field; expected one of "
                f"{expected_text}.{suggest(setting_name, allowed_keys)}"
            )


def _parse_limit(
    location: str, limit_value: Any, quantity_kind: QuantityKind, default_operator: str, is_operator_fixed: bool = False
) -> dict[str, Any]:
    """Parses a limit, such as `<= 8e9`, from a text or a whole number.

    default_operator: the operator of text without one.
    is_operator_fixed: whether the text must not have one.
    """
    example_text = LIMIT_EXAMPLES[quantity_kind]
    if isinstance(limit_value, bool) or not isinstance(limit_value, str | int):
        raise ValueError(
            f"{location}: {short_repr(limit_value)} is no bound; expected text such as '{example_text}', or a whole "
            "number"
        )
    if isinstance(limit_value, int) and abs(limit_value) >= 10**LONGEST_NUMBER:
        raise ValueError(f"{location}: {short_repr(limit_value)}; expected a number of at most {LONGEST_NUMBER} digits")
    limit_match = _LIMIT_PATTERN.fullmatch(str(limit_value))
    if limit_match is None:
        raise ValueError(
            f"{location}: {short_repr(limit_value)} is no bound; expected a number with a unit, such as {example_text}"
        )
    if is_operator_fixed and limit_match[1]:
        raise ValueError(
            f"{location}: '{limit_value}'; expected a number without {limit_match[1]}, since the key says which side"
        )
    unit_factor = UNIT_FACTORS[quantity_kind].get(limit_match[3].lower())
    if unit_factor is None:
        raise ValueError(f"{location}: '{limit_match[3]}' is no unit of it; expected a number such as {example_text}")
    return {
        "operator": limit_match[1] or default_operator,
        "value": exact_number(limit_match[2], location) * unit_factor,
    }

"""Flattens the tables of a config of Hydra to dotted keys, with OmegaConf's interpolations resolved.

Source: OmegaConf 2.3, docs/source/usage.rst (variable interpolation) and custom_resolvers.rst (oc.env, oc.select).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .command_line import parsed_argument_value
from .launch_types import Table

MAX_INTERPOLATIONS = 8
"""Largest number of interpolations between a key and its final value."""

PRODUCT_PATTERN = re.compile(r"\$\{mul:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
RELATIVE_REFERENCE = re.compile(r"\$\{((?:oc\.select:\s*)?)(\.{1,8})(\w+(?:\.\w+)*)")
KEY_REFERENCE = re.compile(r"\$\{(?:oc\.select:\s*)?([a-z_]\w*(?:\.\w+)*)\s*(?:,([^{}]*))?\}", re.IGNORECASE)
VARIABLE_REFERENCE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(?:,([^{}]*))?\}")
MISSING_VALUE = "???"
"""Value of a required key that the command must set."""


EMPTY_TABLE: Table = {}
"""An empty table, for no overrides or no variables."""


def flat_config(config: Table, overrides: Table = EMPTY_TABLE, environment: Table = EMPTY_TABLE) -> dict[str, Any]:
    """Returns dotted key → value of nested tables, without keys of classes (`_target_`) and without missing values.

    overrides: dotted key → value, which replace the tables'.
    environment: environment variables that are known, for `${oc.env:NAME,default}`.
    `${a.b}`, `${oc.select:a.b,default}` and `${mul:a, b}` are resolved; any other interpolation stays.
    """
    flat_values: dict[str, Any] = {}

    def add_flattened(nested_table: Table, table_names: list[str]) -> None:
        for flat_key, flat_value in nested_table.items():
            if isinstance(flat_value, Mapping):
                add_flattened(flat_value, [*table_names, str(flat_key)])
            elif not str(flat_key).startswith("_") and flat_value != MISSING_VALUE:
                flat_values[".".join([*table_names, str(flat_key)])[:150]] = _with_full_names(flat_value, table_names)

    add_flattened(config, [])
    flat_values |= overrides
    return {
        flat_key: _resolved_value(flat_value, flat_values, environment) for flat_key, flat_value in flat_values.items()
    }


def _with_full_names(written_value: Any, table_names: list[str]) -> Any:
    """Returns a value with full names in place of relative references such as `${..name}`."""
    if not isinstance(written_value, str):
        return written_value
    return RELATIVE_REFERENCE.sub(
        lambda match: "${" + match[1] + ".".join([*table_names[: len(table_names) + 1 - len(match[2])], match[3]]),
        written_value,
    )


def _resolved_value(written_value: Any, flat_values: Table, environment: Table) -> Any:
    """Returns a value without the interpolations that can be resolved."""
    for _ in range(MAX_INTERPOLATIONS):
        if not isinstance(written_value, str) or "${" not in written_value:
            return written_value
        reference_match = KEY_REFERENCE.fullmatch(written_value)
        if reference_match is not None and (
            reference_match[1] in flat_values or written_value.startswith("${oc.select:")
        ):
            default_text = "null" if reference_match[2] is None else reference_match[2].strip()
            written_value = flat_values.get(reference_match[1], parsed_argument_value(default_text))
            continue
        replaced_value = VARIABLE_REFERENCE.sub(
            lambda match: str(environment.get(match[1], match[2] or match[0])), written_value
        )
        replaced_value = KEY_REFERENCE.sub(lambda match: str(flat_values.get(match[1], match[0])), replaced_value)
        replaced_value = PRODUCT_PATTERN.sub(lambda product: str(int(product[1]) * int(product[2])), replaced_value)
        if replaced_value == written_value:
            break
        written_value = parsed_argument_value(replaced_value)
    return None if isinstance(written_value, str) and written_value.startswith("${oc.select:") else written_value

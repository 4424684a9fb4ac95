"""Differences between two models: description fields, and the resulting counts and bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..algebra import Number, times
from ..costs.cache import cache_bits_cost_by_name, kv
from ..costs.flops import flops, forward_flops_of, run_config_of
from ..costs.params import params, total_params_of
from ..errors import InputError
from ..flow.tree import Cost, Node
from ..sources.preset import Preset
from ..sources.to_toml import preset_description
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig

QuantityUnit: TypeAlias = Literal["parameters", "FLOPs", "bytes"]

QuantityValue: TypeAlias = tuple[float | None, QuantityUnit]
"""The value of a compared quantity (None if missing), and its unit."""

LAYER_INDEX = re.compile(r"\.(\d[\d\-./]*|\{[^}]*\})(?=\.|$)")
"""Pattern of layer indices in the path of a node: `.0-31` in `layers.0-31`."""


@dataclass(frozen=True)
class FieldChange:
    """A changed field of a description: its old and its new value; None if a model does not have the field."""

    name: str
    before: Any
    after: Any

    @property
    def has_changed(self) -> bool:
        return bool(self.before != self.after)


@dataclass(frozen=True)
class QuantityChange(FieldChange):
    """A changed count or number of bytes: exact integers, or floats for averages."""

    unit: QuantityUnit

    @property
    def change(self) -> float:
        """The new minus the old value; a missing value counts as 0."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class ModelDifference:
    """The differences between two models.

    before, after: the models; None for a missing one.
    seq: tokens per sequence.
    cache_dtype: number format of the cache.
    fields: fields of the descriptions that differ.
    quantities: all quantities, changed or not.
    components: quantity → nodes whose values differ, largest change first.
    """

    before: Preset | None
    after: Preset | None
    seq: int
    cache_dtype: str
    fields: tuple[FieldChange, ...]
    quantities: tuple[QuantityChange, ...]
    components: Mapping[str, tuple[QuantityChange, ...]]

    @property
    def has_changed(self) -> bool:
        """Whether any count or number of bytes differs."""
        return any(quantity.has_changed for quantity in self.quantities) or any(self.components.values())


def diff(
    earlier_preset: Preset | None, later_preset: Preset | None, seq: int, cache_dtype: str = "bfloat16"
) -> ModelDifference:
    """Compares two models at sequences of `seq` tokens, with caches in number format `cache_dtype`."""
    old_figures, new_figures = (
        {} if preset is None else _quantities_of_model(preset, seq, cache_dtype)
        for preset in (earlier_preset, later_preset)
    )
    quantity_changes: list[QuantityChange] = []
    for quantity_name, (_, quantity_unit) in {**new_figures, **old_figures}.items():
        (old_value, _), (new_value, _) = (
            model_figures.get(quantity_name, (None, quantity_unit)) for model_figures in (old_figures, new_figures)
        )
        quantity_changes.append(QuantityChange(quantity_name, old_value, new_value, quantity_unit))
    changed_fields = tuple(_changed_fields(earlier_preset, later_preset))
    changed_nodes_by_cost = {
        cost_name: tuple(_changed_nodes(earlier_preset, later_preset, seq, cache_dtype, cost_name))
        for cost_name in COMPARED_COSTS
    }
    return ModelDifference(
        earlier_preset, later_preset, seq, cache_dtype, changed_fields, tuple(quantity_changes), changed_nodes_by_cost
    )


def _quantities_of_model(preset: Preset, seq: int, dtype: str) -> dict[str, QuantityValue]:
    """Returns the counts of a model: quantity → (value, unit)."""
    parameter_count = params(preset.model)
    quantities: dict[str, QuantityValue] = {
        "parameters": (parameter_count.total, "parameters"),
        "active per token": (parameter_count.active, "parameters"),
        "embedding": (parameter_count.embedding, "parameters"),
    }
    flop_count = flops(preset.model, run_config_of(preset.model, seq=seq))
    quantities["forward FLOPs per token"] = flop_count.per_token, "FLOPs"
    quantities["training FLOPs per token"] = (
        flops(preset.model, run_config_of(preset.model, seq=seq, phase="training")).per_token,
        "FLOPs",
    )
    if not preset.model.one_pass_model_name:
        cache_size = kv(preset.model, seq=seq, format_name=dtype)
        quantities["KV cache per token"] = cache_size.bytes_per_token, "bytes"
        quantities["KV cache of a sequence"] = cache_size.bytes, "bytes"
    quantities |= _device_bytes(preset, seq, dtype)
    return quantities


def _device_bytes(preset: Preset, seq: int, dtype: str) -> dict[str, QuantityValue]:
    """Returns memory term → bytes on one device; empty if an operation of the model cannot be simulated."""
    from ..device_memory.estimate import memory
    from ..device_memory.settings import Settings

    try:
        kv_dtype = None if preset.model.one_pass_model_name else dtype
        phase: Any = "prefill" if preset.model.one_pass_model_name else "inference"
        device_memory = memory(
            preset.model,
            Settings(phase=phase, seq=seq, kv_dtype=kv_dtype),
            preset.dtype,
            model_config=preset.checkpoint,
        )
        return {
            "weights": (device_memory.states.weights, "bytes"),
            "memory in inference": (device_memory.device.device_bytes, "bytes"),
        }
    except InputError:
        return {}


def _changed_fields(earlier_preset: Preset | None, later_preset: Preset | None) -> Iterator[FieldChange]:
    """Yields the fields that differ between two descriptions, with their paths and values."""
    if earlier_preset is None or later_preset is None:
        return
    fields_of_presets = [
        dict(_flatten_fields(preset_description(preset)["model"])) for preset in (earlier_preset, later_preset)
    ]
    old_fields, new_fields = (
        _with_default_head_sizes(dict(_flatten_fields(preset.model.model_dump())) | preset_fields)
        for preset, preset_fields in zip((earlier_preset, later_preset), fields_of_presets, strict=True)
    )  # with defaults too, which a description leaves out
    for field_path in dict.fromkeys([*fields_of_presets[0], *fields_of_presets[1]]):
        if old_fields.get(field_path) != new_fields.get(field_path):
            yield FieldChange(field_path, old_fields.get(field_path), new_fields.get(field_path))
    if earlier_preset.dtype != later_preset.dtype:
        yield FieldChange("dtype", earlier_preset.dtype, later_preset.dtype)


def _with_default_head_sizes(description_fields: dict[str, Any]) -> dict[str, Any]:
    """Fills in the default head sizes where a description does not state them (see `Attention`)."""
    completed_fields = dict(description_fields)
    for path, head_count in description_fields.items():
        attention_path, _, field_name = path.rpartition(".")
        if field_name != "num_attention_heads" or f"{attention_path}.head_dim" not in description_fields:
            continue
        ancestor_paths = (
            attention_path.rsplit(".", level_count)[0] for level_count in range(1, attention_path.count(".") + 1)
        )
        head_widths = (
            description_fields[field_path]
            for field_path in (*(f"{ancestor_path}.hidden_size" for ancestor_path in ancestor_paths), "hidden_size")
            if description_fields.get(field_path)
        )
        head_fields = {"num_key_value_heads": head_count, "head_dim": next(head_widths, 0) // head_count or None}
        for head_field in (*head_fields, "v_head_dim"):
            field_path = f"{attention_path}.{head_field}"
            if field_path in completed_fields and completed_fields[field_path] is None:
                if head_field in head_fields:
                    completed_fields[field_path] = head_fields[head_field]
                else:
                    completed_fields[field_path] = completed_fields[f"{attention_path}.head_dim"]
    return completed_fields


def _flatten_fields(description_table: Mapping[str, Any], path_prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field_name, field_value in description_table.items():
        if isinstance(field_value, Mapping):
            yield from _flatten_fields(field_value, f"{path_prefix}{field_name}.")
        else:
            yield f"{path_prefix}{field_name}", field_value


def _changed_nodes(
    earlier_preset: Preset | None, later_preset: Preset | None, seq: int, dtype: str, quantity_name: str
) -> list[QuantityChange]:
    """Returns the tree's nodes in which a quantity differs, the largest change first."""
    cost_of_dtype, unit = COMPARED_COSTS[quantity_name]
    cost_function = cost_of_dtype(dtype)
    old_costs, new_costs = (
        {}
        if preset is None
        else _costs_by_path(preset.model.tree(), cost_function, run_config_of(preset.model, seq=seq), unit)
        for preset in (earlier_preset, later_preset)
    )
    compared_nodes = (
        QuantityChange(node_path, old_costs.get(node_path), new_costs.get(node_path), unit)
        for node_path in dict.fromkeys([*new_costs, *old_costs])
    )
    return sorted((preset for preset in compared_nodes if preset.has_changed), key=lambda preset: -abs(preset.change))


COMPARED_COSTS: dict[str, tuple[Callable[[str], Cost], QuantityUnit]] = {
    "parameters": (lambda dtype: total_params_of, "parameters"),
    "forward FLOPs": (lambda dtype: forward_flops_of, "FLOPs"),
    "KV cache": (cache_bits_cost_by_name, "bytes"),
}
"""Quantity that is compared node by node → (function from the cache format to a node's cost, unit)."""


def _costs_by_path(
    model_tree: Node, cost_function: Cost, run_config: RunConfig, unit: QuantityUnit
) -> dict[str, Number]:
    """Returns a quantity's sums by module path without layer indices, except zeros and sums of optional parts."""
    sums_by_path: dict[str, Number] = {}
    for node_position in model_tree.walk(run_config):
        if not node_position.optional_part and (
            node_cost := times(node_position.cost_of_operation(cost_function), node_position.copies)
        ):
            node_path = LAYER_INDEX.sub("", node_position.path)
            sums_by_path[node_path] = sums_by_path.get(node_path, 0) + node_cost
    return {
        module_path: bits_to_bytes(total_cost) if unit == "bytes" else total_cost
        for module_path, total_cost in sums_by_path.items()
    }

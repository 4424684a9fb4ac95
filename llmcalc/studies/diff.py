"""Differences between two models: description fields, and the resulting counts and bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..algebra import Number, times
from ..costs.cache import cache_bits_of, kv
from ..costs.flops import flops, forward_of, run_config_of
from ..costs.params import params, total_of
from ..errors import InputError
from ..flow.tree import Cost, Node
from ..sources.preset import Preset
from ..sources.to_toml import preset_description
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig

Unit: TypeAlias = Literal["parameters", "FLOPs", "bytes"]

Figure: TypeAlias = tuple[float | None, Unit]
"""A value and its unit."""

INDEX = re.compile(r"\.(\d[\d\-./]*|\{[^}]*\})(?=\.|$)")
"""Indices of layers in the path of a node: `layers.0-31`."""


@dataclass(frozen=True)
class Change:
    """A changed field of a description: the old and the new value; None in a model without the field."""

    name: str
    before: Any
    after: Any

    @property
    def changed(self) -> bool:
        return bool(self.before != self.after)


@dataclass(frozen=True)
class Quantity(Change):
    """A count or a number of bytes: an exact integer, or a float for an average."""

    unit: Unit

    @property
    def change(self) -> float:
        """The new minus the old value; a missing value counts as 0."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class Difference:
    """The differences between two models.

    before, after: the models; None for a missing one.
    seq: tokens per sequence.
    dtype: format of the cache.
    fields: fields of the descriptions that differ.
    quantities: all quantities, changed or not.
    components: quantity → nodes whose values differ, largest change first.
    """

    before: Preset | None
    after: Preset | None
    seq: int
    dtype: str
    fields: tuple[Change, ...]
    quantities: tuple[Quantity, ...]
    components: Mapping[str, tuple[Quantity, ...]]

    @property
    def changed(self) -> bool:
        """Whether any count or number of bytes differs."""
        return any(quantity.changed for quantity in self.quantities) or any(self.components.values())


def diff(before: Preset | None, after: Preset | None, seq: int, dtype: str = "bfloat16") -> Difference:
    """Compares two models at sequences of `seq` tokens, with caches in number format `dtype`."""
    old_figures, new_figures = (
        {} if preset is None else _figures_of_model(preset, seq, dtype) for preset in (before, after)
    )
    quantities: list[Quantity] = []
    for name, (_, unit) in {**new_figures, **old_figures}.items():
        (old_value, _), (new_value, _) = (figures.get(name, (None, unit)) for figures in (old_figures, new_figures))
        quantities.append(Quantity(name, old_value, new_value, unit))
    return Difference(
        before,
        after,
        seq,
        dtype,
        tuple(_changed_fields(before, after)),
        tuple(quantities),
        {name: tuple(_changed_nodes(before, after, seq, dtype, name)) for name in COMPONENTS},
    )


def _figures_of_model(preset: Preset, seq: int, dtype: str) -> dict[str, Figure]:
    """Returns the counts of a model: quantity → (value, unit)."""
    parameter_count = params(preset.model)
    quantities: dict[str, Figure] = {
        "parameters": (parameter_count.total, "parameters"),
        "active per token": (parameter_count.active, "parameters"),
        "embedding": (parameter_count.embedding, "parameters"),
    }
    forward = flops(preset.model, run_config_of(preset.model, seq=seq))
    quantities["forward FLOPs per token"] = forward.per_token, "FLOPs"
    quantities["training FLOPs per token"] = (
        flops(preset.model, run_config_of(preset.model, seq=seq, phase="training")).per_token,
        "FLOPs",
    )
    if not preset.model.one_pass_model:
        cache = kv(preset.model, seq=seq, format_name=dtype)
        quantities["KV cache per token"] = cache.bytes_per_token, "bytes"
        quantities["KV cache of a sequence"] = cache.bytes, "bytes"
    quantities |= _device_bytes(preset, seq, dtype)
    return quantities


def _device_bytes(preset: Preset, seq: int, dtype: str) -> dict[str, Figure]:
    """Returns the bytes of one device's memory by part; empty if llmcalc cannot simulate an operation of the model."""
    from ..device_memory.estimate import memory
    from ..device_memory.settings import Settings

    try:
        kv_dtype = None if preset.model.one_pass_model else dtype
        phase: Any = "prefill" if preset.model.one_pass_model else "inference"
        device_run = memory(
            preset.model,
            Settings(phase=phase, seq=seq, kv_dtype=kv_dtype),
            preset.dtype,
            model_config=preset.checkpoint,
        )
        return {
            "weights": (device_run.states.weights, "bytes"),
            "memory in inference": (device_run.device.device_bytes, "bytes"),
        }
    except InputError:
        return {}


def _changed_fields(before: Preset | None, after: Preset | None) -> Iterator[Change]:
    """Yields the changed fields by their path in a native description; None for a field that is not set."""
    if before is None or after is None:
        return
    descriptions = [dict(_flatten_fields(preset_description(preset)["model"])) for preset in (before, after)]
    old_fields, new_fields = (
        _with_default_head_sizes(dict(_flatten_fields(preset.model.model_dump())) | set_fields)
        for preset, set_fields in zip((before, after), descriptions, strict=True)
    )  # with defaults too, which a description leaves out
    for path in dict.fromkeys([*descriptions[0], *descriptions[1]]):
        if old_fields.get(path) != new_fields.get(path):
            yield Change(path, old_fields.get(path), new_fields.get(path))
    if before.dtype != after.dtype:
        yield Change("dtype", before.dtype, after.dtype)


def _with_default_head_sizes(fields: dict[str, Any]) -> dict[str, Any]:
    """Adds the default head sizes that a description leaves out (see `Attention`)."""
    completed_fields = dict(fields)
    for path, head_count in fields.items():
        attention, _, name = path.rpartition(".")
        if name != "num_attention_heads" or f"{attention}.head_dim" not in fields:
            continue
        ancestors = (attention.rsplit(".", depth)[0] for depth in range(1, attention.count(".") + 1))
        widths = (
            fields[field_path]
            for field_path in (*(f"{ancestor}.hidden_size" for ancestor in ancestors), "hidden_size")
            if fields.get(field_path)
        )
        head_fields = {"num_key_value_heads": head_count, "head_dim": next(widths, 0) // head_count or None}
        for field in (*head_fields, "v_head_dim"):
            field_path = f"{attention}.{field}"
            if field_path in completed_fields and completed_fields[field_path] is None:
                completed_fields[field_path] = (
                    head_fields[field] if field in head_fields else completed_fields[f"{attention}.head_dim"]
                )
    return completed_fields


def _flatten_fields(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten_fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _changed_nodes(before: Preset | None, after: Preset | None, seq: int, dtype: str, name: str) -> list[Quantity]:
    """Returns the nodes whose value of a quantity differs, largest change first."""
    cost_of_dtype, unit = COMPONENTS[name]
    cost = cost_of_dtype(dtype)
    old_costs, new_costs = (
        {} if preset is None else _costs_by_path(preset.model.tree(), cost, run_config_of(preset.model, seq=seq), unit)
        for preset in (before, after)
    )
    compared_nodes = (
        Quantity(path, old_costs.get(path), new_costs.get(path), unit)
        for path in dict.fromkeys([*new_costs, *old_costs])
    )
    return sorted((preset for preset in compared_nodes if preset.changed), key=lambda preset: -abs(preset.change))


COMPONENTS: dict[str, tuple[Callable[[str], Cost], Unit]] = {
    "parameters": (lambda dtype: total_of, "parameters"),
    "forward FLOPs": (lambda dtype: forward_of, "FLOPs"),
    "KV cache": (cache_bits_of, "bytes"),
}
"""Quantity that is compared by node → (format of the cache → the cost of a node for one sequence), and its unit."""


def _costs_by_path(tree: Node, cost: Cost, run_config: RunConfig, unit: Unit) -> dict[str, Number]:
    """Returns the sums of a quantity by path without layer indices, except optional parts and zeros."""
    sums: dict[str, Number] = {}
    for node_position in tree.walk(run_config):
        if not node_position.optional and (value := times(node_position.own_cost(cost), node_position.times)):
            path = INDEX.sub("", node_position.path)
            sums[path] = sums.get(path, 0) + value
    return {path: bits_to_bytes(value) if unit == "bytes" else value for path, value in sums.items()}

"""What changes between two models: fields of their descriptions, and the counts and bytes that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..algebra import Number, times
from ..costs.cache import cache_bits_of, kv
from ..costs.flops import flops, forward_of, sight_of
from ..costs.params import params, total_of
from ..errors import InputError
from ..flow.tree import Cost, Node
from ..sources.preset import Preset
from ..sources.to_toml import description
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig

Unit: TypeAlias = Literal["parameters", "FLOPs", "bytes"]

Figure: TypeAlias = tuple[float | None, Unit]
"""A value and its unit."""

INDEX = re.compile(r"\.(\d[\d\-./]*|\{[^}]*\})(?=\.|$)")
"""The layers that a node stands for, in its path: `layers.0-31`."""


@dataclass(frozen=True)
class Change:
    """One value before and after; None where one of the models has none."""

    name: str
    before: Any
    after: Any

    @property
    def changed(self) -> bool:
        return bool(self.before != self.after)


@dataclass(frozen=True)
class Quantity(Change):
    """A count or a number of bytes, as an exact integer or, of an average, a float."""

    unit: Unit

    @property
    def change(self) -> float:
        """After minus before; a missing value counts as 0."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class Difference:
    """before, after: the two models; None for one that is not there. seq: tokens of a sequence. dtype: of the cache.

    fields: fields of their descriptions that differ. quantities: all of them, changed or not. components: quantity →
    nodes of the models whose values differ, the largest change first.
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
        return any(one.changed for one in self.quantities) or any(self.components.values())


def diff(before: Preset | None, after: Preset | None, seq: int, dtype: str = "bfloat16") -> Difference:
    """Compares two models at sequences of `seq` tokens, with a cache in that number format."""
    figures: list[dict[str, Figure]] = [{} if one is None else _figures(one, seq, dtype) for one in (before, after)]
    names = list(dict.fromkeys([*figures[1], *figures[0]]))
    quantities: list[Quantity] = []
    for name in names:
        found = [each.get(name) for each in figures]
        unit = next(one[1] for one in found if one is not None)
        old, new = (None if one is None else one[0] for one in found)
        quantities.append(Quantity(name, old, new, unit))
    return Difference(
        before,
        after,
        seq,
        dtype,
        tuple(_fields(before, after)),
        tuple(quantities),
        {name: tuple(_nodes(before, after, seq, dtype, name)) for name in COMPONENTS},
    )


def _figures(preset: Preset, seq: int, dtype: str) -> dict[str, Figure]:
    """Quantity → its value and unit."""
    count = params(preset.model)
    found: dict[str, Figure] = {
        "parameters": (count.total, "parameters"),
        "active per token": (count.active, "parameters"),
        "embedding": (count.embedding, "parameters"),
    }
    passed = flops(preset.model, sight_of(preset.model, seq=seq))
    found["forward FLOPs per token"] = passed.per_token, "FLOPs"
    found["training FLOPs per token"] = (
        flops(preset.model, sight_of(preset.model, seq=seq, phase="training")).per_token,
        "FLOPs",
    )
    if preset.model.kind != "encoder":
        cache = kv(preset.model, seq=seq, dtype_name=dtype)
        found["KV cache per token"] = cache.bytes_per_token, "bytes"
        found["KV cache of a sequence"] = cache.bytes, "bytes"
    found |= _memory(preset, seq, dtype)
    return found


def _memory(preset: Preset, seq: int, dtype: str) -> dict[str, Figure]:
    """Memory of one device; nothing where the model has a step without kernels."""
    from ..device_memory.estimate import memory
    from ..device_memory.settings import Settings

    try:
        kv_dtype = None if preset.model.kind == "encoder" else dtype
        phase: Any = "prefill" if preset.model.kind == "encoder" else "inference"
        one = memory(
            preset.model, Settings(phase=phase, seq=seq, kv_dtype=kv_dtype), preset.dtype, config=preset.checkpoint
        )
        return {"weights": (one.states.weights, "bytes"), "memory in inference": (one.device.device_bytes, "bytes")}
    except InputError:
        return {}


def _fields(before: Preset | None, after: Preset | None) -> Iterator[Change]:
    """Fields that differ, by their path in a native description; None where a model has no such field, or none set."""
    if before is None or after is None:
        return
    written = [dict(_flat(description(one)["model"])) for one in (before, after)]
    old, new = (
        _with_sizes(dict(_flat(one.model.model_dump())) | own)
        for one, own in zip((before, after), written, strict=True)
    )  # with defaults too, which a description leaves out
    for path in dict.fromkeys([*written[0], *written[1]]):
        if old.get(path) != new.get(path):
            yield Change(path, old.get(path), new.get(path))
    if before.dtype != after.dtype:
        yield Change("dtype", before.dtype, after.dtype)


def _with_sizes(fields: dict[str, Any]) -> dict[str, Any]:
    """With the sizes of heads that follow from others where a description leaves them out (see `Attention`)."""
    found = dict(fields)
    for path, heads in fields.items():
        attention, _, name = path.rpartition(".")
        if name != "num_attention_heads" or f"{attention}.head_dim" not in fields:
            continue
        above = (attention.rsplit(".", cut)[0] for cut in range(1, attention.count(".") + 1))
        widths = (fields[key] for key in (*(f"{one}.hidden_size" for one in above), "hidden_size") if fields.get(key))
        sizes = {"num_key_value_heads": heads, "head_dim": next(widths, 0) // heads or None}
        for size in (*sizes, "v_head_dim"):
            key = f"{attention}.{size}"
            if key in found and found[key] is None:
                found[key] = sizes[size] if size in sizes else found[f"{attention}.head_dim"]
    return found


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _nodes(before: Preset | None, after: Preset | None, seq: int, dtype: str, name: str) -> list[Quantity]:
    """The nodes whose part of a quantity differs, the largest change first."""
    cost, unit = _cost(name, dtype)
    old, new = (
        {} if one is None else _by_path(one.model.tree(), cost, sight_of(one.model, seq=seq), unit)
        for one in (before, after)
    )
    found = (Quantity(path, old.get(path), new.get(path), unit) for path in dict.fromkeys([*new, *old]))
    return sorted((one for one in found if one.changed), key=lambda one: -abs(one.change))


COMPONENTS = ("parameters", "forward FLOPs", "KV cache")
"""Quantities that are compared by component."""


def _cost(name: str, dtype: str) -> tuple[Cost, Unit]:
    """What a node adds to a quantity: of one sequence where it depends on tokens."""
    costs: dict[str, tuple[Cost, Unit]] = {
        "parameters": (total_of, "parameters"),
        "forward FLOPs": (forward_of, "FLOPs"),
        "KV cache": (cache_bits_of(dtype), "bytes"),
    }
    return costs[name]


def _by_path(tree: Node, cost: Cost, run_config: RunConfig, unit: Unit) -> dict[str, Number]:
    """Path without indices of layers → the value of all nodes there, without optional parts and zeros."""
    sums: dict[str, Number] = {}
    for place in tree.walk(run_config):
        if not place.optional and (value := times(place.own(cost), place.times)):
            path = INDEX.sub("", place.path)
            sums[path] = sums.get(path, 0) + value
    return {path: bits_to_bytes(value) if unit == "bytes" else value for path, value in sums.items()}

"""A model's entry in a lock file: source, counts, bytes by number format, and evidence of the counts.

The entry of a model is a function of its description and of llmcalc's version alone, so it can be compared in CI.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..components.evidence import evidence_of_parts
from ..costs.cache import kv
from ..costs.flops import flops, run_config_of
from ..costs.params import params
from ..device_memory.settings import Settings
from ..device_memory.static import memory
from ..errors import InputError
from ..sources.preset import Preset
from ..sources.presets import find_preset
from ..sources.target_names import hub_id_of, is_hub_id
from ..sources.to_toml import model_description
from ..units import short_dtype

LOCKED_FORMATS = ("fp8", "int8", "nf4", "awq-int4-g128", "mxfp4", "q8_0", "q4_k_m")
"""Formats (names of `--quantize`) in which a lock file states the weights' bytes, in addition to the checkpoint's
format.
"""


@dataclass(frozen=True)
class LockedModel:
    """A model's entry in a lock file: source, counts, bytes by number format, and evidence.

    preset: the model, as it was read.
    data: the entry, in JSON's types; numbers are exact integers in parameters, FLOPs and bytes.
    """

    preset: Preset
    data: dict[str, Any]


@dataclass(frozen=True)
class LockChange:
    """A value of a model that differs between its lock-file entry and the current count.

    target: the model.
    key: the value's path in the entry.
    locked_value, current_value: the value in the file, and as it is counted now; None where there is none.
    """

    target: str
    key: str
    locked_value: Any
    current_value: Any


def program_version() -> str:
    """Returns llmcalc's version, read from the package."""
    return str(import_module(__name__.partition(".")[0]).__version__)


def locked_model(preset: Preset) -> LockedModel:
    """Returns a model's lock-file entry. Raises `InputError` if the model's counts have no closed form."""
    spec = preset.model
    parameter_count, flop_count = params(spec), flops(spec, run_config_of(spec))
    return LockedModel(
        preset,
        {
            "target": preset.target,
            "name": preset.name,
            "kind": spec.kind,
            "model_type": None if preset.config is None else preset.config.get("model_type"),
            "revision": _hub_revision(preset),
            "sha256": _config_digest(preset),
            "params": {
                "total": parameter_count.total,
                "active": parameter_count.active,
                "embedding": parameter_count.embedding,
            },
            "flops": {"seq": flop_count.workload.seq, "full": flop_count.full, "causal": flop_count.causal},
            "cache": _cache_bytes(preset),
            "weights": _weight_bytes(preset),
            "statuses": {
                f"{part_evidence.kind} {part_evidence.name}": part_evidence.status
                for part_evidence in evidence_of_parts(spec)
            },
        },
    )


def _config_digest(preset: Preset) -> str:
    """Returns the SHA-256 of a model's config or description, written as JSON with sorted keys and no spaces.

    A description has no fields with default values, so that its digest stays when a later version has more fields.
    """
    config_content = preset.config or model_description(preset.model)
    config_text = json.dumps([config_content, list(preset.changes)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(config_text.encode()).hexdigest()


def _hub_revision(preset: Preset) -> str | None:
    """Returns the hub commit of a model's config; None for a preset or a file."""
    model_target = preset.target.removesuffix("?" + "&".join(preset.changes))
    hub_id = hub_id_of(model_target) or model_target
    if not is_hub_id(hub_id) or find_preset(hub_id) is not None or Path(hub_id).exists():
        return None
    from ..sources.hub import commit_of_repository

    return commit_of_repository(hub_id)


def _cache_bytes(preset: Preset) -> dict[str, Any] | None:
    """Returns the bytes of a bfloat16 KV cache at the model's usual context length; None for an encoder."""
    if preset.model.one_pass_model_name:
        return None
    cache_size = kv(preset.model)
    return {"seq": cache_size.workload.seq, "bytes_per_token": cache_size.bytes_per_token, "bytes": cache_size.bytes}


def _weight_bytes(preset: Preset) -> dict[str, int | None]:
    """Returns the weights' bytes as published, and in each number format; None for formats that cannot store them."""
    published_memory = memory(preset.model, published_dtype=preset.dtype, model_config=preset.checkpoint)
    bytes_by_format: dict[str, int | None] = {"published": published_memory.weights}
    for format_name in (short_dtype("bfloat16"), *LOCKED_FORMATS):
        settings = Settings(quantize=format_name) if format_name in LOCKED_FORMATS else Settings(dtype=format_name)
        try:
            bytes_by_format[format_name] = memory(
                preset.model, settings, preset.dtype, model_config=preset.checkpoint
            ).weights
        except InputError:
            bytes_by_format[format_name] = None
    return bytes_by_format


def lock_changes(locked_entry: Mapping[str, Any], current_entry: Mapping[str, Any]) -> list[LockChange]:
    """Returns the values that differ between two lock-file entries, in the order of the newer entry."""
    locked_values, current_values = dict(_nested_values(locked_entry)), dict(_nested_values(current_entry))
    model_target = str(current_entry["target"])
    return [
        LockChange(model_target, value_path, locked_values.get(value_path), current_values.get(value_path))
        for value_path in dict.fromkeys((*current_values, *locked_values))
        if locked_values.get(value_path) != current_values.get(value_path)
    ]


def _nested_values(locked_table: Any, parent_path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values inside nested tables, each with its path of keys."""
    if isinstance(locked_table, Mapping) and locked_table:
        for value_path, entry_value in locked_table.items():
            yield from _nested_values(entry_value, f"{parent_path}.{value_path}" if parent_path else str(value_path))
    else:
        yield parent_path, locked_table

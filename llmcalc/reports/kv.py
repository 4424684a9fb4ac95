"""The report of `llmcalc kv`: the bytes of the KV cache, and its bytes with other attention or number formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import units
from ..algebra import Number
from ..costs.cache import CacheSize, WhatIf, cache_bits_cost_by_name
from ..costs.cache_formats import cache_format
from ..frozen import frozen
from ..sources.preset import Preset
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig
from .answer import CountedAnswer
from .document import Column, Report, Table, row, without_repetitions
from .draft import with_draft
from .encoder_tokens import with_encoder_tokens
from .notes import binary_unit_note, too_long_notes, unread_format_notes, warnings_of_notes, workload_text
from .rank_texts import counted_rank_notes, rank_data, subtitle_with_rank
from .summary import model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import SelectedRank

SHOWN_DTYPES = ("bfloat16", "float8", "int8", "int4")
"""Number formats of the columns of the what-if table, after the user's format."""


def report(preset: Preset, cache_size: CacheSize, selected_rank: SelectedRank | None = None) -> Report:
    """Returns the report: tables of the cache by kind of layer, for changed models, and by length, in one unit.

    selected_rank: the rank that is counted; default the whole model.
    """
    workload, model_changes = cache_size.workload, cache_size.what_if
    warnings = too_long_notes(cache_size.spec, workload)
    notes = (
        warnings
        + unread_format_notes(preset)
        + without_repetitions(counted_rank_notes(selected_rank, *_rank_notes(cache_size, selected_rank)))
        + _published_format_notes(preset, cache_size)
        + _cache_notes(cache_size)
    )
    source_tokens = workload.source if cache_size.spec.source_tokens is None else cache_size.spec.source_tokens
    workload_values = (
        {"batch": workload.batch, "seq": workload.seq}
        | ({"source": source_tokens} if cache_size.spec.kind == "encoder-decoder" else {})
        | {"dtype": cache_size.dtype}
    )
    json_document: dict[str, Any] = {
        "model": model_data(preset),
        **rank_data(selected_rank),
        "workload": workload_values,
        "cache": {
            "bytes": cache_size.bytes,
            "bytes_per_token": cache_size.bytes_per_token,
            "growth_per_token": cache_size.growth_per_token,
            "elements": cache_size.elements,
            "by_layer_kind": cache_size.by_layer_kind,
            "layers": [asdict(layer_group) for layer_group in cache_size.groups],
            "by_dtype": {dtype: cache_size.bytes_in_format(dtype) for dtype in _dtype_names(cache_size)},
            "what_if": {
                changed_run.model_change.key: {
                    "bytes": changed_run.cache.bytes,
                    "ratio": changed_run.ratio,
                    "by_dtype": {dtype: changed_run.cache.bytes_in_format(dtype) for dtype in _dtype_names(cache_size)},
                }
                for changed_run in model_changes
            },
            "growth": [
                {"seq": token_count, "bytes": cache_bytes} for token_count, cache_bytes in cache_size.growth.items()
            ],
        },
        "notes": notes,
    }
    byte_scale = units.memory_scale(cache_size.bytes)
    tables = [
        _layer_kinds_table(preset, cache_size, byte_scale, notes, selected_rank),
        _changed_models_table(cache_size, model_changes, byte_scale),
        *([_growth_table(cache_size, byte_scale)] if cache_size.bytes_per_token else []),
    ]
    return Report(json_document, tables, warnings=warnings_of_notes(preset, warnings)).with_target(preset.target)


def _dtype_names(cache_size: CacheSize) -> list[str]:
    return list(dict.fromkeys([*([] if cache_size.dtype in SHOWN_DTYPES else [cache_size.dtype]), *SHOWN_DTYPES]))


def _rank_notes(cache_size: CacheSize, selected_rank: SelectedRank | None) -> list[str]:
    """Returns notes about replicas of the cache, and about bytes that tensor-parallel ranks duplicate."""
    if selected_rank is None:
        return []
    undivided_bits = selected_rank.model.undivided_tree.total(
        cache_bits_cost_by_name(cache_size.dtype), RunConfig(cache_size.workload)
    )
    undivided_bytes = bits_to_bytes(undivided_bits)
    copies_per_group = cache_size.bytes * selected_rank.layout.tp / undivided_bytes if undivided_bytes else 1
    return [
        *(["--batch: sequences of each replica"] if selected_rank.layout.dp > 1 else []),
        *(
            [f"the ranks of a tensor group cache {copies_per_group:.4g} × the bytes of one copy"]
            if copies_per_group > 1
            else []
        ),
    ]


def _published_format_notes(preset: Preset, cache_size: CacheSize) -> list[str]:
    """Returns a note if a model published in float32 has a cache in 16 bits, which `memory` counts in 32 bits."""
    if preset.dtype != "float32" or cache_format(cache_size.dtype).keys.bits != 16:
        return []
    return [
        f"cached in {units.short_dtype(cache_size.dtype)}, as in vLLM; llmcalc memory has fp32, the format of the "
        "published weights: --kv-dtype fp32"
    ]


def _layer_kinds_table(
    preset: Preset,
    cache_size: CacheSize,
    byte_scale: units.UnitScale,
    notes: list[str],
    selected_rank: SelectedRank | None,
) -> Table:
    table_columns = (
        Column("layer_kind", "layer type", justify="left"),
        Column("layers", "layers", units.exact_text),
        Column("tokens", "tokens cached", units.exact_text),
        Column("elements_per_token", "elem/token/layer", units.exact_text),
        Column("bytes", byte_scale.name, byte_scale.write),
        Column("share", "share", units.percent),
    )
    table_rows = [
        row(
            layer_group.kind,
            layer_group.layers,
            layer_group.tokens,
            layer_group.width,
            layer_group.bytes,
            layer_group.bytes / cache_size.bytes,
        )
        for layer_group in cache_size.groups
    ]
    table_rows.append(row("total", None, None, None, cache_size.bytes, 1.0, is_bold=True, is_sum=True))
    cache_text = subtitle_with_rank(headline(cache_size), selected_rank)
    answer_text = units.memory(cache_size.bytes)
    return Table(preset.display, table_columns, table_rows, cache_text, notes, answer_text, name="layers")


def headline(cache_size: CacheSize) -> str:
    """Returns a headline such as `KV cache of 8,192 tokens in bf16, 128.00 KiB per token`, or the formats of states."""
    if not cache_size.bytes_per_token:
        sequence_count = cache_size.workload.batch
        return (
            f"states of {sequence_count:,} sequence{'s' * (sequence_count > 1)} in "
            f"{_state_bits_text(cache_size)}, the same at "
            "any length; no keys and values"
        )
    growth_text = units.memory(cache_size.growth_per_token)
    per_token_text = f"{units.memory(cache_size.bytes_per_token)} per token"
    if cache_size.growth_per_token != cache_size.bytes_per_token:
        per_token_text += (
            f" of both stacks, {growth_text} per further decoded token"
            if cache_size.spec.kind == "encoder-decoder"
            else f" until a window fills, {growth_text} after"
        )
    dtype_text = units.short_dtype(cache_size.dtype)
    return f"KV cache of {workload_text(cache_size.spec, cache_size.workload)} in {dtype_text}, {per_token_text}"


def _state_bits_text(cache_size: CacheSize) -> str:
    """Returns the bits of recurrent states as text: `32 bits`, or per state if the formats differ."""
    kinds_by_bits: dict[Number, list[str]] = {}
    for state_kind, state_bits in cache_size.state_bits.items():
        kinds_by_bits.setdefault(state_bits, []).append(state_kind)
    if len(kinds_by_bits) == 1:
        return f"{next(iter(kinds_by_bits))} bits"
    return " and ".join(
        f"{state_bits} bits ({', '.join(state_kinds)})" for state_bits, state_kinds in kinds_by_bits.items()
    )


def _changed_models_table(cache_size: CacheSize, model_changes: Iterable[WhatIf], byte_scale: units.UnitScale) -> Table:
    dtype_names = _dtype_names(cache_size)
    model_rows: list[tuple[str, float, CacheSize]] = [
        ("current", 1.0, cache_size),
        *(
            (changed_cache.model_change.title, changed_cache.ratio, changed_cache.cache)
            for changed_cache in model_changes
        ),
    ]
    table_columns = [
        Column("what_if", "what if", justify="left"),
        Column("ratio", "ratio", lambda kv_ratio: f"{kv_ratio:,.2f} ×" if kv_ratio >= 1 else f"{kv_ratio:.3f} ×"),
        *(
            Column(
                f"bytes_{units.short_dtype(dtype)}", f"{byte_scale.name} {units.short_dtype(dtype)}", byte_scale.write
            )
            for dtype in dtype_names
        ),
    ]
    table_rows = [
        row(title, kv_ratio, *(other_cache.bytes_in_format(dtype) for dtype in dtype_names), is_bold=not row_index)
        for row_index, (title, kv_ratio, other_cache) in enumerate(model_rows)
    ]
    return Table("", table_columns, table_rows, name="what-if")


def _growth_table(cache_size: CacheSize, byte_scale: units.UnitScale) -> Table:
    bytes_by_tokens = cache_size.growth
    token_scale = units.memory_scale(cache_size.bytes_per_token)
    sequence_count = cache_size.workload.batch
    table_columns = (
        Column("seq", "tokens per sequence", units.exact_text),
        Column(
            "bytes",
            byte_scale.name + (f", {sequence_count:,} sequences" if sequence_count > 1 else ""),
            byte_scale.write,
        ),
        Column("bytes_per_token", f"{token_scale.name} per token, mean", token_scale.write),
    )
    table_rows = [
        row(
            token_count,
            cache_bytes,
            cache_bytes / (sequence_count * token_count),
            is_bold=token_count == cache_size.workload.seq,
        )
        for token_count, cache_bytes in bytes_by_tokens.items()
    ]
    return Table("", table_columns, table_rows, name="growth")


def _cache_notes(cache_size: CacheSize) -> list[str]:
    layer_kinds = set(cache_size.by_layer_kind)
    unit_note, stored_format = binary_unit_note(units.memory_scale(cache_size.bytes)), cache_format(cache_size.dtype)
    if not cache_size.bytes_per_token:
        return [unit_note] if unit_note else []
    scale_text = (
        f"{units.short_dtype(stored_format.name)}: {stored_format.scales_text}" if stored_format.keys.bits < 16 else ""
    )
    notes = [
        "; ".join(
            filter(None, ("elem/token/layer: elements of the keys and values of one layer", scale_text, unit_note))
        )
    ]
    if layer_kinds & {"sliding_attention", "chunked_attention"}:
        notes.append("a sliding or chunked layer caches only the last `window` tokens (a rolling-buffer cache)")
    if "latent_attention" in layer_kinds:
        notes.append(
            "latent attention caches one latent and one decoupled RoPE key per token; as MHA, GQA or MQA it would "
            "cache the keys and values of its heads"
        )
    if "cross_attention" in layer_kinds:
        notes.append(
            "cross-attention caches keys and values of the encoder's tokens once; bytes per token count one token in "
            "the encoder and one in the decoder"
        )
    return notes


@frozen(repr=False)
class Cache(CountedAnswer, CacheSize):
    """The KV cache of a model in bytes, as an answer of the Python API."""

    def report(self) -> Report:
        return with_encoder_tokens(with_draft(report(self.preset, self, self.share), self.draft), self.inputs)

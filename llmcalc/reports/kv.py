"""The report of `llmcalc kv`: the bytes of the KV cache, and its bytes with other attention or number formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import units
from ..costs.cache import CacheSize, WhatIf, cache_bits_of
from ..costs.cache_formats import cache_format
from ..frozen import frozen
from ..sources.preset import Preset
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig
from .answer import CountedAnswer
from .document import Column, Report, Row, Table, without_repetitions
from .draft import with_draft
from .inputs import with_inputs
from .notes import binary_unit_note, tokens_of, too_long_notes, warnings_of_notes
from .share import share_data, share_notes, with_rank
from .summary import model_data

if TYPE_CHECKING:
    from ..parallel.rank_model import RankShare

DTYPES = ("bfloat16", "float8", "int8", "int4")
"""Number formats of the columns of what-ifs; the user's format is added before them."""


def report(preset: Preset, cache: CacheSize, rank_share: RankShare | None = None) -> Report:
    """Returns the report: tables of the cache by kind of layer, for changed models, and by length, in one unit.

    rank_share: the rank that is counted; default the whole model.
    """
    workload, what_if = cache.workload, cache.what_if
    warnings = too_long_notes(cache.spec, workload)
    notes = (
        warnings + without_repetitions(share_notes(rank_share, *_rank_notes(cache, rank_share))) + _cache_notes(cache)
    )
    source_tokens = workload.source if cache.spec.source_tokens is None else cache.spec.source_tokens
    workload_values = (
        {"batch": workload.batch, "seq": workload.seq}
        | ({"source": source_tokens} if cache.spec.kind == "encoder-decoder" else {})
        | {"dtype": cache.dtype}
    )
    document: dict[str, Any] = {
        "model": model_data(preset),
        **share_data(rank_share),
        "workload": workload_values,
        "cache": {
            "bytes": cache.bytes,
            "bytes_per_token": cache.bytes_per_token,
            "growth_per_token": cache.growth_per_token,
            "elements": cache.elements,
            "by_layer_kind": cache.by_layer_kind,
            "layers": [asdict(layer_group) for layer_group in cache.groups],
            "by_dtype": {name: cache.bytes_in_format(name) for name in _dtype_names(cache)},
            "what_if": {
                alternative.model_change.key: {
                    "bytes": alternative.cache.bytes,
                    "ratio": alternative.ratio,
                    "by_dtype": {name: alternative.cache.bytes_in_format(name) for name in _dtype_names(cache)},
                }
                for alternative in what_if
            },
            "growth": [{"seq": tokens, "bytes": cache_bytes} for tokens, cache_bytes in cache.growth.items()],
        },
        "notes": notes,
    }
    scale = units.memory_scale(cache.bytes)
    return Report(
        document,
        [
            _kinds_table(preset, cache, scale, notes, rank_share),
            _changed_model_rows(cache, what_if, scale),
            _growth_table(cache, scale),
        ],
        warnings=warnings_of_notes(preset, warnings),
    ).for_target(preset.target)


def _dtype_names(cache: CacheSize) -> list[str]:
    return list(dict.fromkeys([*([] if cache.dtype in DTYPES else [cache.dtype]), *DTYPES]))


def _rank_notes(cache: CacheSize, rank_share: RankShare | None) -> list[str]:
    """Returns notes about replicas of the cache, and about bytes that tensor-parallel ranks duplicate."""
    if rank_share is None:
        return []
    undivided_bytes = bits_to_bytes(
        rank_share.model.undivided_tree.total(cache_bits_of(cache.dtype), RunConfig(cache.workload))
    )
    copies_per_group = cache.bytes * rank_share.layout.tp / undivided_bytes if undivided_bytes else 1
    return [
        *(["--batch: sequences of each replica"] if rank_share.layout.dp > 1 else []),
        *(
            [f"the ranks of a tensor group cache {copies_per_group:.4g} × the bytes of one copy"]
            if copies_per_group > 1
            else []
        ),
    ]


def _kinds_table(
    preset: Preset, cache: CacheSize, scale: units.Scale, notes: list[str], rank_share: RankShare | None
) -> Table:
    columns = (
        Column("layer_kind", "layer type", justify="left"),
        Column("layers", "layers", units.exact),
        Column("tokens", "tokens cached", units.exact),
        Column("elements_per_token", "elem/token/layer", units.exact),
        Column("bytes", scale.name, scale.write),
        Column("share", "share", units.percent),
    )
    rows = [
        Row(
            [
                layer_group.kind,
                layer_group.layers,
                layer_group.tokens,
                layer_group.width,
                layer_group.bytes,
                layer_group.bytes / cache.bytes,
            ]
        )
        for layer_group in cache.groups
    ]
    rows.append(Row(["total", None, None, None, cache.bytes, 1.0], strong=True, is_sum=True))
    cache_text = with_rank(headline(cache), rank_share)
    return Table(preset.display, columns, rows, cache_text, notes, units.memory(cache.bytes), name="layers")


def headline(cache: CacheSize) -> str:
    """Writes `KV cache of 8,192 tokens in bf16, 128.00 KiB per token`."""
    growth_text = units.memory(cache.growth_per_token)
    per_token_text = f"{units.memory(cache.bytes_per_token)} per token"
    if cache.growth_per_token != cache.bytes_per_token:
        per_token_text += (
            f" of both stacks, {growth_text} per further decoded token"
            if cache.spec.kind == "encoder-decoder"
            else f" until a window fills, {growth_text} after"
        )
    return f"KV cache of {tokens_of(cache.spec, cache.workload)} in {units.short_dtype(cache.dtype)}, {per_token_text}"


def _changed_model_rows(cache: CacheSize, what_if: Iterable[WhatIf], scale: units.Scale) -> Table:
    dtypes = _dtype_names(cache)
    rows: list[tuple[str, float, CacheSize]] = [
        ("current", 1.0, cache),
        *((what_if_case.model_change.title, what_if_case.ratio, what_if_case.cache) for what_if_case in what_if),
    ]
    columns = [
        Column("what_if", "what if", justify="left"),
        Column("ratio", "ratio", lambda ratio: f"{ratio:,.2f} ×" if ratio >= 1 else f"{ratio:.3f} ×"),
        *(
            Column(f"bytes_{units.short_dtype(name)}", f"{scale.name} {units.short_dtype(name)}", scale.write)
            for name in dtypes
        ),
    ]
    filled_rows = [
        Row([title, ratio, *(alternative.bytes_in_format(name) for name in dtypes)], strong=not i)
        for i, (title, ratio, alternative) in enumerate(rows)
    ]
    return Table("", columns, filled_rows, name="what-if")


def _growth_table(cache: CacheSize, scale: units.Scale) -> Table:
    bytes_by_tokens = cache.growth
    per_token = units.memory_scale(cache.bytes_per_token)
    batch = cache.workload.batch
    columns = (
        Column("seq", "tokens per sequence", units.exact),
        Column("bytes", scale.name + (f", {batch:,} sequences" if batch > 1 else ""), scale.write),
        Column("bytes_per_token", f"{per_token.name} per token, mean", per_token.write),
    )
    rows = [
        Row([tokens, cache_bytes, cache_bytes / (batch * tokens)], strong=tokens == cache.workload.seq)
        for tokens, cache_bytes in bytes_by_tokens.items()
    ]
    return Table("", columns, rows, name="growth")


def _cache_notes(cache: CacheSize) -> list[str]:
    layer_kinds = set(cache.by_layer_kind)
    scale, stored_format = binary_unit_note(units.memory_scale(cache.bytes)), cache_format(cache.dtype)
    scales = f"{units.short_dtype(stored_format.name)}: {stored_format.what}" if stored_format.keys.bits < 16 else ""
    notes = ["; ".join(filter(None, ("elem/token/layer: elements of the keys and values of one layer", scales, scale)))]
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
    """The KV cache of a model, in bytes."""

    def report(self) -> Report:
        return with_inputs(with_draft(report(self.preset, self, self.share), self.draft), self.inputs)

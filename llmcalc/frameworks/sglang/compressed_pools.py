"""The pools of SGLang's cache for compressed attention (DeepSeek-V4): `DSV4PoolConfigurator`.

A token has its entries in each layer and, for a share of the tokens, the keys of a window with the states from which
the next entries are computed. From 0.5.15 on the states of entries of many tokens belong to requests, and take a fixed
part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import InputError
from ...parallel.layout import ImpossibleLayout
from ..engines.rank import EngineRank, compressed_key_bytes, compressed_mixers_with_layer_counts, scaled_float8_bytes
from .recurrent_states import ConcurrencyLimits
from .versions import SGLangRules

PAGE_TOKENS = 256
"""Number of tokens per page of the cache."""

STATE_PAGE_TOKENS = 128
"""Number of window tokens for which a page of states is kept, up to version 0.5.20."""

PAGE_ALIGNMENT = 576
"""The size of a page is a multiple of this number of bytes, from version 0.5.21 on."""

WINDOW_SHARE = 0.1
"""Default of `--swa-full-tokens-ratio` for models with compressed attention."""

SHORT_ENTRY_TOKENS, LONG_ENTRY_TOKENS = 4, 128
"""Numbers of tokens per cache entry: of entries selected by an indexer, and of all other entries."""

FLOAT32_BYTES = 4

DRAFTING_LAYERS = 1
"""Number of drafting layers, which a config's `compress_ratios` lists after the model's layers."""

EVICTION_INTERVAL = 128
"""Number of tokens after which a request's window gives slots back (SGLANG_SWA_EVICTION_INTERVAL)."""


class CacheSizes(NamedTuple):
    """The sizes of one rank's caches of compressed attention.

    layer_count: number of layers of the model, with the layer that drafts.
    short_entry_layers, long_entry_layers: number of layers with entries of 4 tokens, and of 128 tokens.
    key_width, key_bytes: elements and bytes of a key.
    index_width: elements of an indexer's key.
    window_tokens: tokens of a window.
    """

    layer_count: int
    short_entry_layers: int
    long_entry_layers: int
    key_width: int
    key_bytes: int
    index_width: int
    window_tokens: int


def _cache_sizes(engine_rank: EngineRank) -> CacheSizes:
    """Returns the sizes of a rank's caches. Raises `InputError` for unsupported entry lengths."""
    mixers_and_layers = compressed_mixers_with_layer_counts(engine_rank)
    if engine_rank.layout.pp > 1:
        raise ImpossibleLayout("--pp-size: of compressed attention is not modelled; expected 1")
    compress_rates = {mixer.compress_rate for mixer, _ in mixers_and_layers}
    if not compress_rates <= {None, SHORT_ENTRY_TOKENS, LONG_ENTRY_TOKENS}:
        raise InputError(
            f"--engine sglang: entries of {compress_rates} tokens; expected {SHORT_ENTRY_TOKENS} or {LONG_ENTRY_TOKENS}"
        )
    first_mixer = mixers_and_layers[0][0]
    index_widths = [mixer.indexer.index_head_dim for mixer, _ in mixers_and_layers if mixer.indexer is not None]
    return CacheSizes(
        layer_count=sum(layer_count for _, layer_count in mixers_and_layers) + DRAFTING_LAYERS,
        short_entry_layers=sum(
            layer_count for mixer, layer_count in mixers_and_layers if mixer.compress_rate == SHORT_ENTRY_TOKENS
        ),
        long_entry_layers=sum(
            mixer_layer_count
            for mixer, mixer_layer_count in mixers_and_layers
            if mixer.compress_rate == LONG_ENTRY_TOKENS
        ),
        key_width=int(first_mixer.head_dim),
        key_bytes=compressed_key_bytes(first_mixer),
        index_width=int(index_widths[0]) if index_widths else 0,
        window_tokens=int(first_mixer.sliding_window),
    )


def compressed_tokens(
    engine_rank: EngineRank,
    version_rules: SGLangRules,
    flags: Mapping[str, Any],
    available_bytes: int,
    concurrency_limits: ConcurrencyLimits,
    longest_tokens: int,
    chunk_tokens: int,
) -> int:
    """Returns the number of tokens of a cache with compressed attention.

    flags: values of SGLang's flags by their fields. available_bytes: bytes for the cache. longest_tokens: tokens of the
    longest request. chunk_tokens: tokens of a prompt's chunk.
    Raises `InputError` for versions without such pools, and for formats of keys that are not modelled.
    """
    if version_rules.compressed_states == "off":
        raise InputError("--engine sglang: compressed attention is modelled from SGLang 0.5.12 on")
    cache_sizes = _cache_sizes(engine_rank)
    draft_tokens = concurrency_limits.draft_tokens
    request_limit = concurrency_limits.request_limit
    has_paged_states = version_rules.compressed_states == "paged"
    window_share = float(flags.get("swa_full_tokens_ratio", WINDOW_SHARE))
    ring_slots = (16, 256) if draft_tokens else (8, 128)
    short_state_bytes = (
        4 * (cache_sizes.key_width + cache_sizes.index_width) * FLOAT32_BYTES * cache_sizes.short_entry_layers
    )
    long_state_bytes = 2 * cache_sizes.key_width * FLOAT32_BYTES * cache_sizes.long_entry_layers
    window_token_bytes = _padded_entry_bytes(cache_sizes.key_bytes, 1, has_paged_states) * cache_sizes.layer_count
    window_token_bytes += ring_slots[0] / (PAGE_TOKENS if has_paged_states else STATE_PAGE_TOKENS) * short_state_bytes
    entry_bytes = (
        (
            _padded_entry_bytes(cache_sizes.key_bytes, SHORT_ENTRY_TOKENS, has_paged_states)
            + scaled_float8_bytes(cache_sizes.index_width)
        )
        / SHORT_ENTRY_TOKENS
        * cache_sizes.short_entry_layers
    )
    entry_bytes += (
        _padded_entry_bytes(cache_sizes.key_bytes, LONG_ENTRY_TOKENS, has_paged_states)
        / LONG_ENTRY_TOKENS
        * cache_sizes.long_entry_layers
    )
    draft_layer_factor = (
        (cache_sizes.layer_count + 1) / cache_sizes.layer_count if draft_tokens else 1
    )  # a layer that drafts
    fixed_bytes = 0.0
    if has_paged_states and request_limit is not None and "swa_full_tokens_ratio" not in flags:
        window_share = 0
        fixed_bytes = (
            draft_layer_factor
            * window_token_bytes
            * _window_slots(cache_sizes, flags, request_limit, chunk_tokens, draft_tokens)
        )
    token_bytes = draft_layer_factor * (window_share * window_token_bytes + entry_bytes)
    if version_rules.compressed_states == "pages":
        token_bytes += draft_layer_factor * window_share * ring_slots[1] / STATE_PAGE_TOKENS * long_state_bytes
    else:
        if request_limit is None:
            token_count = int(available_bytes / token_bytes)
            request_limit = min(max(min(token_count * 512 // longest_tokens, 4096), 2048), token_count // 2)
        state_rows = (request_limit + 1) * ring_slots[1] + ring_slots[1] + 1
        fixed_bytes += -(-state_rows // LONG_ENTRY_TOKENS) * LONG_ENTRY_TOKENS * long_state_bytes
    return int(max(0, available_bytes - fixed_bytes) / token_bytes) // PAGE_TOKENS * PAGE_TOKENS


def _padded_entry_bytes(key_bytes: int, tokens_per_entry: int, stores_entries_in_pages: bool) -> float:
    """Returns the bytes of a cache entry, with its share of the page's padding."""
    if not stores_entries_in_pages:
        return key_bytes
    entries_per_page = PAGE_TOKENS // tokens_per_entry
    return -(-entries_per_page * key_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT / entries_per_page


def _window_slots(
    cache_sizes: CacheSizes, flags: Mapping[str, Any], running_requests: int, chunk_tokens: int, draft_tokens: int
) -> int:
    """Returns the number of slots for keys in the sliding window, of running requests and of cached prefixes."""
    window_tokens = cache_sizes.window_tokens + EVICTION_INTERVAL * max(1, draft_tokens) + PAGE_TOKENS
    decoded_slots = 2 * -(-max(1, draft_tokens) // PAGE_TOKENS) * PAGE_TOKENS if draft_tokens else PAGE_TOKENS
    chunks_in_flight = 1 if flags.get("disable_overlap_schedule") else 2
    window_slots = (window_tokens + decoded_slots) * running_requests + chunks_in_flight * chunk_tokens + PAGE_TOKENS
    if not flags.get("disable_radix_cache"):
        window_slots += 4 * running_requests * (cache_sizes.window_tokens + PAGE_TOKENS)
    return -(-window_slots // PAGE_TOKENS) * PAGE_TOKENS

"""The blocks of vLLM's KV cache for compressed attention (DeepSeek-V4).

A layer has up to five caches: keys of a window, compressed entries, the indexer's entries, and the states from which
the next entry of either is computed. Each cache has pages of equal bytes; caches with pages of the same tokens form a
group, and all groups take blocks from one pool (v1/core/kv_cache_utils.py, `group_and_unify_kv_cache_specs`,
`_get_kv_cache_groups_uniform_groups`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...errors import InputError
from ...parallel.layout import ImpossibleLayout
from ..engines.rank import EngineRank, compressed_key_bytes, compressed_mixers_with_layer_counts, scaled_float8_bytes
from .kv_blocks import BlockPool, LayerGroup
from .versions import PageLayout

ENTRY_BLOCK = 256
"""Number of tokens per block of compressed entries, the only size that FlashMLA's and the indexer's kernels have."""

WINDOW_BLOCK_TOKENS = 64
"""Number of tokens per block of the sliding window's keys (v1/attention/backends/mla/sparse_swa.py)."""

STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens per entry → tokens per block of states (models/deepseek_v4/compressor.py, `CompressorStateCache`)."""

PAGE_ALIGNMENT = 576
"""The size of a page in the cache format `fp8_ds_mla` is a multiple of this number of bytes."""

FLOAT32_BYTES = 4


class CachePages(NamedTuple):
    """The pages of a cache in all layers of one type.

    layer_count: number of layers. page_bytes: bytes of a page. block_tokens: tokens of a page.
    window: tokens that the cache keeps; None for all tokens.
    """

    layer_count: int
    page_bytes: int
    block_tokens: int
    window: int | None


def compressed_pool(
    engine_rank: EngineRank, page_layout: PageLayout, has_fp4_indexer: bool = False, checks_tuples: bool = False
) -> BlockPool:
    """Returns the block pool of a model with compressed attention, whose keys are stored as `fp8_ds_mla`.

    page_layout: order of the groups' pages in a block. has_fp4_indexer: whether the indexer's entries have 4 bits.
    checks_tuples: whether the start check counts blocks of whole page tuples, whatever the layout.
    Raises `InputError` for a pipeline, and for entries of other sizes than those of DeepSeek-V4.
    """
    if engine_rank.layout.pp > 1:
        raise ImpossibleLayout("--pipeline-parallel-size: of compressed attention is not modelled; expected 1")
    pages_by_group: dict[tuple[int, int | None], list[CachePages]] = {}
    for cache_pages in _pages_of_model(engine_rank, has_fp4_indexer and page_layout == "groups"):
        pages_by_group.setdefault((cache_pages.block_tokens, cache_pages.window), []).append(cache_pages)
    entry_pages = pages_by_group.pop((ENTRY_BLOCK, None), [])
    if not entry_pages:
        raise InputError("--engine vllm: compressed attention without entries is not modelled")
    page_sizes = sorted({cache_pages.page_bytes for cache_pages in entry_pages})
    page_tuple_counts = [_page_tuple_count(entry_pages), *map(_page_tuple_count, pages_by_group.values())]
    page_tuples_per_group = _page_tuples_per_group(page_tuple_counts, page_tuple_counts[0])
    counts_pages = page_layout != "groups"
    layer_groups = [LayerGroup(1, None, block_tokens=ENTRY_BLOCK, page_bytes=counts_pages * _page_bytes(entry_pages))]
    pages_per_block = [_layers_by_size(entry_pages)]
    for (block_tokens, window), group_pages in pages_by_group.items():
        if counts_pages:  # pages have the bytes of the next larger page of entries
            group_pages = [
                cache_pages._replace(
                    page_bytes=min(page_bytes for page_bytes in page_sizes if page_bytes >= cache_pages.page_bytes)
                )
                for cache_pages in group_pages
            ]
        page_tuple_count = -(-_page_tuple_count(group_pages) // page_tuples_per_group)
        page_bytes = counts_pages * _page_bytes(group_pages)
        layer_groups.append(LayerGroup(page_tuple_count, window, block_tokens=block_tokens, page_bytes=page_bytes))
        pages_per_block.append(
            {
                page_bytes: -(-page_count // page_tuple_count)
                for page_bytes, page_count in _layers_by_size(group_pages).items()
            }
        )
    return BlockPool(
        _block_bytes(pages_per_block, page_sizes, page_layout),
        ENTRY_BLOCK,
        tuple(layer_groups),
        start_check_block_bytes=_block_bytes(pages_per_block, page_sizes, "tuples") if checks_tuples else 0,
    )


def _pages_of_model(engine_rank: EngineRank, has_fp4_entries: bool) -> Iterator[CachePages]:
    """Yields the pages of every compressed cache; layers that draft tokens cache only a window.

    has_fp4_entries: whether an indexer's entry takes 4 bits an element with a byte of scale for 32; else 8 bits with a
        float32 for 128.
    """
    for mixer, layer_count in compressed_mixers_with_layer_counts(engine_rank):
        key_bytes = compressed_key_bytes(mixer)
        yield CachePages(
            layer_count, _align_page(WINDOW_BLOCK_TOKENS * key_bytes), WINDOW_BLOCK_TOKENS, mixer.sliding_window
        )
        tokens_per_entry = mixer.compress_rate
        if tokens_per_entry is None:
            continue
        if tokens_per_entry not in STATE_BLOCKS:
            raise InputError(
                f"--engine vllm: entries of {tokens_per_entry} tokens; expected {' or '.join(map(str, STATE_BLOCKS))}"
            )
        entry_bytes = {mixer.head_dim: key_bytes}
        if mixer.indexer is not None:
            index_head_dim = mixer.indexer.index_head_dim
            entry_bytes[index_head_dim] = (
                index_head_dim // 2 + index_head_dim // 32 if has_fp4_entries else scaled_float8_bytes(index_head_dim)
            )
        windows_per_state = 1 + mixer.overlap
        for index_head_dim, bytes_of_entry in entry_bytes.items():
            state_bytes = 2 * windows_per_state * index_head_dim * FLOAT32_BYTES  # values and scores of each token
            yield CachePages(
                layer_count, _align_page(ENTRY_BLOCK // tokens_per_entry * bytes_of_entry), ENTRY_BLOCK, None
            )
            yield CachePages(
                layer_count,
                _align_page(STATE_BLOCKS[tokens_per_entry] * state_bytes),
                STATE_BLOCKS[tokens_per_entry],
                windows_per_state * tokens_per_entry,
            )
    if engine_rank.draft_layer_count:
        first_mixer = next(mixer for mixer, _ in compressed_mixers_with_layer_counts(engine_rank))
        yield CachePages(
            engine_rank.draft_layer_count,
            _align_page(WINDOW_BLOCK_TOKENS * compressed_key_bytes(first_mixer)),
            WINDOW_BLOCK_TOKENS,
            first_mixer.sliding_window,
        )


def _align_page(page_bytes: int) -> int:
    return -(-page_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def _layers_by_size(group_pages: Iterable[CachePages]) -> dict[int, int]:
    """Returns page size in bytes → number of layers of a cache group with pages of this size."""
    layers_by_size: dict[int, int] = {}
    for cache_pages in group_pages:
        layers_by_size[cache_pages.page_bytes] = layers_by_size.get(cache_pages.page_bytes, 0) + cache_pages.layer_count
    return layers_by_size


def _page_bytes(group_pages: Iterable[CachePages]) -> int:
    """Returns the bytes of one page for each layer of a cache group."""
    return sum(cache_pages.layer_count * cache_pages.page_bytes for cache_pages in group_pages)


def _page_tuple_count(group_pages: Iterable[CachePages]) -> int:
    """Returns the number of page tuples (one page of each size) in a group."""
    return max(_layers_by_size(group_pages).values())


def _page_tuples_per_group(page_tuple_counts: list[int], least_page_tuples: int) -> int:
    """Returns the number of tuples per group, at least `least_page_tuples`, with the least total padding.

    Of equals the larger number (`_approximate_gcd`).
    """
    return min(
        range(least_page_tuples, max(page_tuple_counts) + 1),
        key=lambda group_tuples: (
            sum(-page_tuple_count % group_tuples for page_tuple_count in page_tuple_counts),
            -group_tuples,
        ),
    )


def _block_bytes(pages_per_block: list[dict[int, int]], page_sizes: list[int], page_layout: PageLayout) -> int:
    """Returns the bytes of a block. pages_per_block: for each group, bytes of a page → number of pages in a block."""
    if page_layout == "tuples":
        return sum(page_sizes) * max(max(pages_by_size.values()) for pages_by_size in pages_per_block)
    if page_layout == "page sizes":
        return sum(
            page_bytes * max(pages_by_size.get(page_bytes, 0) for pages_by_size in pages_per_block)
            for page_bytes in page_sizes
        )
    return max(
        sum(page_bytes * page_count for page_bytes, page_count in pages_by_size.items())
        for pages_by_size in pages_per_block
    )

"""The blocks of vLLM's KV cache (v1/core/kv_cache_utils.py, `get_kv_cache_groups`, `get_kv_cache_config_from_groups`).

Blocks of all layers have equal bytes: those of layers with fewer elements a token have more tokens
(`unify_kv_cache_spec_page_size`). A model with several kinds of layers has groups of as many layers as the smallest
kind has, and all groups take blocks from one pool.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction

from ...components.mixers.mla import MLA
from ...components.mixers.pooled_indexer import PooledIndexer
from ...errors import InputError
from ...frozen import frozen
from ..engines.rank import (
    INDEXER_KIND,
    EngineRank,
    StateCache,
    TokenCache,
    mixers_with_layer_counts,
    scaled_float8_bytes,
)
from .recurrent_states import CURRENT_STATE, StateStorage, stored_state_caches
from .versions import VLLMRules

PADDING_RATIO = 1.5
"""Layer groups are padded to the largest if it has less than this many times the smallest group's layers."""


@frozen
class LayerGroup:
    """Layers with the same cache. group_count: KV cache groups of these layers. window: tokens, or None for all.

    state_storage: the storage of recurrent states; None for keys and values.
    block_tokens: tokens of the group's blocks; None for those of the pool.
    page_bytes: bytes of the pages of all its layers, by which a version with unequal pages counts a request; else 0.
    """

    group_count: int
    window: int | None
    state_storage: StateStorage | None = None
    block_tokens: int | None = None
    page_bytes: int = 0

    def block_count(self, request_tokens: int, block_tokens: int, tokens_in_flight: int) -> int:
        """Returns the number of blocks of a request. tokens_in_flight: tokens that are scheduled at once."""
        block_tokens = self.block_tokens or block_tokens
        if self.state_storage is not None:
            return self.group_count * self.state_storage.blocks_of_request(request_tokens, block_tokens)
        if self.window is None:
            return self.group_count * -(-request_tokens // block_tokens)
        return self.group_count * (-(-min(self.window - 1 + tokens_in_flight, request_tokens) // block_tokens) + 1)


@frozen
class BlockPool:
    """The block sizes of one rank's KV cache.

    block_bytes: bytes of one block of all layers of a group. block_size: its tokens. layer_groups: groups of layers.
    start_check_block_bytes: bytes of a block by which the start check counts a request; 0 for those of the block.
    """

    block_bytes: int
    block_size: int
    layer_groups: tuple[LayerGroup, ...]
    start_check_block_bytes: int = 0

    @property
    def has_states(self) -> bool:
        """Whether a group has recurrent states."""
        return any(layer_group.state_storage is not None for layer_group in self.layer_groups)

    @property
    def aligns_states(self) -> bool:
        """Whether recurrent states are stored at the ends of blocks, as prefix caching requires."""
        return any(
            layer_group.state_storage is not None and layer_group.state_storage.storage_mode == "align"
            for layer_group in self.layer_groups
        )

    def block_count_in(self, available_bytes: int) -> int:
        """Returns the number of blocks that fit into `available_bytes` bytes."""
        return max(0, available_bytes // self.block_bytes)

    def blocks_of_request(self, request_tokens: int, tokens_in_flight: int) -> int:
        """Returns the number of blocks that a request of `request_tokens` tokens needs."""
        return sum(
            layer_group.block_count(request_tokens, self.block_size, tokens_in_flight)
            for layer_group in self.layer_groups
        )

    def max_concurrency(self, block_count: int, request_length: int, tokens_in_flight: int) -> float:
        """Returns the number of requests of `request_length` tokens that fit the blocks."""
        if (
            len(self.layer_groups) == 1
            and self.layer_groups[0].window is None
            and self.layer_groups[0].state_storage is None
        ):
            return block_count * self.block_size / request_length
        return block_count / max(1, self.blocks_of_request(request_length, tokens_in_flight))

    def printed_concurrency(self, block_count: int, request_length: int, tokens_in_flight: int) -> float:
        """Returns the number of concurrent requests that vLLM prints in its log for this block pool.

        Beside unequal pages it divides the bytes of a request's pages by those of the first group's, and so counts no
        padding of its blocks (`get_max_concurrency_for_kv_cache_config`): more requests than fit.
        """
        if first_page_bytes := self.layer_groups[0].page_bytes:
            request_bytes = sum(
                layer_group.page_bytes
                * layer_group.block_count(request_length, self.block_size, tokens_in_flight)
                // layer_group.group_count
                for layer_group in self.layer_groups
            )
            return block_count / -(-request_bytes // first_page_bytes)
        return self.max_concurrency(block_count, request_length, tokens_in_flight)

    def printed_tokens(
        self, block_count: int, request_length: int, tokens_in_flight: int, version_rules: VLLMRules
    ) -> int:
        """Returns the number of cache tokens that vLLM prints in its log for this block pool.

        A block of a request's current state counts as `request_length` tokens, those of the longest request.
        """
        if version_rules.printed_tokens == "max_concurrency x max_model_len":
            return int(self.printed_concurrency(block_count, request_length, tokens_in_flight) * request_length)
        if version_rules.printed_tokens == "blocks x block_size":
            return block_count * self.block_size
        has_current_states = any(
            state_group.state_storage is not None and state_group.state_storage.storage_mode == "current"
            for state_group in self.layer_groups
        )
        smallest_block_tokens = min(self.block_size, request_length) if has_current_states else self.block_size
        return block_count // sum(layer_group.group_count for layer_group in self.layer_groups) * smallest_block_tokens

    def longest_request(self, block_count: int, tokens_in_flight: int, max_tokens: int) -> int:
        """Returns the longest request in tokens that fits the blocks: `max_tokens`, or a multiple of a block."""
        smallest_block_tokens = min(layer_group.block_tokens or self.block_size for layer_group in self.layer_groups)
        if self.blocks_of_request(max_tokens, tokens_in_flight) <= block_count:
            return max_tokens
        block_multiples = range(smallest_block_tokens, max_tokens + 1, smallest_block_tokens)
        return smallest_block_tokens * bisect_right(
            block_multiples,
            block_count,
            key=lambda request_tokens: self.blocks_of_request(request_tokens, tokens_in_flight),
        )


def block_pool(
    engine_rank: EngineRank,
    element_bytes: Fraction,
    block_size: int,
    version_rules: VLLMRules,
    has_full_windows: bool = False,
    draft_caches: Sequence[TokenCache] = (),
    context_ranks: int = 1,
    state_storage: StateStorage = CURRENT_STATE,
    has_scaled_latents: bool = True,
) -> BlockPool:
    """Returns the block pool of a rank's KV cache.

    element_bytes: bytes of a cached element, with its share of scales. block_size: tokens of a block.
    has_full_windows: whether windowed layers keep all tokens. draft_caches: caches of a model that drafts.
    context_ranks: ranks that divide the tokens of the cache, of which each block then has so many times its tokens.
    state_storage: how recurrent states are kept.
    has_scaled_latents: whether latents of 8 bits beside an indexer have scales.
    Raises `InputError` for a model without a cache, for states in a version that has none, and for a model that drafts
    or that divides tokens beside layers of several kinds.
    """
    layer_caches = [*engine_rank.token_caches, *draft_caches]
    recurrent_states = stored_state_caches(engine_rank, state_storage)
    if not layer_caches:
        raise engine_rank.no_cache_error("vllm")
    if recurrent_states and not version_rules.grouped_layers:
        raise InputError("--engine vllm: recurrent states are modelled from vLLM 0.10 on; expected a newer version")
    if not version_rules.grouped_layers or has_full_windows:
        layer_caches = [cache._replace(window=None) for cache in layer_caches]
    if all(cache.window is None for cache in layer_caches) and not recurrent_states:
        token_bytes = math.ceil(
            sum(
                cache.layer_count * engine_rank.cache_bytes_per_token(cache, element_bytes, has_scaled_latents)
                for cache in layer_caches
            )
        )
        return BlockPool(token_bytes * block_size, block_size * context_ranks, (LayerGroup(1, None),))
    if context_ranks > 1:
        raise InputError("--decode-context-parallel-size: is not modelled for layers of several kinds; remove the flag")
    if draft_caches:
        raise InputError("--speculative-config: a draft model beside layers of several kinds is not modelled")
    pooled_key_bytes = _pooled_key_bytes(engine_rank)
    if not pooled_key_bytes:
        return _pool_of_layer_groups(layer_caches, recurrent_states, element_bytes, block_size, state_storage)
    attention_caches = [cache for cache in layer_caches if cache.kind != INDEXER_KIND]
    indexer_layer_count = sum(cache.layer_count for cache in layer_caches if cache.kind == INDEXER_KIND)
    pool = _pool_of_layer_groups(attention_caches, recurrent_states, element_bytes, block_size, state_storage)
    key_bytes = math.ceil(pooled_key_bytes * pool.block_size) * indexer_layer_count
    return BlockPool(
        pool.block_bytes + key_bytes, pool.block_size, (*pool.layer_groups, LayerGroup(1, None, CURRENT_STATE))
    )


def _pooled_key_bytes(engine_rank: EngineRank) -> Fraction:
    """Returns the bytes per token of the keys of an indexer that selects pools of tokens; 0 without such an indexer.

    They are in 8 bits and stand in the blocks of the latents; the tokens of an incomplete pool have one block of a
    request (vllm/models/glm5next, `KpoolTailSpec` in v1/kv_cache_interface.py).
    """
    indexers = [
        mixer.indexer for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model) if isinstance(mixer, MLA)
    ]
    return next(
        (
            Fraction(scaled_float8_bytes(indexer.index_head_dim), indexer.index_kpool)
            for indexer in indexers
            if isinstance(indexer, PooledIndexer)
        ),
        Fraction(0),
    )


def _pool_of_layer_groups(
    layer_caches: Sequence[TokenCache],
    recurrent_states: Sequence[StateCache],
    element_bytes: Fraction,
    block_size: int,
    state_storage: StateStorage,
) -> BlockPool:
    """Returns the block pool of a model whose layers have several cache types."""
    most_elements_per_token = max(layer_cache.elements_per_token for layer_cache in layer_caches)
    layer_counts_by_kind: dict[tuple[int | None, int], int] = {}
    for layer_cache in layer_caches:
        if most_elements_per_token % layer_cache.elements_per_token:
            raise InputError(
                f"--engine vllm: keys and values of {layer_cache.elements_per_token} elements beside "
                f"{most_elements_per_token} are "
                "not modelled; expected a divisor"
            )
        cache_kind = layer_cache.window, most_elements_per_token // layer_cache.elements_per_token
        layer_counts_by_kind[cache_kind] = layer_counts_by_kind.get(cache_kind, 0) + layer_cache.layer_count
    token_bytes = math.ceil(most_elements_per_token * element_bytes)
    state_layers = max((state_cache.layer_count for state_cache in recurrent_states), default=0)
    if recurrent_states:
        state_bytes = (
            sum(state_cache.bytes * state_cache.layer_count for state_cache in recurrent_states) // state_layers
        )
        state_alignment = state_storage.alignment
        state_block_tokens = -(-state_bytes // (token_bytes * state_alignment)) * state_alignment
        block_size = max(block_size, state_block_tokens)
    layer_counts = [*layer_counts_by_kind.values(), *([state_layers] if recurrent_states else [])]
    fewest_layers, most_layers = min(layer_counts), max(layer_counts)
    layers_per_group = most_layers if most_layers < PADDING_RATIO * fewest_layers else fewest_layers
    layer_groups = [
        LayerGroup(-(-layer_count // layers_per_group), window, block_tokens=block_ratio * block_size)
        for (window, block_ratio), layer_count in layer_counts_by_kind.items()
    ]
    if recurrent_states:
        layer_groups.append(LayerGroup(-(-state_layers // layers_per_group), None, state_storage))
    return BlockPool(token_bytes * block_size * layers_per_group, block_size, tuple(layer_groups))

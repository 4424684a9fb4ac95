"""Attention to selected keys, blocks or compressed keys, and the caches of such attention."""

from __future__ import annotations

from dataclasses import replace

from ..algebra import Number, add, ceil_div, exact_div, floor_div, is_zero, minimum, triangular_number
from ..frozen import frozen
from ..workload.derived_rows import ConcatenatedRows, PaddedRows
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .attention import AttentionCore
from .base import CACHE_EFFECTS, FLOP_EFFECTS, Op

COMPRESSED_CACHE_KIND = "compressed_attention"
"""The kind of cache, in tables of `llmcalc kv`, of layers with compressed entries."""


@frozen(slots=True)
class MaskedAttentionCore(AttentionCore):
    """Attention whose mask keeps at most `key_limit` keys per token; the scores of all keys are computed (Doge)."""

    key_limit: Number = 1

    def pairs(self, run_config: RunConfig) -> Number:
        if run_config.pairs == "full":
            return AttentionCore.pairs(self, run_config)
        key_limit = self.key_limit if self.window is None else minimum(self.key_limit, self.window)
        return AttentionCore.pairs(replace(self, window=key_limit), run_config)


@frozen(slots=True)
class VisibleKeysAttentionCore(AttentionCore):
    """The base of attention to a subset of the earlier keys, whose full passes mask the other keys."""

    def visible_pairs(self, token_count: Number) -> Number:
        """Returns the number of (query, key) pairs of the first n tokens."""
        raise TypeError(f"{type(self).__name__} states no pairs")

    def pairs(self, run_config: RunConfig) -> Number:
        past_tokens, new_tokens = run_config.past_rows(self.rows), run_config.new_rows(self.rows)
        if run_config.pairs == "full" and run_config.phase != "decode":
            return new_tokens * (new_tokens + past_tokens)
        return self.visible_pairs(past_tokens + new_tokens) - self.visible_pairs(past_tokens)


@frozen(slots=True)
class BlockAttentionCore(VisibleKeysAttentionCore):
    """Attention to `blocks` blocks of `block` tokens; the last block ends at the query's own token (MiniMax-M3).

    A full pass computes all blocks and masks the others.
    """

    block: Number = 1
    blocks: Number = 1

    @property
    def selects_keys(self) -> bool:
        return True

    def visible_pairs(self, token_count: Number) -> Number:
        """Returns the number of (query, key) pairs of the first n tokens in which the key is visible.

        These are all pairs while the tokens fill at most `blocks` blocks; then `blocks` − 1 full blocks and the token's
        own block up to the token.
        """
        tokens_within_limit = minimum(token_count, self.block * self.blocks)
        limited_tokens = token_count - tokens_within_limit
        whole_block_count = floor_div(limited_tokens, self.block)
        current_block_pairs = whole_block_count * triangular_number(self.block) + triangular_number(
            limited_tokens - whole_block_count * self.block
        )
        return (
            triangular_number(tokens_within_limit)
            + limited_tokens * (self.blocks - 1) * self.block
            + current_block_pairs
        )


@frozen(slots=True)
class PooledAttentionCore(VisibleKeysAttentionCore):
    """Attention to `selected_keys` tokens in complete pools of `pool_size` tokens, and to those after the last pool.

    A full pass masks the other tokens, decoding reads only these (GLM-5.3).
    """

    pool_size: Number = 1

    def visible_pairs(self, token_count: Number) -> Number:
        """Returns Σ (min(⌊p / pool⌋ · pool, selected) + p mod pool) over the first n tokens, p = 1 … n."""
        pool_attention = CompressedKVAttentionCore(
            1, 1, 1, tokens_per_entry=self.pool_size, chosen_entries=exact_div(self.selected_keys, self.pool_size)
        )
        pool_count = floor_div(token_count, self.pool_size)
        unpooled_pairs = pool_count * triangular_number(self.pool_size - 1) + triangular_number(
            token_count - pool_count * self.pool_size
        )
        return self.pool_size * pool_attention.visible_pairs(token_count) + unpooled_pairs


@frozen(slots=True)
class LocalAttentionCore(AttentionCore):
    """Attention of each block of queries to three blocks of keys and to every sum of `global_block` tokens (LongT5).

    A block has radius + 1 tokens, padding included. The mask allows keys at most `radius` away, and all sums.
    """

    radius: Number = 1
    global_block: Number = None

    def pairs(self, run_config: RunConfig) -> Number:
        new_tokens = run_config.new_rows(self.rows)
        block_sum_count = 0 if self.global_block is None else floor_div(new_tokens, self.global_block)
        if run_config.pairs == "full":
            block_size = self.radius + 1
            return ceil_div(new_tokens, block_size) * block_size * add(3 * block_size, block_sum_count)
        local_pairs = AttentionCore.pairs(replace(self, window=2 * self.radius + 1), run_config)
        return add(local_pairs, new_tokens * block_sum_count)


@frozen(slots=True)
class SampledBlockAttentionCore(AttentionCore):
    """Attention in both directions within sampled blocks of scores, `block` queries by `block` keys each (MRA).

    The blocks are those with the highest scores of block means, at most `blocks` of them per head.
    approximated: whether the other scores are those of block means, whose values are summed too.
    """

    block: Number = 1
    blocks: Number = 1
    approximated: bool = True

    def _block_mean_pairs(self, run_config: RunConfig) -> Number:
        """Returns the number of (query, key) pairs between the means of blocks."""
        block_count = ceil_div(run_config.new_rows(self.rows), self.block)
        return block_count * block_count

    def pairs(self, run_config: RunConfig) -> Number:
        return minimum(self.blocks, self._block_mean_pairs(run_config)) * self.block * self.block

    def forward_flops(self, run_config: RunConfig) -> Number:
        mean_width = add(self.qk_dim, self.v_dim if self.approximated else 0)
        pair_products = self.pairs(run_config) * (self.qk_dim + self.v_dim)
        return 2 * run_config.batch * self.heads * (pair_products + self._block_mean_pairs(run_config) * mean_width)

    def backward_flops(self, run_config: RunConfig) -> Number:
        pair_count = add(self.pairs(run_config), self._block_mean_pairs(run_config) if self.approximated else 0)
        return 4 * run_config.batch * self.heads * pair_count * (self.qk_dim + self.v_dim)


@frozen(slots=True)
class GlobalLocalAttentionCore(AttentionCore):
    """Attention of global tokens to all tokens, and of each block of text to itself and global tokens (PEGASUS-X).

    rows: the global tokens, joined with the text padded to blocks.
    global_tokens: the number of global tokens.
    staggered: whether the blocks begin half a block before the text.
    """

    block: Number = 1
    global_tokens: Number = 1
    staggered: bool = False

    def pairs(self, run_config: RunConfig) -> Number:
        rows = self.rows
        assert isinstance(rows, ConcatenatedRows)
        assert isinstance(rows.second_rows, PaddedRows)
        text_rows = run_config.new_rows(rows.second_rows)
        if is_zero(text_rows):
            return 0
        if run_config.pairs == "full":
            return self.global_tokens * (self.global_tokens + text_rows) + text_rows * (self.global_tokens + self.block)
        text_rows = run_config.new_rows(rows.second_rows.source_rows)
        first_block_tokens = minimum(text_rows, exact_div(self.block, 2)) if self.staggered else 0
        whole_block_count = floor_div(text_rows - first_block_tokens, self.block)
        last_block_tokens = text_rows - first_block_tokens - whole_block_count * self.block
        block_pairs = (
            first_block_tokens * first_block_tokens
            + whole_block_count * self.block * self.block
            + last_block_tokens * last_block_tokens
        )
        return self.global_tokens * (self.global_tokens + 2 * text_rows) + block_pairs


@frozen(slots=True)
class PredictStreamAttentionCore(AttentionCore):
    """Attention of predict streams to the main stream and to themselves (ProphetNet).

    Stream i attends to tokens at least i before its own, to the first token and to itself.

    streams: the number of predict streams.
    """

    streams: int = 1

    def pairs(self, run_config: RunConfig) -> Number:
        new_tokens, past_tokens = run_config.new_rows(self.rows), run_config.past_rows(self.rows)
        if run_config.pairs == "full":
            return self.streams * new_tokens * (past_tokens + new_tokens + new_tokens)
        predict_pairs: Number = 0
        for stream_index in range(self.streams):
            predict_pairs = add(
                predict_pairs,
                self._main_stream_pairs(past_tokens + new_tokens, stream_index)
                - self._main_stream_pairs(past_tokens, stream_index),
            )
        return add(predict_pairs, self.streams * new_tokens)

    def _main_stream_pairs(self, token_count: Number, stream_index: int) -> Number:
        """Returns the number of pairs of the first n tokens of a predict stream with tokens of the main stream."""
        first_tokens = minimum(token_count, stream_index)
        return first_tokens + triangular_number(token_count - first_tokens)


@frozen(slots=True)
class CompressedKVAttentionCore(AttentionCore):
    """Attention to at most `chosen_entries` compressed keys, each of `tokens_per_entry` tokens (DeepSeek-V4)."""

    tokens_per_entry: Number = 1
    chosen_entries: Number = None

    @property
    def selects_keys(self) -> bool:
        return self.chosen_entries is not None

    def visible_pairs(self, token_count: Number) -> Number:
        """Returns the (query, compressed key) pairs of the first n tokens: Σ min(⌊p / rate⌋, chosen), p = 1 … n."""
        if self.chosen_entries is not None:
            unlimited_tokens = minimum(token_count, self.tokens_per_entry * self.chosen_entries)
            return self._unlimited_pairs(unlimited_tokens) + (token_count - unlimited_tokens) * self.chosen_entries
        return self._unlimited_pairs(token_count)

    def _unlimited_pairs(self, token_count: Number) -> Number:
        entry_count = floor_div(token_count, self.tokens_per_entry)
        return self.tokens_per_entry * exact_div(entry_count * (entry_count - 1), 2) + entry_count * (
            token_count - self.tokens_per_entry * entry_count + 1
        )

    def pairs(self, run_config: RunConfig) -> Number:
        past_tokens, new_tokens = run_config.past_rows(self.rows), run_config.new_rows(self.rows)
        if run_config.pairs != "full":
            return self.visible_pairs(past_tokens + new_tokens) - self.visible_pairs(past_tokens)
        entry_count = floor_div(past_tokens + new_tokens, self.tokens_per_entry)
        return new_tokens * (
            minimum(entry_count, self.chosen_entries)
            if self.chosen_entries is not None and run_config.phase == "decode"
            else entry_count
        )


@frozen(slots=True)
class DistanceScores(Op):
    """The product, per head, of each query with the projections of all distances (XLNet, conformers).

    rows: the tokens.
    distances: the distances, of one sequence.
    """

    effects = FLOP_EFFECTS

    heads: Number
    head_dim: Number
    rows: Rows
    distances: Rows

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * run_config.new_rows(self.distances) * self.heads * self.head_dim


@frozen(slots=True)
class SharedTableScores(DistanceScores):
    """The product, per head, of each query with every row of a table shared by all sequences (Funnel)."""


@frozen(slots=True)
class PairScores(Op):
    """The product, per head, of each query with a key per token pair, shared by all heads."""

    effects = FLOP_EFFECTS

    heads: Number
    head_dim: Number
    rows: Rows

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * run_config.available_rows(self.rows) * self.heads * self.head_dim


@frozen(slots=True)
class CompressedKVCache(Op):
    """A cache with one compressed key-value vector per `tokens_per_entry` tokens (DeepSeek-V4).

    pending_token_width: elements cached for each token that is not compressed yet.
    """

    effects = CACHE_EFFECTS

    width: Number
    tokens_per_entry: Number
    pending_token_width: Number
    cache_kind: str = COMPRESSED_CACHE_KIND
    rows: Rows = TOKENS

    def cache_bits(self, run_config: RunConfig, kv_bits: Number) -> Number:
        token_count = run_config.available_rows(self.rows)
        entry_count = floor_div(token_count, self.tokens_per_entry)
        return (
            run_config.batch
            * (
                entry_count * self.width
                + (token_count - entry_count * self.tokens_per_entry) * self.pending_token_width
            )
            * kv_bits
        )


@frozen(slots=True)
class PendingTokenCache(Op):
    """A cache of the last `tokens_per_entry` tokens until they are compressed: elements and weights per token.

    It is empty before the first full window (DeepSeek-V4).
    """

    effects = CACHE_EFFECTS

    width: Number
    tokens_per_entry: Number
    cache_kind: str = COMPRESSED_CACHE_KIND
    rows: Rows = TOKENS

    def cache_bits(self, run_config: RunConfig, kv_bits: Number) -> Number:
        window_count = minimum(floor_div(run_config.available_rows(self.rows), self.tokens_per_entry), 1)
        return run_config.batch * window_count * 2 * self.tokens_per_entry * self.width * kv_bits

"""Attention to selected keys, to blocks or to compressed entries, and the caches of such attention."""

from __future__ import annotations

from dataclasses import replace

from ..algebra import Number, add, ceil_div, exact_div, floor_div, minimum, triangle
from ..frozen import frozen
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .attention import AttentionCore
from .base import CACHE, FLOPS, Op

COMPRESSED = "compressed_attention"
"""The kind that `llmcalc kv` lists the caches of layers with compressed entries under."""


@frozen(slots=True)
class MaskedCore(AttentionCore):
    """Attention whose mask keeps at most `keep` keys per token; the scores of all keys are computed (Doge)."""

    keep: Number = 1

    def pairs(self, run: RunConfig) -> Number:
        if run.pairs == "full":
            return AttentionCore.pairs(self, run)
        key_limit = self.keep if self.window is None else minimum(self.keep, self.window)
        return AttentionCore.pairs(replace(self, window=key_limit), run)


@frozen(slots=True)
class BlockCore(AttentionCore):
    """Attention to `blocks` blocks of `block` tokens, the last of which ends at the token itself (MiniMax-M3).

    A full pass computes all blocks and masks the others.
    """

    block: Number = 1
    blocks: Number = 1

    @property
    def chooses(self) -> bool:
        return True

    def _visible_pairs(self, n: Number) -> Number:
        """Returns the number of (query, key) pairs of the first n tokens.

        These are all pairs while the tokens fill at most `blocks` blocks; then `blocks` − 1 full blocks and the token's
        own block up to the token.
        """
        unlimited = minimum(n, self.block * self.blocks)
        limited_tokens = n - unlimited
        whole_blocks = floor_div(limited_tokens, self.block)
        own_block_pairs = whole_blocks * triangle(self.block) + triangle(limited_tokens - whole_blocks * self.block)
        return triangle(unlimited) + limited_tokens * (self.blocks - 1) * self.block + own_block_pairs

    def pairs(self, run: RunConfig) -> Number:
        past, new = run.past(self.rows), run.new(self.rows)
        if run.pairs == "full" and run.phase != "decode":
            return new * (new + past)
        return self._visible_pairs(past + new) - self._visible_pairs(past)


@frozen(slots=True)
class PooledCore(AttentionCore):
    """Attention to `selected` tokens in complete pools of `pool` tokens, and to those after the last complete pool.

    A full pass masks the other tokens, decoding reads only these (GLM-5.3).
    """

    pool: Number = 1

    def _visible_pairs(self, n: Number) -> Number:
        """Returns Σ (min(⌊p / pool⌋ · pool, selected) + p mod pool) over the first n tokens, p = 1 … n."""
        chosen = EntryScores(1, 1, 1, rate=self.pool, chosen=exact_div(self.selected, self.pool))
        pools = floor_div(n, self.pool)
        rest = pools * triangle(self.pool - 1) + triangle(n - pools * self.pool)
        return self.pool * chosen.visible_pairs(n) + rest

    def pairs(self, run: RunConfig) -> Number:
        past, new = run.past(self.rows), run.new(self.rows)
        if run.pairs == "full" and run.phase != "decode":
            return new * (new + past)
        return self._visible_pairs(past + new) - self._visible_pairs(past)


@frozen(slots=True)
class LocalCore(AttentionCore):
    """Attention of each block of queries to three blocks of keys and to every sum of `global_block` tokens (LongT5).

    A block has radius + 1 tokens, padding included. The mask allows keys at most `radius` away, and all sums.
    """

    radius: Number = 1
    global_block: Number = None

    def pairs(self, run: RunConfig) -> Number:
        new = run.new(self.rows)
        sums = 0 if self.global_block is None else floor_div(new, self.global_block)
        if run.pairs == "full":
            block = self.radius + 1
            return ceil_div(new, block) * block * add(3 * block, sums)
        local_pairs = AttentionCore.pairs(replace(self, window=2 * self.radius + 1), run)
        return add(local_pairs, new * sums)


@frozen(slots=True)
class EntryScores(AttentionCore):
    """Attention of each token to entries of `rate` earlier tokens each, at most `chosen` entries (DeepSeek-V4)."""

    rate: Number = 1
    chosen: Number = None

    @property
    def chooses(self) -> bool:
        return self.chosen is not None

    def visible_pairs(self, n: Number) -> Number:
        """Returns the (query, entry) pairs of the first n tokens: their number Σ min(⌊p / rate⌋, chosen), p = 1 … n."""
        if self.chosen is not None:
            m = minimum(n, self.rate * self.chosen)
            return self._unlimited_pairs(m) + (n - m) * self.chosen
        return self._unlimited_pairs(n)

    def _unlimited_pairs(self, n: Number) -> Number:
        q = floor_div(n, self.rate)
        return self.rate * exact_div(q * (q - 1), 2) + q * (n - self.rate * q + 1)

    def pairs(self, run: RunConfig) -> Number:
        past, new = run.past(self.rows), run.new(self.rows)
        if run.pairs != "full":
            return self.visible_pairs(past + new) - self.visible_pairs(past)
        entries = floor_div(past + new, self.rate)
        return new * (minimum(entries, self.chosen) if self.chosen is not None and run.phase == "decode" else entries)


@frozen(slots=True)
class DistanceScores(Op):
    """The product, per head, of each token's query with the projection of every distance (XLNet, conformers).

    rows: the tokens.
    distances: the distances, of one sequence.
    """

    effects = FLOPS

    heads: Number
    head_dim: Number
    rows: Rows
    distances: Rows

    def forward_flops(self, run: RunConfig) -> Number:
        return 2 * run.rows(self.rows) * run.new(self.distances) * self.heads * self.head_dim


@frozen(slots=True)
class PairScores(Op):
    """The product, per head, of each token's query with a key for each pair of tokens, which all heads share."""

    effects = FLOPS

    heads: Number
    head_dim: Number
    rows: Rows

    def forward_flops(self, run: RunConfig) -> Number:
        return 2 * run.rows(self.rows) * run.available(self.rows) * self.heads * self.head_dim


@frozen(slots=True)
class EntryCache(Op):
    """A cache with one entry per `rate` tokens, and `rest` elements per token that no entry has yet (DeepSeek-V4)."""

    effects = CACHE

    width: Number
    rate: Number
    rest: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, run: RunConfig, kv_bits: Number) -> Number:
        tokens = run.available(self.rows)
        entries = floor_div(tokens, self.rate)
        return run.batch * (entries * self.width + (tokens - entries * self.rate) * self.rest) * kv_bits


@frozen(slots=True)
class LastWindow(Op):
    """The cached window of `rate` tokens that the next entry reads: `width` elements and as many weights per token.

    It is empty before the first full window (DeepSeek-V4).
    """

    effects = CACHE

    width: Number
    rate: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, run: RunConfig, kv_bits: Number) -> Number:
        windows = minimum(floor_div(run.available(self.rows), self.rate), 1)
        return run.batch * windows * 2 * self.rate * self.width * kv_bits

"""Attention of fewer architectures: to selected keys, to blocks, to compressed entries, and their caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..algebra import Number, add, ceil_div, exact_div, floor_div, minimum, triangle
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .attention import AttentionCore
from .base import CACHE, FLOPS, Op

COMPRESSED = "compressed_attention"
"""The kind that `llmcalc kv` lists the caches of layers with compressed entries under."""


@dataclass(frozen=True, slots=True)
class MaskedCore(AttentionCore):
    """Attention whose mask keeps at most `keep` keys per token; the scores of all keys are computed (Doge)."""

    keep: Number = 1

    def pairs(self, s: RunConfig) -> Number:
        if s.pairs == "full":
            return AttentionCore.pairs(self, s)
        most = self.keep if self.window is None else minimum(self.keep, self.window)
        return AttentionCore.pairs(replace(self, window=most), s)


@dataclass(frozen=True, slots=True)
class BlockCore(AttentionCore):
    """Attention to `blocks` blocks of `block` tokens, the last of which ends at the token itself (MiniMax-M3).

    A full pass computes all blocks and masks the others.
    """

    block: Number = 1
    blocks: Number = 1

    @property
    def chooses(self) -> bool:
        return True

    def _seen(self, n: Number) -> Number:
        """Pairs of the first n tokens: all pairs while they fill at most `blocks` blocks; then `blocks` − 1 blocks, and
        the token's own block up to itself.
        """
        first = minimum(n, self.block * self.blocks)
        rest = n - first
        whole = floor_div(rest, self.block)
        own = whole * triangle(self.block) + triangle(rest - whole * self.block)
        return triangle(first) + rest * (self.blocks - 1) * self.block + own

    def pairs(self, s: RunConfig) -> Number:
        past, new = s.past(self.rows), s.new(self.rows)
        if s.pairs == "full" and s.phase != "decode":
            return new * (new + past)
        return self._seen(past + new) - self._seen(past)


@dataclass(frozen=True, slots=True)
class LocalCore(AttentionCore):
    """Each block of radius + 1 queries against three blocks of keys, padding included, and against every sum of
    `global_block` tokens (LongT5).

    The mask allows keys at most `radius` away, and all sums.
    """

    radius: Number = 1
    global_block: Number = None

    def pairs(self, s: RunConfig) -> Number:
        new = s.new(self.rows)
        sums = 0 if self.global_block is None else floor_div(new, self.global_block)
        if s.pairs == "full":
            block = self.radius + 1
            return ceil_div(new, block) * block * add(3 * block, sums)
        near = AttentionCore.pairs(replace(self, window=2 * self.radius + 1), s)
        return add(near, new * sums)


@dataclass(frozen=True, slots=True)
class EntryScores(AttentionCore):
    """Each token against every entry of `rate` whole tokens before it, at most `chosen` of them (DeepSeek-V4)."""

    rate: Number = 1
    chosen: Number = None

    @property
    def chooses(self) -> bool:
        return self.chosen is not None

    def _seen(self, n: Number) -> Number:
        """Σ min(⌊p / rate⌋, chosen) over p = 1 … n."""
        if self.chosen is not None:
            m = minimum(n, self.rate * self.chosen)
            return self._sum(m) + (n - m) * self.chosen
        return self._sum(n)

    def _sum(self, n: Number) -> Number:
        q = floor_div(n, self.rate)
        return self.rate * exact_div(q * (q - 1), 2) + q * (n - self.rate * q + 1)

    def pairs(self, s: RunConfig) -> Number:
        past, new = s.past(self.rows), s.new(self.rows)
        if s.pairs != "full":
            return self._seen(past + new) - self._seen(past)
        entries = floor_div(past + new, self.rate)
        return new * (minimum(entries, self.chosen) if self.chosen is not None and s.phase == "decode" else entries)


@dataclass(frozen=True, slots=True)
class DistanceScores(Op):
    """The product, per head, of each token's query with the projection of every distance; two distances per token
    (XLNet).
    """

    effects = FLOPS

    heads: Number
    head_dim: Number
    rows: Rows = TOKENS

    def forward_flops(self, s: RunConfig) -> Number:
        return 2 * s.rows(self.rows) * 2 * s.new(self.rows) * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class EntryCache(Op):
    """One entry per `rate` tokens, and `rest` elements for each token that does not fill an entry yet (DeepSeek-V4)."""

    effects = CACHE

    width: Number
    rate: Number
    rest: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, s: RunConfig, kv_bits: Number) -> Number:
        tokens = s.held(self.rows)
        entries = floor_div(tokens, self.rate)
        return s.batch * (entries * self.width + (tokens - entries * self.rate) * self.rest) * kv_bits


@dataclass(frozen=True, slots=True)
class LastWindow(Op):
    """The last window of `rate` tokens, which the next entry reads: `width` elements and as many weights per token.
    Empty before the first whole window (DeepSeek-V4).
    """

    effects = CACHE

    width: Number
    rate: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, s: RunConfig, kv_bits: Number) -> Number:
        windows = minimum(floor_div(s.held(self.rows), self.rate), 1)
        return s.batch * windows * 2 * self.rate * self.width * kv_bits

"""Scores and mixing of softmax attention, and the keys and values that it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..algebra import Number, add, ceil_div, exact_div, floor_div, is_zero, minimum, triangle
from ..run.rows import TOKENS, Rows
from ..run.sight import Sight
from .base import CACHE, FLOPS, Op


@dataclass(frozen=True, slots=True)
class AttentionCore(Op):
    """softmax(Q·Kᵀ)·V.  Q: [heads, rows, qk_dim], K: [heads, keys, qk_dim], V: [heads, keys, v_dim].

    causal: a token sees only the tokens before it and itself.
    window: a token sees only the last `window` tokens, itself included; where not causal, `window` in all, itself in
        their middle (of an even number one more stands after it).
    chunk: a token sees only the tokens of its own chunk.
    selected: a token sees only so many tokens, chosen by something else (DeepSeek-V3.2); a full pass masks the others,
        decoding gathers the chosen ones.
    rows: of the queries. keys: the rows of the keys, where they are not those of the queries (cross-attention).
    """

    effects = FLOPS

    heads: Number
    qk_dim: Number
    v_dim: Number
    causal: bool = True
    window: Number = None
    chunk: Number = None
    selected: Number = None
    rows: Rows = TOKENS
    keys: Rows | None = None

    def pairs(self, s: Sight) -> Number:
        """(query, key) pairs of one head and one sequence, under the run's convention."""
        new, past = s.new(self.rows), s.past(self.rows)
        if self.keys is not None:
            return new * s.held(self.keys)
        if s.pairs == "full":
            return new * (new + self._kept(past, s))
        if not self.causal:
            return _both_ways(new, self.window)
        window = self.window if self.selected is None else self.selected  # the last ones or chosen ones: as many
        return _up_to(past + new, window, self.chunk) - _up_to(past, window, self.chunk)

    def _kept(self, past: Number, s: Sight) -> Number:
        """Keys of earlier passes that are still held: a window of W keeps the W − 1 that the next token can see."""
        limit = self.window if self.window is not None else self.chunk
        if self.selected is not None and s.phase == "decode":
            limit = self.selected
        return past if limit is None or is_zero(past) else minimum(past, limit - 1)

    def forward_flops(self, s: Sight) -> Number:
        return 2 * s.batch * self.heads * self.pairs(s) * (self.qk_dim + self.v_dim)

    def backward_flops(self, s: Sight) -> Number:
        """Eager: dQ, dK, dP and dV, twice the forward. Flash computes the scores once more (Dao 2023, §3.1)."""
        scores = 3 if s.attention_backward == "flash" else 2
        return 2 * s.batch * self.heads * self.pairs(s) * (scores * self.qk_dim + 2 * self.v_dim)


@dataclass(frozen=True, slots=True)
class MaskedCore(AttentionCore):
    """Attention whose mask allows `keep` of the keys that a token may see; all of them are computed (Doge)."""

    keep: Number = 1

    def pairs(self, s: Sight) -> Number:
        if s.pairs == "full":
            return AttentionCore.pairs(self, s)
        most = self.keep if self.window is None else minimum(self.keep, self.window)
        return AttentionCore.pairs(replace(self, window=most), s)


@dataclass(frozen=True, slots=True)
class BlockCore(AttentionCore):
    """Attention to `blocks` blocks of `block` tokens, the last of them up to the token itself (MiniMax-M3).

    A full pass masks the others.
    """

    block: Number = 1
    blocks: Number = 1

    def _seen(self, n: Number) -> Number:
        """Pairs of the first n tokens: all, as long as they fill no more than `blocks` blocks; then all but one block,
        and the token's own.
        """
        first = minimum(n, self.block * self.blocks)
        rest = n - first
        whole = floor_div(rest, self.block)
        own = whole * triangle(self.block) + triangle(rest - whole * self.block)
        return triangle(first) + rest * (self.blocks - 1) * self.block + own

    def pairs(self, s: Sight) -> Number:
        past, new = s.past(self.rows), s.new(self.rows)
        if s.pairs == "full" and s.phase != "decode":
            return new * (new + past)
        return self._seen(past + new) - self._seen(past)


@dataclass(frozen=True, slots=True)
class LocalCore(AttentionCore):
    """Each block of radius + 1 queries by three blocks of keys, those beyond the ends included, and by every sum of
    `global_block` tokens (LongT5).

    The mask allows keys at most `radius` away, and all sums.
    """

    radius: Number = 1
    global_block: Number = None

    def pairs(self, s: Sight) -> Number:
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

    def _seen(self, n: Number) -> Number:
        """Σ ⌊p / rate⌋ over p = 1 … n, no term above `chosen`."""
        if self.chosen is not None:
            m = minimum(n, self.rate * self.chosen)
            return self._sum(m) + (n - m) * self.chosen
        return self._sum(n)

    def _sum(self, n: Number) -> Number:
        q = floor_div(n, self.rate)
        return self.rate * exact_div(q * (q - 1), 2) + q * (n - self.rate * q + 1)

    def pairs(self, s: Sight) -> Number:
        past, new = s.past(self.rows), s.new(self.rows)
        if s.pairs != "full":
            return self._seen(past + new) - self._seen(past)
        entries = floor_div(past + new, self.rate)
        return new * (minimum(entries, self.chosen) if self.chosen is not None and s.phase == "decode" else entries)


@dataclass(frozen=True, slots=True)
class DistanceScores(Op):
    """Every head's products of each token's query with what is made of every distance, two for each token (XLNet)."""

    effects = FLOPS

    heads: Number
    head_dim: Number
    rows: Rows = TOKENS

    def forward_flops(self, s: Sight) -> Number:
        return 2 * s.rows(self.rows) * 2 * s.new(self.rows) * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class KVCache(Op):
    """What attention keeps of each token: `width` elements, of the last `limit` tokens or of all.

    kind: what `llmcalc kv` lists it under. rows: whose keys and values they are; the encoder's are computed once.
    """

    effects = CACHE

    width: Number
    kind: str
    limit: Number = None
    rows: Rows = TOKENS

    def cache_bits(self, s: Sight, kv_bits: Number) -> Number:
        tokens = s.held(self.rows)
        if self.limit is not None:
            tokens = minimum(tokens, self.limit)
        return s.batch * tokens * self.width * kv_bits


COMPRESSED = "compressed_attention"
"""What `llmcalc kv` lists the caches of a layer with entries of several tokens under."""


@dataclass(frozen=True, slots=True)
class EntryCache(Op):
    """One entry for each `rate` tokens, and of the tokens that are none yet what it will be made of: `rest` elements
    each (DeepSeek-V4).
    """

    effects = CACHE

    width: Number
    rate: Number
    rest: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, s: Sight, kv_bits: Number) -> Number:
        tokens = s.held(self.rows)
        entries = floor_div(tokens, self.rate)
        return s.batch * (entries * self.width + (tokens - entries * self.rate) * self.rest) * kv_bits


@dataclass(frozen=True, slots=True)
class LastWindow(Op):
    """What the next entry reads of the last window of `rate` tokens: `width` elements and as many weights per token.
    Before the first whole window there is nothing (DeepSeek-V4).
    """

    effects = CACHE

    width: Number
    rate: Number
    kind: str = COMPRESSED
    rows: Rows = TOKENS

    def cache_bits(self, s: Sight, kv_bits: Number) -> Number:
        windows = minimum(floor_div(s.held(self.rows), self.rate), 1)
        return s.batch * windows * 2 * self.rate * self.width * kv_bits


def _up_to(n: Number, window: Number, chunk: Number) -> Number:
    """Visible pairs of the first n tokens: Σ min(p + 1, window), or Σ (p mod chunk) + 1."""
    if window is not None:
        m = minimum(n, window)
        return triangle(m) + (n - m) * window
    if chunk is not None:
        whole = floor_div(n, chunk)
        return whole * triangle(chunk) + triangle(n - whole * chunk)
    return triangle(n)


def _both_ways(n: Number, window: Number) -> Number:
    """Visible pairs of n tokens in a window that is centred on each token."""
    if window is None:
        return n * n
    before, after = floor_div(window - 1, 2), floor_div(window, 2)
    return _up_to(n, before + 1, None) + _up_to(n, after + 1, None) - n

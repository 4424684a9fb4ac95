"""Scores and mixing of softmax attention, and the keys and values that it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, floor_div, is_zero, minimum, triangle
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

    @property
    def chooses(self) -> bool:
        """Whether something else chooses the keys: a full pass masks the others, decoding does not read them."""
        return self.selected is not None

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
class KVCache(Op):
    """What attention keeps of each token: `width` elements, of the last `limit` tokens or of all.

    kind: what `llmcalc kv` lists it under. rows: whose keys and values they are; the encoder's are computed once.
    parts: (heads, size) of the keys, of the values, and of what else is kept; one vector of `width` elements if empty.
    """

    effects = CACHE

    width: Number
    kind: str
    limit: Number = None
    rows: Rows = TOKENS
    parts: tuple[tuple[Number, Number], ...] = ()

    @property
    def vectors(self) -> tuple[tuple[Number, Number], ...]:
        """(heads, size) of each vector that is kept of a token."""
        return self.parts or ((1, self.width),)

    def cache_bits(self, s: Sight, kv_bits: Number) -> Number:
        tokens = s.held(self.rows)
        if self.limit is not None:
            tokens = minimum(tokens, self.limit)
        return s.batch * tokens * self.width * kv_bits


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

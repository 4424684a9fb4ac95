"""Scores and mixing of softmax attention, and the keys and values that it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, floor_div, is_zero, minimum, triangle
from ..workload import Workload
from .base import Op


@dataclass(frozen=True, slots=True)
class AttentionCore(Op):
    """softmax(Q·Kᵀ)·V.  Q: [heads, seq, qk_dim], K: [heads, keys, qk_dim], V: [heads, keys, v_dim].

    causal: a token sees those before it. window: only the last `window` of them, itself included; where not causal,
    `window` in all, itself in their middle (of an even number one more stands after it). chunk: only those of its own
    chunk. cross: the keys are the encoder's.
    absorbed: (qk_dim, v_dim) against a latent cache (DeepSeek-V2, §2.1.2). selected: a token sees only so many of them,
    chosen by something else (DeepSeek-V3.2); a full pass masks the others, decoding gathers the chosen.
    """

    heads: Number
    qk_dim: Number
    v_dim: Number
    causal: bool = True
    window: Number = None
    chunk: Number = None
    cross: bool = False
    absorbed: tuple[Number, Number] | None = None
    selected: Number = None

    def pairs(self, w: Workload) -> Number:
        """(query, key) pairs of one head and one sequence, under the workload's convention."""
        if self.cross:
            return w.seq * w.source
        if w.pairs == "full":
            return w.seq * (w.seq + self._past(w))
        if not self.causal:
            return _both_ways(w.seq, self.window)
        window = self.window if self.selected is None else self.selected  # the last ones or chosen ones: as many
        return _up_to(w.context + w.seq, window, self.chunk) - _up_to(w.context, window, self.chunk)

    def _past(self, w: Workload) -> Number:
        """Keys of earlier passes that are still held: a window of W keeps the W − 1 that the next token can see."""
        limit = self.window if self.window is not None else self.chunk
        if self.selected is not None and w.phase == "decode":
            limit = self.selected
        return w.context if limit is None or is_zero(w.context) else minimum(w.context, limit - 1)

    def _dims(self, w: Workload) -> tuple[Number, Number]:
        """Sizes of one key and one value; with earlier tokens in a latent cache, those of the latent."""
        from_cache = w.phase == "decode" or not is_zero(w.context)
        return self.absorbed if self.absorbed is not None and from_cache else (self.qk_dim, self.v_dim)

    def forward_flops(self, w: Workload) -> Number:
        qk, v = self._dims(w)
        return 2 * w.batch * self.heads * self.pairs(w) * (qk + v)

    def backward_flops(self, w: Workload) -> Number:
        """Eager: dQ, dK, dP and dV, twice the forward. Flash computes the scores once more (Dao 2023, §3.1)."""
        qk, v = self._dims(w)
        scores = 3 if w.attention_backward == "flash" else 2
        return 2 * w.batch * self.heads * self.pairs(w) * (scores * qk + 2 * v)


@dataclass(frozen=True, slots=True)
class KVCache(Op):
    """What attention keeps of each token: `width` elements, of the last `limit` tokens or of all.

    kind: what `llmcalc kv` lists it under. cross: one entry a source token, filled once.
    """

    width: Number
    kind: str
    limit: Number = None
    cross: bool = False

    def cache_bits(self, w: Workload, kv_bits: Number) -> Number:
        tokens = w.source if self.cross else w.context + w.seq
        if self.limit is not None:
            tokens = minimum(tokens, self.limit)
        return w.batch * tokens * self.width * kv_bits


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
    """Visible pairs of n tokens in the middle of a window each:
    itself, and on either side what half of the rest reaches.
    """
    if window is None:
        return n * n
    before, after = floor_div(window - 1, 2), floor_div(window, 2)
    return _up_to(n, before + 1, None) + _up_to(n, after + 1, None) - n

"""Scores and weighted sums of softmax attention, and its KV cache."""

from __future__ import annotations

from ..algebra import Number, ceil_div, floor_div, is_zero, minimum, triangular_number
from ..frozen import frozen
from ..workload.derived_rows import PatchVectors, RowsInChunks
from ..workload.inputs import EncoderPass
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .base import CACHE_EFFECTS, FLOP_EFFECTS, Op


@frozen(slots=True)
class AttentionCore(Op):
    """softmax(Q·Kᵀ)·V.  Q: [heads, rows, qk_dim], K: [heads, keys, qk_dim], V: [heads, keys, v_dim].

    causal: whether a token attends only to itself and earlier tokens, true by default.
    window: the number of last tokens that a token attends to, itself included; None for all. If not causal, the window
        is centred on the token (an even window has one more token after it).
    chunk: the size of the chunks that attention is limited to; None for none.
    selected_keys: the number of tokens that another part selects for each token (DeepSeek-V3.2); None for none. A full
        pass masks the other tokens, decoding reads only the selected ones.
    square_side: the side of the squares of patches that attention is limited to, in a vision encoder; None for none.
    rows: the rows of the queries.
    keys: the rows of the keys; None if they are those of the queries (otherwise cross-attention).
    """

    effects = FLOP_EFFECTS

    heads: Number
    qk_dim: Number
    v_dim: Number
    causal: bool = True
    window: Number = None
    chunk: Number = None
    selected_keys: Number = None
    square_side: Number = None
    rows: Rows = TOKENS
    keys: Rows | None = None

    @property
    def selects_keys(self) -> bool:
        """Whether an indexer selects the keys: full passes mask unselected keys, and decoding skips them."""
        return self.selected_keys is not None

    def pairs(self, run_config: RunConfig) -> Number:
        """Returns the number of (query, key) pairs per head and sequence, all or only causal (`run_config.pairs`)."""
        new_tokens, past_tokens = run_config.new_rows(self.rows), run_config.past_rows(self.rows)
        if self.keys is not None:
            key_rows = self.rows if isinstance(self.rows, PatchVectors) else self.keys
            if run_config.pairs == "causal" and isinstance(key_rows, PatchVectors):
                return key_rows.pairs_with_bytes(run_config.workload)
            return new_tokens * run_config.available_rows(self.keys)
        if self.square_side is not None:
            return _pairs_in_squares(run_config, self.square_side, self.rows)
        if run_config.pairs == "full":
            return new_tokens * (new_tokens + self._cached_keys(past_tokens, run_config))
        if not self.causal:
            pair_count = _centred_window_pairs(new_tokens, self.window)
            return (
                pair_count
                if is_zero(past_tokens)
                else pair_count + new_tokens * self._cached_keys(past_tokens, run_config)
            )
        window = self.window if self.selected_keys is None else self.selected_keys  # as many keys, selected or last
        return _causal_pairs(past_tokens + new_tokens, window, self.chunk) - _causal_pairs(
            past_tokens, window, self.chunk
        )

    def _cached_keys(self, past_tokens: Number, run_config: RunConfig) -> Number:
        """Returns the number of cached keys that new tokens attend to; at most W − 1 with a window W."""
        token_limit = self.window if self.window is not None else self.chunk
        if self.selected_keys is not None and run_config.phase == "decode":
            token_limit = self.selected_keys
        return past_tokens if token_limit is None or is_zero(past_tokens) else minimum(past_tokens, token_limit - 1)

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.batch * self.heads * self.pairs(run_config) * (self.qk_dim + self.v_dim)

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns the FLOPs of dQ, dK, dP and dV: twice the forward FLOPs.

        Flash attention recomputes the scores once (Dao 2023, §3.1).
        """
        return self._backward_flops(run_config, 2 * self.qk_dim + 2 * self.v_dim)

    def _backward_flops(self, run_config: RunConfig, product_widths: Number) -> Number:
        """Returns the FLOPs of products with these widths for each pair, and of the scores that flash recomputes."""
        if run_config.attention in ("flash", "sdpa"):
            product_widths += self.qk_dim
        return 2 * run_config.batch * self.heads * self.pairs(run_config) * product_widths


@frozen(slots=True)
class ReceivedKeysAttentionCore(AttentionCore):
    """Attention to keys and values that another model has computed, which get no gradients."""

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns the FLOPs of the gradients of queries and weights, without keys and values.

        Flash recomputes the scores once (Dao 2023, §3.1).
        """
        return self._backward_flops(run_config, self.qk_dim + self.v_dim)


@frozen(slots=True)
class OverlappingChunkAttentionCore(AttentionCore):
    """A centred attention window in overlapping chunks, as in Longformer's classes (Beltagy et al. 2020).

    With w tokens on each side, scores are products within chunks of 2·w tokens, one every w tokens, and each chunk of w
    tokens sums the values of 3·w. The number of tokens is padded to a multiple of 2·w.
    """

    def forward_flops(self, run_config: RunConfig) -> Number:
        new_tokens, square_side = run_config.new_rows(self.rows), floor_div(self.window, 2)
        if is_zero(new_tokens):
            return 0
        chunk_count = 2 * ceil_div(new_tokens, 2 * square_side)
        score_products, value_products = (
            (chunk_count - 1) * (2 * square_side) ** 2,
            chunk_count * square_side * 3 * square_side,
        )
        return 2 * run_config.batch * self.heads * (score_products * self.qk_dim + value_products * self.v_dim)

    def backward_flops(self, run_config: RunConfig) -> Number:
        return 2 * self.forward_flops(run_config)


@frozen(slots=True)
class ConformerAttentionCore(AttentionCore):
    """Attention of each chunk of queries to the chunk itself and to neighbouring positions, as in conformers.

    chunk: the number of queries of a chunk; the last one is padded.
    context_keys: the number of further keys of a chunk. Without any, fewer positions than a chunk are not padded.
    distance_count: the number of distances that each query is scored against as well (Gemma), 0 by default.
    """

    context_keys: Number = 0
    distance_count: Number = 0

    def _padded_rows(self, run_config: RunConfig) -> Number:
        new_tokens = run_config.new_rows(self.rows)
        return new_tokens if is_zero(self.context_keys) else ceil_div(new_tokens, self.chunk) * self.chunk

    def pairs(self, run_config: RunConfig) -> Number:
        padded_rows = self._padded_rows(run_config)
        return padded_rows * (minimum(padded_rows, self.chunk) + self.context_keys)

    def forward_flops(self, run_config: RunConfig) -> Number:
        distance_products = self._padded_rows(run_config) * self.distance_count * self.qk_dim
        pair_products = self.pairs(run_config) * (self.qk_dim + self.v_dim)
        return 2 * run_config.batch * self.heads * (pair_products + distance_products)

    def backward_flops(self, run_config: RunConfig) -> Number:
        return 2 * self.forward_flops(run_config)


@frozen(slots=True)
class ChannelAttentionCore(AttentionCore):
    """Attention of each channel of a head to the head's channels: products over all rows (Ding et al. 2022, §3.3)."""

    def pairs(self, run_config: RunConfig) -> Number:
        """Returns the number of (channel, row) pairs per head and sequence, each with a product per channel."""
        return run_config.new_rows(self.rows) * self.qk_dim

    def backward_flops(self, run_config: RunConfig) -> Number:
        return 2 * self.forward_flops(run_config)


@frozen(slots=True)
class KVCache(Op):
    """The KV cache of attention: `width` elements per token, for the last `token_limit` tokens or for all tokens.

    cache_kind: the kind that `llmcalc kv` lists it under.
    rows: the rows that are cached; the encoder's are computed once.
    vector_shapes: (heads, size) of the keys, of the values and of anything else that is cached; if empty, one vector of
        `width`.
    """

    effects = CACHE_EFFECTS

    width: Number
    cache_kind: str
    token_limit: Number = None
    rows: Rows = TOKENS
    vector_shapes: tuple[tuple[Number, Number], ...] = ()

    @property
    def vectors(self) -> tuple[tuple[Number, Number], ...]:
        """Returns (heads, size) of each cached vector per token."""
        return self.vector_shapes or ((1, self.width),)

    def cache_bits(self, run_config: RunConfig, kv_bits: Number) -> Number:
        token_count = run_config.available_rows(self.rows)
        if self.token_limit is not None:
            token_count = minimum(token_count, self.token_limit)
        return run_config.batch * token_count * self.width * kv_bits


def _causal_pairs(depth: Number, window: Number, chunk_size: Number) -> Number:
    """Returns the number of causal (query, key) pairs of n tokens: Σ min(p + 1, window), or Σ (p mod chunk) + 1."""
    if window is not None:
        window_depth = minimum(depth, window)
        return triangular_number(window_depth) + (depth - window_depth) * window
    if chunk_size is not None:
        chunk_count = floor_div(depth, chunk_size)
        return chunk_count * triangular_number(chunk_size) + triangular_number(depth - chunk_count * chunk_size)
    return triangular_number(depth)


def _pairs_in_squares(run_config: RunConfig, square_side: Number, rows: Rows) -> Number:
    """Returns the number of (query, key) pairs in the same square of patches, or in the same stretch of audio.

    Squares at the edges of an image are smaller, and so is the last stretch.
    """
    image_workload = run_config.workload
    if not isinstance(image_workload, EncoderPass):
        raise TypeError("squares of patches: an image is read by an encoder's pass")
    pair_count: Number = 1
    for grid_side in (
        (run_config.new_rows(rows),)
        if isinstance(rows, RowsInChunks)
        else (image_workload.rows, image_workload.columns)
    ):
        square_count = floor_div(grid_side, square_side)
        remaining_rows = grid_side - square_count * square_side
        pair_count = pair_count * (square_count * square_side * square_side + remaining_rows * remaining_rows)
    return pair_count


def _centred_window_pairs(token_count: Number, window: Number) -> Number:
    """Returns the number of (query, key) pairs of n tokens, each with a window centred on it; n² without a window."""
    if window is None:
        return token_count * token_count
    keys_before, keys_after = floor_div(window - 1, 2), floor_div(window, 2)
    return (
        _causal_pairs(token_count, keys_before + 1, None)
        + _causal_pairs(token_count, keys_after + 1, None)
        - token_count
    )

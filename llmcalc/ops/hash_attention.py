"""Attention in chunks of tokens, which may be sorted by a hash of their keys (Reformer)."""

from __future__ import annotations

from ..algebra import Number, floor_div, maximum, minimum, triangular_number
from ..frozen import frozen
from ..workload.derived_rows import one_if_above
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .attention import AttentionCore
from .base import FLOP_EFFECTS, Op


@frozen(slots=True)
class NeighbourChunkAttentionCore(AttentionCore):
    """Attention of each chunk of queries to the keys of the chunk and of neighbouring chunks.

    A single chunk attends to all keys.

    The first chunk is the neighbour after the last one. A mask of sorted tokens depends on their values, so the causal
    pairs of their chunks are all pairs.

    chunk_tokens: the number of tokens in a chunk.
    chunks_before, chunks_after: the number of neighbouring chunks on each side.
    hash_count: the number of hashes that sort the tokens, each of which has such an attention; None for tokens in
        order.
    """

    chunk_tokens: Number = 1
    chunks_before: int = 0
    chunks_after: int = 0
    hash_count: Number = None

    def pairs(self, run_config: RunConfig) -> Number:
        row_count, is_masked = run_config.new_rows(self.rows), self.causal and run_config.pairs == "causal"
        has_chunks = one_if_above(row_count, self.chunk_tokens)
        if is_masked and self.hash_count is None:
            pairs_of_chunks = self._causal_pairs_of_chunks(row_count)
        else:
            hash_count = 1 if self.hash_count is None else self.hash_count
            pairs_of_chunks = row_count * hash_count * self.chunk_tokens * (self.chunks_before + 1 + self.chunks_after)
        return has_chunks * pairs_of_chunks + (1 - has_chunks) * (
            triangular_number(row_count) if is_masked else row_count * row_count
        )

    def _causal_pairs_of_chunks(self, token_count: Number) -> Number:
        """Returns the number of (query, key) pairs of unsorted tokens.

        A neighbour `chunk_shift` chunks further is an earlier one for the last `chunk_shift` chunks, which have the
        first chunks as their neighbours.
        """
        chunk_count, pair_count = maximum(floor_div(token_count, self.chunk_tokens), 1), 0
        for chunk_offset in range(-self.chunks_before, self.chunks_after + 1):
            chunk_shift = chunk_offset - chunk_count * floor_div(chunk_offset, chunk_count)
            pair_count += chunk_shift * self.chunk_tokens**2 + (
                1 - minimum(1, chunk_shift)
            ) * chunk_count * triangular_number(self.chunk_tokens)
        return pair_count


@frozen(slots=True)
class HashRotations(Op):
    """The product of the keys with random directions; the direction with the largest product is a key's bucket.

    A single chunk needs no buckets and no product.

    direction_count: the number of directions of one hash.
    """

    effects = FLOP_EFFECTS

    heads: Number
    size: Number
    hash_count: Number
    direction_count: Number
    block_size: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        products_per_row = self.heads * self.size * self.hash_count * self.direction_count
        return (
            2
            * run_config.rows(self.rows)
            * products_per_row
            * one_if_above(run_config.new_rows(self.rows), self.block_size)
        )

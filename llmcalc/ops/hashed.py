"""Attention in chunks of tokens, which may be sorted by a hash of their keys (Reformer)."""

from __future__ import annotations

from ..algebra import Number
from ..frozen import frozen
from ..workload.derived_rows import is_beyond
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .attention import AttentionCore
from .base import FLOPS, Op


@frozen(slots=True)
class ChunkCore(AttentionCore):
    """Attention of each chunk of queries to its own keys and those of neighbouring chunks; of one chunk, to all keys.

    block: the number of tokens in a chunk.
    neighbours: the number of neighbouring chunks.
    hashes: the number of orders of the tokens, each of which has such an attention.
    """

    block: Number = 1
    neighbours: Number = 0
    hashes: Number = 1

    def pairs(self, run_config: RunConfig) -> Number:
        rows = run_config.new_rows(self.rows)
        has_chunks, keys = is_beyond(rows, self.block), self.block * (1 + self.neighbours)
        return rows * (has_chunks * self.hashes * keys + (1 - has_chunks) * rows)


@frozen(slots=True)
class HashRotations(Op):
    """The product of the keys with random directions, whose largest result is a key's bucket; of one chunk, none.

    columns: the number of directions of one hash.
    """

    effects = FLOPS

    heads: Number
    size: Number
    hashes: Number
    columns: Number
    block: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        products = self.heads * self.size * self.hashes * self.columns
        return 2 * run_config.rows(self.rows) * products * is_beyond(run_config.new_rows(self.rows), self.block)

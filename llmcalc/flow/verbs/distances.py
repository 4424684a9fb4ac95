"""Methods that record relative positions: biases and scores by distance, and rows in blocks."""

from __future__ import annotations

from ...algebra import Number
from ...workload.rows import Rows
from ..axis import Axis, JoinedShapes
from ..recorder import Recorder
from ..value import Value
from .pairs import query_key_pair_value


class DistanceVerbs(Recorder):
    """Methods that record relative positions: biases and scores by distance, and rows in blocks."""

    def alibi(self, q: Value, k: Value) -> Value:
        """Records ALiBi's penalty for each head, query and key."""
        return self.step("alibi", "", (q, k), query_key_pair_value(q.rows, q.axes[0], is_constant=True))

    def distance_bias(self, table: Value, q: Value) -> Value:
        """Records T5's relative bias: a table row for the distance bucket of each query and key."""
        output_value = query_key_pair_value(q.rows, *table.axes)
        return self.step("distance_bias", "", (table, q), output_value, causal=self.causal)

    def sinusoids(self, x: Value, distances: Rows, *axes: Axis | JoinedShapes, is_stored: bool = False) -> Value:
        """Records the sines and cosines of distances, in the number format of x.

        is_stored: whether the pass stores them or only their angles.
        """
        return self.step("sinusoids", "", (x,), Value(distances, axes, is_constant=True), once=is_stored)

    def rows_of_distances(self, table: Value, position_rows: Rows) -> Value:
        """Records a read of the table rows for all distances that occur in a sequence."""
        return self.step("rows_of_distances", "", (table,), Value(position_rows, table.axes))

    def distances(
        self,
        q: Value,
        k: Value,
        *,
        is_clamped: bool,
        is_shifted: bool,
        is_stored: bool = False,
        is_binned: bool = False,
    ) -> Value:
        """Records the distance between each query and key, as an index into a table.

        is_clamped: whether larger distances share an index.
        is_shifted: whether distances may be negative, so that indices begin at the lowest.
        is_stored: whether a pass stores the distances. is_binned: whether far distances share bins.
        """
        step_options = {"clamped": is_clamped, "shifted": is_shifted, "stored": is_stored, "binned": is_binned}
        return self.step("distances", "", (q, k), query_key_pair_value(q.rows, is_constant=True), **step_options)

    def at_distance(self, scores: Value, distances: Value, *, is_by_key: bool = False) -> Value:
        """Records a gather that selects, for each query and key, the score at their distance.

        is_by_key: whether they are scores of every key by every distance; false by default.
        """
        output_value = query_key_pair_value(scores.rows, *scores.axes, is_batched=True)
        return self.step("at_distance", "", (scores, distances), output_value, by_key=is_by_key)

    def relative_shift(self, scores: Value, key_rows: Rows) -> Value:
        """Records Transformer-XL's relative shift, which moves the score of each distance to its query and key.

        scores: the scores of each query at every distance. key_rows: the rows of the keys, which may differ from the
        queries'.
        """
        output_value = query_key_pair_value(scores.rows, *scores.axes, is_batched=True)
        return self.step("relative_shift", "", (scores,), output_value, keys=key_rows)

    def in_blocks(self, x: Value, block_size: Number, block_rows: Rows, *, has_neighbours: bool = False) -> Value:
        """Records a split of rows (queries, keys or values) into blocks, of which the last is padded.

        block_rows: the rows that are put in blocks; further rows of x are seen by every block.
        has_neighbours: whether each block has its two neighbours beside it; false by default.
        """
        return self.step("in_blocks", "", (x,), Value(block_rows, x.axes), block=block_size, around=has_neighbours)

    def local_mask(self, query_rows: Rows, radius: Number, block_sums: Number, *tables: Value) -> None:
        """Records local attention's mask, for keys of three neighbouring blocks and sums of `block_sums` rows each.

        Equal layers share it. tables: those of T5's bias by distance, and by distance to the sums; none for no bias.
        """
        self.record("local_mask", "", tables, of=query_rows, radius=radius, block_sums=block_sums, causal=self.causal)

"""Methods that record caches of keys and values, compressed or not, and recurrent states."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...algebra import Number
from ...ops.base import Op
from ...workload.rows import Rows
from ..axis import Axis, JoinedShapes, Shape
from ..recorder import Recorder
from ..value import Value
from .pairs import query_key_pair_value


class CacheVerbs(Recorder):
    """Methods that record caches of keys and values, compressed or not, and recurrent states."""

    def windows(self, x: Value, window_axis: Axis, *, includes_past: bool = False) -> Value:
        """Records a grouping of the rows of x into full windows of `window_axis` rows.

        includes_past: whether the rows of earlier passes are grouped again, false by default.
        """
        from ...workload.derived_rows import BlockRows
        from ...workload.rows_with_past import RowsWithPast

        window_rows = RowsWithPast(source_rows=x.rows) if includes_past else x.rows
        return self.step(
            "windows",
            "",
            (x,),
            Value(BlockRows(source_rows=window_rows, block_rows=window_axis.size), (window_axis, *x.axes)),
        )

    def weighted_mean(self, window_rows: Value, gate: Value) -> Value:
        """Records the mean over each window's rows, weighted elementwise by a softmax of the gate."""
        return self.step("weighted_mean", "", (window_rows, gate), Value(window_rows.rows, window_rows.axes[1:]))

    def with_unpooled_rows(self, *row_values: Value) -> tuple[Value, ...]:
        """Records a concatenation of x with the rows of earlier passes that no full window contains yet."""
        output_values = tuple(row_value.view(*row_value.axes) for row_value in row_values)
        self.record("with_unpooled_rows", "", row_values, output_values)
        return output_values

    def keep_entries(self, op: Op, entries: Value, *pending_rows: Value) -> Value:
        """Records the cache of compressed keys and of pending rows, which are not compressed yet; returns all keys."""
        output_value = entries.view(*entries.axes)
        self.record("keep_entries", "cache", (entries, *pending_rows), (output_value,), op=op)
        return output_value

    def value_of_lower_layer(self, value_name: str, x: Value, lower_value: Value | None, *axes: Axis) -> Value:
        """Records a read of a value that a lower layer stored: compressed keys, index keys or a selection of keys.

        lower_value: that value; None where the layer is recorded alone.
        axes: the axes of entries and keys; none of a selection.
        """
        if lower_value is None:
            lower_value = (
                Value(x.rows, axes, is_constant=True)
                if axes
                else query_key_pair_value(x.rows, is_constant=True, is_batched=True)
            )
        return self.step(
            "value_of_lower_layer",
            "",
            (x,),
            Value(lower_value.rows, lower_value.axes, is_constant=lower_value.is_constant),
            slot=value_name,
        )

    def whole_entries(self, q: Value, entries: Value, rate: Number) -> Value:
        """Records the mask of compressed keys whose `rate` tokens all precede the query's token."""
        return self.step("whole_entries", "", (q, entries), query_key_pair_value(q.rows, is_constant=True), rate=rate)

    def candidates(self, keys: Value, mask: Value, block_size: Number) -> tuple[Value, Value]:
        """Records a choice of the keys in blocks that a lower layer selected; returns these keys and their mask."""
        output_values = keys.view(*keys.axes), query_key_pair_value(mask.rows, is_constant=True)
        self.record("candidates", "", (keys, mask), output_values, block_size=block_size)
        return output_values

    def choose_entries(
        self,
        scores: Value,
        weights: Value,
        mask: Value,
        top_k: Number,
        *,
        block_count_and_size: tuple[Number, Number] | None = None,
    ) -> Value:
        """Records the selection of the `top_k` compressed keys per query with the highest weighted sums of scores.

        block_count_and_size: the number and the size of the blocks of entries that it finds for the layers above; none
            by default.
        """
        output_value = query_key_pair_value(weights.rows, is_constant=True, is_batched=True)
        return self.step(
            "choose_entries", "", (scores, weights, mask), output_value, top_k=top_k, finds=block_count_and_size
        )

    def among(self, mask: Value, selected: Value, entries: Value) -> tuple[Value, Value]:
        """Records the mask of the selected compressed keys, and returns this mask and the keys to read."""
        output_values = Value(selected.rows, (), is_constant=True), entries.view(*entries.axes)
        self.record("among", "", (mask, selected, entries), output_values)
        return output_values

    def mask(self, q: Value, k: Value, *, causal: bool, window: Number = None, chunk: Number = None) -> None:
        """Records the mask of keys that each query may attend to; layers with equal masks share one."""
        self.record("mask", "", (q, k), causal=causal, window=window, chunk=chunk)

    def cache(self, node_name: str, cache_kind: str, *vectors: Value, token_limit: Number = None) -> tuple[Value, ...]:
        """Records a cache of values per row for later passes, and returns the cached and new rows."""
        width = vectors[0].width
        for cached_value in vectors[1:]:
            width = width + cached_value.width
        cached_values = tuple(
            Value(vector.rows, vector.axes, vector, vector.is_constant, node_name) for vector in vectors
        )
        vector_shapes = tuple(
            (self.element_count(vector.axes[:-1]), self.element_count(vector.axes[-1:])) for vector in vectors
        )
        op = ops.KVCache(width, cache_kind, token_limit, vectors[0].rows, vector_shapes)
        self.record("cache", node_name, vectors, cached_values, op=op, limit=token_limit)
        return cached_values

    def state(
        self,
        node_name: str,
        *axes: Axis | JoinedShapes,
        state_kind: str = "recurrent_state",
        bits: Number = None,
        last_values: tuple[Value, ...] = (),
    ) -> None:
        """Records a cached state per sequence, whose size does not depend on the sequence's length.

        last_values: the values whose last row it is; none where a step that reads it keeps it.
        """
        self.record("state", node_name, last_values, op=ops.State(self.element_count(axes), state_kind, bits))

    def received(self, x: Value, *axes: Axis | JoinedShapes) -> Value:
        """Records hidden states received from another model, with one row per row of x."""
        return self.step("received", "", (x,), Value(x.rows, axes, is_constant=True))

    def core(
        self,
        node_name: str,
        op: Op,
        *inputs: Value,
        axes: Shape,
        rows: Rows | None = None,
        node_fields: dict[str, Any] | None = None,
    ) -> Value:
        """Records an operation that costs what `op` costs, such as a product, a scan or a look-up."""
        output_value = Value(inputs[0].rows if rows is None else rows, axes)
        return self.step("core", node_name, inputs, output_value, op=op, node_fields=node_fields)

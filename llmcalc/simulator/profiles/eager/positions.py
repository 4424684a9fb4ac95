"""Relative positions: biases and encodings of distances, and scores by distance."""

from __future__ import annotations

from typing import Any

from ....algebra import ceil_div
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ...tensor import FLOAT32, INT64, Dtype, Tensor
from .attention_variants import AttentionVariantKernels


@kernels_compared(TORCH_WITNESS, unchecked_kernels=("core_PairScores",))
class PositionKernels(AttentionVariantKernels):
    """Kernels of relative positions: tensors that depend on the distance between a query and a key."""

    def _relative_positions(self, query_count: Any, key_count: Any) -> Tensor:
        """Computes the distance [queries, keys] of every key from every query."""
        return self.aten.new_like(
            self.aten.unsqueeze(self.token_positions(query_count), 1),
            self.aten.unsqueeze(self.token_positions(key_count), 0),
        )

    def _query_and_key_counts(self, operation: Step) -> tuple[Any, Any]:
        """Returns the numbers of queries and keys, from the last two inputs of an operation."""
        q, k = map(self.tensor_of, operation.input_values[-2:])
        return q.shape[1], k.shape[1]

    # --- biases -----------------------------------------------------------------------------------------------------

    def do_alibi(self, operation: Step) -> None:
        output = operation.output_values[0]
        heads, (query_count, key_count) = output.axes[0].size, self._query_and_key_counts(operation)
        alibi_key = ("alibi", heads, query_count, key_count)
        self.store_without_reshape(
            output, self.compute_once(alibi_key, lambda: self._alibi_bias(heads, query_count, key_count))
        )

    def _alibi_bias(self, heads: Any, query_count: Any, key_count: Any) -> Tensor:
        """Computes the bias [heads, queries, keys] in float32 (`alibi_bias`)."""
        aten = self.aten
        slopes = aten.new_like(aten.new_like(aten.new_like(aten.new_tensor((heads,), INT64), dtype=FLOAT32)))
        return aten.new_like(
            aten.new_like(aten.unsqueeze(aten.unsqueeze(slopes, 1), 2)),
            aten.new_like(self._relative_positions(query_count, key_count)),
        )

    def do_distance_bias(self, operation: Step) -> None:
        bias_table, q = operation.input_values
        query_positions = self.token_positions(self.run_config.new_rows(q.rows))
        key_positions = self.token_positions(self.run_config.available_rows(q.rows))
        self.store_output(
            operation,
            self.bias_by_distance(
                self.tensor_of(bias_table), query_positions, key_positions, operation.options["causal"]
            ),
        )

    def bias_by_distance(
        self, bias_table: Tensor, query_positions: Tensor, key_positions: Tensor, causal: bool
    ) -> Tensor:
        """Computes T5's relative bias [heads, queries, keys]: a table row per distance bucket."""
        aten = self.aten
        distances = aten.new_like(aten.unsqueeze(key_positions, 0), aten.unsqueeze(query_positions, 1))
        direction_offsets: tuple[Tensor, ...] = ()
        if causal:
            distances = aten.new_like(aten.new_like(distances))
        else:
            direction_offsets, distances = (
                (aten.new_like(aten.new_like(aten.compare(distances), dtype=INT64)),),
                aten.new_like(distances),
            )
        log_buckets = aten.new_like(
            aten.new_like(
                aten.new_like(aten.new_like(aten.new_like(aten.new_like(distances), dtype=FLOAT32))), dtype=INT64
            )
        )
        bucket_indices = aten.new_like(
            aten.new_like(aten.compare(distances), distances, aten.new_like(log_buckets)), *direction_offsets
        )
        return aten.permute(aten.embedding(bias_table, bucket_indices), (2, 0, 1))

    # --- scores by distance -----------------------------------------------------------------------------------------

    def do_sinusoids(self, operation: Step) -> None:
        """Computes concatenated sines and cosines of float32 angles."""
        output, dtype = operation.output_values[0], self.tensor_of(operation.input_values[0]).dtype
        row_count, table_width = self.run_config.new_rows(output.rows), output.width
        if not operation.options["once"]:
            sinusoid_key = ("distances", row_count, table_width)
            angles = self.compute_once(
                sinusoid_key, lambda: self._angle_table(self.token_positions(row_count), 2 * ceil_div(table_width, 2))
            )
            self.store_tensor(output, self._sines_and_cosines(angles, dtype))
            return
        sinusoid_key = ("away", row_count, table_width)
        if sinusoid_key not in self.pass_memo:
            angles = self._angle_table(
                self.aten.new_like(self.token_positions(row_count)), 2 * ceil_div(table_width, 2)
            )
            self.pass_memo[sinusoid_key] = self.aten.expand(self._sines_and_cosines(angles, dtype), self.shape(output))
            del angles
        self.store_tensor(output, self.pass_memo[sinusoid_key])

    def _sines_and_cosines(self, angles: Tensor, dtype: Dtype) -> Tensor:
        return self.aten.to(self.aten.cat([self.aten.new_like(angles), self.aten.new_like(angles)]), dtype)

    def core_TableScores(self, operation: Step) -> None:
        self.store_output(
            operation,
            self.scores_by_row(self.tensor_of(operation.input_values[0]), self.tensor_of(operation.input_values[1])),
        )

    def core_DistanceScores(self, operation: Step) -> None:
        """Computes scores of every query with the projected encodings of all distances."""
        x, distance_rows = (self.heads_first(self.tensor_of(input_value)) for input_value in operation.input_values)
        self.store_output(operation, self.aten.matmul(x, self.aten.transpose(distance_rows, -1, -2)))

    def core_PairScores(self, operation: Step) -> None:
        """Computes scores of queries with a separate set of keys per query position, one product per position."""
        aten, x, keys = (
            self.aten,
            self.heads_first(self.tensor_of(operation.input_values[0])),
            self.tensor_of(operation.input_values[1]),
        )
        token_count = x.shape[-2]
        keys = aten.transpose(aten.unflatten(keys, 0, (token_count, token_count)), -1, -2)
        scores = aten.matmul(aten.transpose(aten.flatten(x, 0, 1), 0, 1), keys)
        self.store_output(operation, aten.unflatten(aten.transpose(scores, 0, 1), 0, x.shape[:2]))

    def do_rows_of_distances(self, operation: Step) -> None:
        output = operation.output_values[0]
        self.store_tensor(
            output, self.aten.slice(self.tensor_of(operation.input_values[0]), self.run_config.new_rows(output.rows), 0)
        )

    def do_distances(self, operation: Step) -> None:
        aten, distance_options, (query_count, key_count) = (
            self.aten,
            operation.options,
            self._query_and_key_counts(operation),
        )
        distance_key = ("distance", query_count, key_count, distance_options["binned"])
        if distance_key in self.pass_memo:
            distance_indices = self.pass_memo[distance_key]
        else:
            distance_indices = (
                self._bin_distances(query_count, key_count)
                if distance_options["binned"]
                else self._relative_positions(query_count, key_count)
            )
        if distance_options["stored"]:
            self.pass_memo[distance_key] = distance_indices
        for needs_copy in (distance_options["shifted"], distance_options["clamped"]):
            distance_indices = aten.new_like(distance_indices) if needs_copy else distance_indices
        self.store_output(operation, distance_indices)

    def _bin_distances(self, query_count: Any, key_count: Any) -> Tensor:
        """Assigns distances to bins. Far distances share logarithmic bins."""
        aten = self.aten
        distances = self._relative_positions(query_count, key_count)
        log_bins = aten.new_like(aten.new_like(aten.new_like(distances)), dtype=FLOAT32)
        bin_indices = aten.new_like(
            aten.new_like(aten.new_like(aten.new_like(aten.new_like(aten.new_like(log_bins)))), dtype=INT64)
        )
        near_distance_mask = aten.compare(aten.new_like(distances))
        return aten.new_like(near_distance_mask, distances, aten.new_like(bin_indices, aten.new_like(distances)))

    def do_at_distance(self, operation: Step) -> None:
        aten, (scores, distance_indices) = self.aten, map(self.tensor_of, operation.input_values)
        distance_indices = aten.expand(distance_indices, (*scores.shape[:-1], distance_indices.shape[-1]))
        if operation.options["by_key"]:
            self.store_output(
                operation, aten.transpose(aten.gather(scores, aten.transpose(distance_indices, -1, -2)), -1, -2)
            )
        else:
            self.store_output(operation, aten.gather(scores, distance_indices))

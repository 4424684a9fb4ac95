"""Relative positions: biases and encodings of distances, and scores by distance."""

from __future__ import annotations

from typing import Any

from ....algebra import ceil_div
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ...tensor import FLOAT32, INT64, Dtype, Tensor
from .attention_variants import AttentionVariantKernels


class PositionKernels(AttentionVariantKernels):
    """Kernels of relative positions: tensors that depend on the distance between a query and a key."""

    def _relative_positions(self, queries: Any, keys: Any) -> Tensor:
        """Computes the distance [queries, keys] of every key from every query."""
        return self.t.like(self.t.unsqueeze(self.span(queries), 1), self.t.unsqueeze(self.span(keys), 0))

    def _query_and_key_counts(self, step: Step) -> tuple[Any, Any]:
        """Returns the numbers of queries and keys, from the last two inputs of a step."""
        q, k = (self.get(value) for value in step.ins[-2:])
        return q.shape[1], k.shape[1]

    # --- biases -----------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_alibi(self, step: Step) -> None:
        out = step.outs[0]
        heads, (queries, keys) = out.axes[0].size, self._query_and_key_counts(step)
        key = ("alibi", heads, queries, keys)
        if key not in self.memo:
            self.memo[key] = self._alibi_bias(heads, queries, keys)
        self.bind(out, self.memo[key])

    def _alibi_bias(self, heads: Any, queries: Any, keys: Any) -> Tensor:
        """Computes the bias [heads, queries, keys] in float32 (`alibi_bias`)."""
        t = self.t
        slopes = t.like(t.like(t.like(t.new((heads,), INT64), dtype=FLOAT32)))
        return t.like(t.like(t.unsqueeze(t.unsqueeze(slopes, 1), 2)), t.like(self._relative_positions(queries, keys)))

    @compared(BY_TORCH)
    def do_distance_bias(self, step: Step) -> None:
        table, q = step.ins
        queries, keys = self.span(self.run_config.new(q.rows)), self.span(self.run_config.available(q.rows))
        self.bind(step.outs[0], self.bias_by_distance(self.get(table), queries, keys, step.options["causal"]))

    def bias_by_distance(self, table: Tensor, queries: Tensor, keys: Tensor, causal: bool) -> Tensor:
        """Computes T5's relative bias [heads, queries, keys]: a table row per distance bucket."""
        t = self.t
        distance = t.like(t.unsqueeze(keys, 0), t.unsqueeze(queries, 1))
        offset: tuple[Tensor, ...] = ()
        if causal:
            distance = t.like(t.like(distance))
        else:
            offset, distance = (t.like(t.like(t.compare(distance), dtype=INT64)),), t.like(distance)
        log_buckets = t.like(t.like(t.like(t.like(t.like(t.like(distance), dtype=FLOAT32))), dtype=INT64))
        bucket = t.like(t.like(t.compare(distance), distance, t.like(log_buckets)), *offset)
        return t.permute(t.embedding(table, bucket), (2, 0, 1))

    # --- scores by distance -----------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_sinusoids(self, step: Step) -> None:
        """Computes concatenated sines and cosines of float32 angles."""
        out, dtype = step.outs[0], self.get(step.ins[0]).dtype
        count, width = self.run_config.new(out.rows), out.width
        if not step.options["once"]:
            key = ("distances", count, width)
            if key not in self.memo:
                self.memo[key] = self._angle_table(self.span(count), 2 * ceil_div(width, 2))
            self.set(out, self._sines_and_cosines(self.memo[key], dtype))
            return
        key = ("away", count, width)
        if key not in self.memo:
            angles = self._angle_table(self.t.like(self.span(count)), 2 * ceil_div(width, 2))
            self.memo[key] = self.t.expand(self._sines_and_cosines(angles, dtype), self.shape(out))
            del angles
        self.set(out, self.memo[key])

    def _sines_and_cosines(self, angles: Tensor, dtype: Dtype) -> Tensor:
        return self.t.to(self.t.cat([self.t.like(angles), self.t.like(angles)]), dtype)

    @compared(BY_TORCH)
    def core_TableScores(self, step: Step) -> None:
        self.bind(step.outs[0], self.scores_by_row(self.get(step.ins[0]), self.get(step.ins[1])))

    @compared(BY_TORCH)
    def core_DistanceScores(self, step: Step) -> None:
        """Multiplies every query by the projected distances of its sequence."""
        x, r = (self.heads_first(self.get(value)) for value in step.ins)
        self.bind(step.outs[0], self.t.matmul(x, self.t.transpose(r, -1, -2)))

    def core_PairScores(self, step: Step) -> None:
        """Multiplies every query by the keys of its pairs, as one product for each query position."""
        t, x, keys = self.t, self.heads_first(self.get(step.ins[0])), self.get(step.ins[1])
        tokens = x.shape[-2]
        keys = t.transpose(t.unflatten(keys, 0, (tokens, tokens)), -1, -2)
        scores = t.matmul(t.transpose(t.flatten(x, 0, 1), 0, 1), keys)
        self.bind(step.outs[0], t.unflatten(t.transpose(scores, 0, 1), 0, x.shape[:2]))

    @compared(BY_TORCH)
    def do_occurring(self, step: Step) -> None:
        out = step.outs[0]
        self.set(out, self.t.slice(self.get(step.ins[0]), self.run_config.new(out.rows), 0))

    @compared(BY_TORCH)
    def do_distances(self, step: Step) -> None:
        t, options, (queries, keys) = self.t, step.options, self._query_and_key_counts(step)
        key = ("distance", queries, keys, options["binned"])
        if key in self.memo:
            index = self.memo[key]
        else:
            index = self._bin_distances(queries, keys) if options["binned"] else self._relative_positions(queries, keys)
        if options["stored"]:
            self.memo[key] = index
        for changes in (options["shifted"], options["clamped"]):
            index = t.like(index) if changes else index
        self.bind(step.outs[0], index)

    def _bin_distances(self, queries: Any, keys: Any) -> Tensor:
        """Assigns distances to bins; far distances share logarithmic bins."""
        t = self.t
        distance = self._relative_positions(queries, keys)
        log_bins = t.like(t.like(t.like(distance)), dtype=FLOAT32)
        bin_indices = t.like(t.like(t.like(t.like(t.like(t.like(log_bins)))), dtype=INT64))
        is_near = t.compare(t.like(distance))
        return t.like(is_near, distance, t.like(bin_indices, t.like(distance)))

    @compared(BY_TORCH)
    def do_at_distance(self, step: Step) -> None:
        t, (scores, index) = self.t, (self.get(value) for value in step.ins)
        index = t.expand(index, (*scores.shape[:-1], index.shape[-1]))
        if step.options["by_key"]:
            self.bind(step.outs[0], t.transpose(t.gather(scores, t.transpose(index, -1, -2)), -1, -2))
        else:
            self.bind(step.outs[0], t.gather(scores, index))

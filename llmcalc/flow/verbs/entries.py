"""Verbs of entries that stand for several rows each, of caches and of recurrent states."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...algebra import Number
from ...ops.base import Op
from ...workload.rows import Rows
from ..axis import Axis, Beside, Shape
from ..recorder import Recorder
from ..value import Value
from .pairs import value_of_pairs


class EntryVerbs(Recorder):
    """Verbs of entries that stand for several rows each, of caches and of recurrent states."""

    def windows(self, x: Value, rate: Axis) -> Value:
        """The rows of x in whole windows of `rate` rows."""
        from ...workload.derived_rows import Blocks

        return self.step("windows", "", (x,), Value(Blocks(of=x.rows, block=rate.size), (rate, *x.axes)))

    def weighted_mean(self, values: Value, gate: Value) -> Value:
        """The mean over the rows of a window, weighted with a softmax of the gate, for each element."""
        return self.step("weighted_mean", "", (values, gate), Value(values.rows, values.axes[1:]))

    def with_rest(self, *rows: Value) -> tuple[Value, ...]:
        """Rows after those of earlier passes that fill no entry yet."""
        made = tuple(value.seen(*value.axes) for value in rows)
        self.record("with_rest", "", rows, made)
        return made

    def keep_entries(self, op: Op, entries: Value, *rest: Value) -> Value:
        """Caches entries, and the rows that fill none yet. Returns all entries so far."""
        made = entries.seen(*entries.axes)
        self.record("keep_entries", "cache", (entries, *rest), (made,), op=op)
        return made

    def whole_entries(self, q: Value, entries: Value, rate: Number) -> Value:
        """The mask of the entries whose `rate` tokens are all before a query or are the query's own."""
        return self.step("whole_entries", "", (q, entries), value_of_pairs(q.rows, fixed=True), rate=rate)

    def choose_entries(self, scores: Value, weights: Value, mask: Value, top_k: Number) -> Value:
        """The `top_k` entries of each query with the highest scores: those of its heads, with these weights."""
        made = value_of_pairs(weights.rows, fixed=True, batched=True)
        return self.step("choose_entries", "", (scores, weights, mask), made, top_k=top_k)

    def among(self, mask: Value, chosen: Value, entries: Value) -> tuple[Value, Value]:
        """The mask of the chosen entries, and the entries that are read: where one token is decoded, only those."""
        made = Value(chosen.rows, (), fixed=True), entries.seen(*entries.axes)
        self.record("among", "", (mask, chosen, entries), made)
        return made

    def mask(self, q: Value, k: Value, *, causal: bool, window: Number = None, chunk: Number = None) -> None:
        """Which keys each query may attend to; equal layers share it."""
        self.record("mask", "", (q, k), causal=causal, window=window, chunk=chunk)

    def cache(self, name: str, kind: str, *kept: Value, limit: Number = None) -> tuple[Value, ...]:
        """Caches the given values per row for later passes. Returns them with the cached rows included."""
        width = kept[0].width
        for value in kept[1:]:
            width = width + value.width
        seen = tuple(Value(v.rows, v.axes, v, v.fixed, name) for v in kept)
        parts = tuple((self.n(v.axes[:-1]), self.n(v.axes[-1:])) for v in kept)
        op = ops.KVCache(width, kind, limit, kept[0].rows, parts)
        self.record("cache", name, kept, seen, op=op, limit=limit)
        return seen

    def state(
        self,
        name: str,
        *axes: Axis | Beside,
        kind: str = "recurrent_state",
        bits: Number = None,
        last: tuple[Value, ...] = (),
    ) -> None:
        """A state that is cached per sequence, of a size that does not depend on the number of rows.

        last: the values whose last row it is; none where a step that reads it keeps it.
        """
        self.record("state", name, last, op=ops.State(self.n(axes), kind, bits))

    def core(
        self, name: str, op: Op, *ins: Value, axes: Shape, rows: Rows | None = None, about: dict[str, Any] | None = None
    ) -> Value:
        """A product, a scan or a look-up with its own op, which gives its cost."""
        made = Value(ins[0].rows if rows is None else rows, axes)
        return self.step("core", name, ins, made, op=op, about=about)

"""The recorder: a part's flow calls it once per operation, in the order of the forward pass; it builds a program.

Every method takes values and returns values; its `name` is the module with the operation's weights. The cost of a step
is an op, built from the axes of its inputs and outputs. Nothing here depends on a workload, a phase, a dtype or a
framework, and a part only needs the sizes of its own axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from .. import ops
from ..algebra import Number, same
from ..ops.base import Op
from ..run.rows import ONCE, TOKENS, Routed, Rows
from .axis import Axis, Beside, Shape, extent
from .program import Alternatives, Scope, Step
from .tree import Node, Role
from .value import Value, Weight

Index: TypeAlias = Literal["ids", "known ids", "positions", "types", "all"]


class Normed(Protocol):
    """A norm's spec: whether it has a weight and a bias."""

    weight: bool

    @property
    def has_bias(self) -> bool: ...


class Recordable(Protocol):
    """A part that can be recorded: its kind of component, the source of its formula, and its flow."""

    kind: ClassVar[str]

    def source(self) -> str: ...

    @property
    def flow(self) -> Callable[..., Value]: ...


class Flow:
    """Records the operations of parts.

    causal: whether the recorded stack is causal.
    memory: the encoder's output that the stack may attend to; None without one.
    result: the value that the whole program computes.
    """

    def __init__(self, name: str = "model", causal: bool = True, memory: Value | None = None) -> None:
        self.root = self.here = Scope(name, {})
        self.causal, self.memory = causal, memory
        self.result: Value | None = None
        self.memo: dict[Any, Any] = {}
        self._whole = False

    # --- places ------------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, *, whole: bool = False, **about: Any) -> Iterator[Scope]:
        """Records everything inside as part of the module `name`.

        whole: whether everything inside is counted under its kind. about: fields of its node.
        """
        above, outside = self.here, self._whole
        self.here = Scope(name, self._about(about))
        above.items.append(self.here)
        self._whole = outside or whole
        try:
            yield self.here
        finally:
            self.here, self._whole = above, outside

    def part(
        self,
        name: str,
        part: Recordable,
        x: Value,
        *,
        kind: str = "",
        role: Role = "own",
        nth: int | None = None,
        apart: bool = False,
        after: Value | None = None,
        **more: Any,
    ) -> Value:
        """Records a part as a module of that name.

        nth: its index in a list of equal parts; the tree shows them as one node, in the place of the first.
        apart: whether it runs as a model of its own, as in `Scope.apart`; false by default.
        after: a value that stands for the output of the first of the layers that follow: the part runs right after that
            layer, on its input x and this output, and replaces it; None for a part that runs where it is recorded.
        more: further arguments of its flow.
        """
        which: dict[str, Any] = {} if nth is None else {"indices": (nth,)}
        with self.scope(name, kind=kind or part.kind, source=part.source(), role=role, **which) as scope:
            scope.nth, scope.reads, scope.apart, scope.after = nth, x, apart, after
            made = part.flow(self, x, **more) if after is None else part.flow(self, x, after=after, **more)
            if apart or after is not None:
                scope.gives = made
            return made

    def layers(
        self,
        x: Value,
        run: Callable[[Value], Value],
        repeat: Number,
        which: Sequence[int] | None,
        name: str = "layers",
        **about: Any,
    ) -> Value:
        """Records `repeat` equal layers once; each layer's output is the next one's input."""
        with self.scope(name, repeat=repeat, indices=which, **about) as scope:
            scope.takes, scope.gives = x, run(x)
        return scope.gives

    def side_by_side(
        self,
        name: str,
        over: Axis,
        x: Value,
        run: Callable[[Value], Value],
        *,
        after: Value,
        split: bool = False,
        **about: Any,
    ) -> Value:
        """Records equal modules, one for each index of `over`, once. Their outputs are stacked after the value `after`.

        split: whether each module reads its own slice of x's first axis instead of all of x, false by default.
        """
        which = range(over.size) if isinstance(over.size, int) else None
        one = x.seen(*x.axes[1:]) if split else x
        with self.scope(name, repeat=over.size, indices=which, **about) as scope:
            scope.over, scope.reads, scope.slice = over, x, one if split else None
            made = scope.gives = run(one)
        every = Axis(over.name, over.size + 1)
        return self.step("stack", "", (after, made), Value(made.rows, (every, *made.axes)))

    def alternatives(self, **branches: Callable[[], Value]) -> Value:
        """Records several ways to compute one value: name of the form → function. The first is the default.

        Returns the value of the first form; each branch's scope has its own.
        """
        above, made = self.here, dict[str, Scope]()
        for name, branch in branches.items():
            self.here = made[name] = Scope(name, {})
            self.here.gives = branch()
        self.here = above
        above.items.append(Alternatives(made))
        first, *_ = made.values()
        assert first.gives is not None
        return first.gives

    @contextmanager
    def apart(self, causal: bool, memory: Value | None = None) -> Iterator[None]:
        """Records everything inside as a separate stack, which cannot see values shared by other layers."""
        outside = self.causal, self.memory, self.memo
        self.causal, self.memory, self.memo = causal, memory, {}
        try:
            yield
        finally:
            self.causal, self.memory, self.memo = outside

    def _about(self, about: dict[str, Any]) -> dict[str, Any]:
        if self._whole:
            about.pop("kind", None)
        return about

    def n(self, shape: Shape) -> Number:
        """The number of elements of a shape."""
        return extent(shape)

    def node(self) -> Node:
        """The tree of nodes of the program."""
        return self.root.node()

    def record(
        self,
        verb: str,
        name: str,
        ins: tuple[Value, ...],
        outs: tuple[Value, ...] = (),
        op: Op | None = None,
        weight: Weight | None = None,
        about: dict[str, Any] | None = None,
        **how: Any,
    ) -> None:
        """Records one step with all of its outputs."""
        if weight is not None:
            weight.made = True
        self.here.items.append(Step(verb, name, ins, outs, op, weight, how, self._about(about) if about else None))

    def step(self, verb: str, name: str, ins: tuple[Value, ...], out: Value, **what: Any) -> Value:
        """Records one step with one output, and returns the output."""
        self.record(verb, name, ins, (out,), **what)
        return out

    @contextmanager
    def function(self) -> Iterator[None]:
        """Records everything inside as a function of the forward pass that is no module: at its end, the variables that
        `hold` names inside let go of their values.
        """
        self.record("enter", "", ())
        yield
        self.record("leave", "", ())

    def also(self, value: Value) -> None:
        """A further result of the model beside `result`: predictions that have a loss of their own."""
        self.record("also", "", (value,))

    def hold(self, **named: Value) -> None:
        """The variables of the forward pass: each keeps its value until it gets another one, or the module returns.

        Only a profile that runs this very code reads them. A value that has no name lives until its last use.
        """
        self.record("hold", "", tuple(named.values()), names=tuple(named))

    def keep(self, **named: Value) -> None:
        """What the forward pass keeps for all layers: each keeps its value until the pass ends."""
        self.record("keep", "", tuple(named.values()), names=tuple(named))

    # --- linear layers and other operations with weights --------------------------------------------------------------

    def linear(
        self,
        name: str,
        x: Value,
        *out: Axis | Beside,
        bias: bool = False,
        weight: Weight | None = None,
        rows: Rows | None = None,
        beside: Value | None = None,
        lent: str = "",
        **about: Any,
    ) -> Value:
        """y = x·Wᵀ + b.

        weight: a weight shared with other steps; the first step that uses it owns it, the others are tied.
        rows: the rows of x that are projected, all by default.
        beside: a value of another sequence that the same layer projects; its rows follow those of x.
        lent: the name of the linear layer, in the module around this one, whose weights it uses; empty for its own.
        """
        seen = x.rows if rows is None else rows
        if beside is not None:
            from ..run.derived import Joined

            seen = Joined(first=seen, second=beside.rows)
        tied = weight is not None and weight.made
        if tied and weight is not None:
            weight.tied = True
        op = ops.Linear(x.width, self.n(out), bias, seen, tied, x.fixed)
        weight = Weight(name, out, x.axes) if weight is None else weight
        ins = (x,) if beside is None else (x, beside)
        made = Value(seen, out)
        return self.step("linear", name, ins, made, op=op, weight=weight, about=about, bias=bias, lent=lent)

    def absorb(self, name: str, x: Value, weight: Weight, *out: Axis | Beside) -> Value:
        """Applies a part of a weight on the other side of a product, per head: q·Wᵀ instead of W·c (DeepSeek-V2,
        §2.1.2).

        All such steps together cost as much as the projection itself for the same number of rows. The first of them,
        which has its name, carries the whole cost.
        """
        made = Value(x.rows, (x.axes[0], *out))
        if not name:
            return self.step("absorb", "", (x,), made, weight=weight)
        op = ops.Linear(self.n(weight.ins), self.n(weight.out), rows=x.rows)
        return self.step("absorb", name, (x,), made, op=op, weight=weight)

    def blocks(self, name: str, x: Value, blocks: Axis, *out: Axis | Beside, bias: bool = False, **about: Any) -> Value:
        """A block-diagonal linear layer: each block maps its part of x to its part of the output."""
        op = ops.BlockLinear(blocks.size, x.width, self.n(out), bias, x.rows)
        weight = Weight(name, (blocks, *out), x.axes)
        return self.step("blocks", name, (x,), Value(x.rows, out), op=op, weight=weight, about=about, bias=bias)

    def experts(
        self,
        name: str,
        x: Value,
        experts: Axis,
        top_k: Number,
        *out: Axis | Beside,
        bias: bool = False,
        identities: bool = False,
        **about: Any,
    ) -> Value:
        """Sends each token through the linear layers of its `top_k` experts; x has `top_k` routed rows per token.

        identities: whether some rows are of identity experts, which return them unchanged; false by default.
        """
        rows = x.rows.of if isinstance(x.rows, Routed) else x.rows
        op = ops.ExpertLinear(experts.size, top_k, x.width, self.n(out), bias, rows)
        weight = Weight(name, (experts, *out), x.axes)
        how = {"bias": bias, "experts": experts, "top_k": top_k, "identities": identities}
        return self.step("experts", name, (x,), Value(x.rows, out), op=op, weight=weight, about=about, **how)

    def table(
        self, name: str, rows: Axis, *dim: Axis | Beside, of: Rows = TOKENS, by: Index = "ids", **about: Any
    ) -> tuple[Value, Weight]:
        """A look-up for each of the rows `of`. Also returns the weight, for another step that is tied to it.

        by: what is looked up: the ids of the tokens, or numbers that all sequences share (their positions, types).
            `known ids`: the ids, and the first row for a token beyond the rows of the table.
            `all`: nothing; the value is the table itself.
        """
        weight = Weight(name, dim, (rows,))
        op = ops.Embedding(rows.size, self.n(dim))
        return self.step("table", name, (), Value(of, dim), op=op, weight=weight, about=about, by=by), weight

    def unread_table(self, name: str, rows: Axis, *dim: Axis | Beside, **about: Any) -> Weight:
        """A table that only other steps read, by its weight."""
        weight = Weight(name, dim, (rows,))
        self.record("unread_table", name, (), (), ops.Embedding(rows.size, self.n(dim)), weight, about)
        return weight

    def look_up(self, weight: Weight, of: Rows = TOKENS) -> Value:
        """Another look-up of token ids in an existing table."""
        weight.tied = True
        return self.step("table", "", (), Value(of, weight.out), weight=weight, by="ids")

    def norm(
        self,
        name: str,
        x: Value,
        spec: Normed,
        over: Shape | None = None,
        heads: Axis | None = None,
        groups: Axis | None = None,
        **about: Any,
    ) -> Value:
        """over: the axes that are normalized together, all of x's by default. heads: the axis of heads with separate
        weights.

        groups: the axis of parts of x that are normalized separately, with one weight vector for all of x.
        """
        over = x.axes if over is None else over
        held = over if heads is None else (heads, *over)
        width = x.width if held is x.axes else self.n(held)
        op = ops.Norm(width, spec.weight, spec.has_bias, None if heads is None else heads.size)
        return self.step(
            "norm", name, (x,), Value(x.rows, x.axes), op=op, about=about, spec=spec, over=over, groups=groups
        )

    def normalized(self, x: Value, spec: Normed, over: Shape | None = None, like: Value | None = None) -> Value:
        """A norm without a node: it has no weights, or those of another norm. like: the output of that norm."""
        how = {"spec": spec, "over": x.axes if over is None else over, "like": like}
        return self.step("norm", "", (x,), Value(x.rows, x.axes), **how)

    def conv(
        self,
        name: str,
        x: Value,
        *out: Axis | Beside,
        kernel: Number,
        groups: Number = 1,
        bias: bool = False,
        padding: Number = 0,
        overlap: Number = 0,
        rows: Rows | None = None,
        **about: Any,
    ) -> Value:
        """A convolution along the rows. groups, padding, overlap: as in `ops.Conv1d`. rows: the rows of the output."""
        seen = x.rows if rows is None else rows
        op = ops.Conv1d(x.width, self.n(out), kernel, groups, bias, padding, x.fixed, overlap, seen)
        how = {"kernel": kernel, "groups": groups, "bias": bias}
        weight = Weight(name, out, x.axes)
        return self.step("conv", name, (x,), Value(seen, out), op=op, weight=weight, about=about, **how)

    def vector(
        self, name: str, *axes: Axis | Beside, heads: Axis | None = None, many: Number = None, **about: Any
    ) -> Value:
        """A parameter that is added or multiplied elementwise. heads, many: `heads` and `rows` of `ops.Weight`."""
        op = ops.Weight(self.n(axes), None if heads is None else heads.size, many)
        return self.step("vector", name, (), Value(ONCE, axes), op=op, about=about)

    def buffer(self, name: str, *axes: Axis | Beside, **about: Any) -> Value:
        """A buffer that is stored in the checkpoint and not trained."""
        value = Value(ONCE, axes, fixed=True)
        return self.step("buffer", name, (), value, op=ops.Buffer(self.n(axes)), about=about)

    # --- mixing rows -------------------------------------------------------------------------------------------------

    def attention(
        self,
        name: str,
        q: Value,
        k: Value,
        v: Value,
        *,
        causal: bool = True,
        core: Callable[..., Op] = ops.AttentionCore,
        about: dict[str, Any] | None = None,
        cap: float | None = None,
        bias: Value | None = None,
        sinks: bool = False,
        masked: bool = True,
        **limits: Any,
    ) -> Value:
        """softmax(q·kᵀ)·v. Axes are (heads, size). There may be fewer key and value heads, which a kernel may repeat.

        Keys of another sequence are recognized by their rows.

        core: the op, `ops.AttentionCore` by default.
        limits: `window`, `chunk`, `selected`, and further fields of the op.
        cap: the soft cap of the scores, none by default.
        bias: the value added to the scores, none by default.
        sinks: whether each head has one more score, a parameter of its module, without a value; false by default.
        masked: whether there is a mask at all, true by default; there is none on keys of another sequence.
        """
        heads, *qk = q.axes
        value = v.axes[1:]
        cross = None if k.rows is q.rows or k.rows == q.rows else k.rows
        op = core(heads.size, self.n(tuple(qk)), self.n(value), causal, rows=q.rows, keys=cross, **limits)
        out = Value(q.rows, (heads, *value))
        ins = (q, k, v) if bias is None else (q, k, v, bias)
        kv_heads = (k if k.once is None else k.once).axes[0]
        how = {"causal": causal, "cap": cap, "biased": bias is not None, "sinks": sinks, **limits}
        how["masked"] = masked and cross is None
        how |= {"kv_heads": kv_heads, "cache": k.cache}
        return self.step("attention", name, ins, out, op=op, about=about, **how)

    def scores(self, name: str, q: Value, k: Value, weights: Value | None = None) -> Value:
        """q·kᵀ alone, without softmax and values; keys may have no heads.

        weights: per query, a weight for each head: the sum of ReLU(q·kᵀ) over the heads, with these weights.
        """
        heads, *qk = q.axes
        op = ops.AttentionCore(heads.size, self.n(tuple(qk)), 0 if weights is None else 1, rows=q.rows)
        ins = (q, k) if weights is None else (q, k, weights)
        return self.step("scores", name, ins, Value(q.rows, (heads,) if weights is None else ()), op=op)

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

    def state(self, name: str, *axes: Axis | Beside, kind: str = "recurrent_state", bits: Number = None) -> None:
        """A state that is cached per sequence, of a size that does not depend on the number of rows."""
        self.record("state", name, (), op=ops.State(self.n(axes), kind, bits))

    def core(
        self, name: str, op: Op, *ins: Value, axes: Shape, rows: Rows | None = None, about: dict[str, Any] | None = None
    ) -> Value:
        """A product, a scan or a look-up with its own op, which gives its cost."""
        made = Value(ins[0].rows if rows is None else rows, axes)
        return self.step("core", name, ins, made, op=op, about=about)

    # --- relative positions ------------------------------------------------------------------------------------------

    def alibi(self, q: Value, k: Value) -> Value:
        """ALiBi's penalty for each head, query and key, computed once in a pass."""
        return self.step("alibi", "", (q, k), _pairs(q.rows, q.axes[0], fixed=True))

    def distance_bias(self, table: Value, q: Value, k: Value, *, once: bool = True) -> Value:
        """T5's bias: for each query and key, the row of a table for the bucket of their distance.

        once: whether it is computed once in a pass, for all layers; true by default.
        """
        made = _pairs(q.rows, *table.axes)
        return self.step("distance_bias", "", (table, q, k), made, causal=self.causal, once=once)

    def sinusoids(self, distances: Rows, *axes: Axis | Beside, once: bool = False) -> Value:
        """The sines and cosines of distances. once: whether a pass keeps them instead of their angles only."""
        return self.step("sinusoids", "", (), Value(distances, axes, fixed=True), once=once)

    def occurring(self, table: Value, rows: Rows) -> Value:
        """The rows of a table for the distances that occur in a sequence."""
        return self.step("occurring", "", (table,), Value(rows, table.axes))

    def distances(
        self, q: Value, k: Value, *, clamped: bool, shifted: bool, kept: bool = False, binned: bool = False
    ) -> Value:
        """For each query and key, the index of their distance in a table.

        clamped: whether larger distances share an index. shifted: whether distances may be negative, so that indices
        begin at the lowest. kept: whether a pass keeps the distances. binned: whether far distances share bins.
        """
        how = {"clamped": clamped, "shifted": shifted, "kept": kept, "binned": binned}
        return self.step("distances", "", (q, k), _pairs(q.rows, fixed=True), **how)

    def at_distance(self, scores: Value, distances: Value, *, by_key: bool = False) -> Value:
        """The score of each query and key by their distance, of scores of every query by every distance.

        by_key: whether they are scores of every key by every distance; false by default.
        """
        made = _pairs(scores.rows, *scores.axes, batched=True)
        return self.step("at_distance", "", (scores, distances), made, by_key=by_key)

    def in_blocks(self, x: Value, block: Number, of: Rows, *, around: bool = False) -> Value:
        """Queries, or keys and values, in blocks of rows, the last of which is padded.

        of: the rows that are put in blocks; further rows of x are seen by every block.
        around: whether each block has its two neighbours beside it; false by default.
        """
        return self.step("in_blocks", "", (x,), Value(of, x.axes), block=block, around=around)

    def local_mask(self, of: Rows, radius: Number, block_sums: Number, *tables: Value) -> None:
        """Which keys of three blocks, and of the sums of `block_sums` rows, each query of the middle one may attend to.

        Equal layers share it. tables: those of T5's bias by distance, and by distance to the sums; none for no bias.
        """
        self.record("local_mask", "", tables, of=of, radius=radius, block_sums=block_sums, causal=self.causal)

    # --- experts -----------------------------------------------------------------------------------------------------

    def route(
        self,
        logits: Value,
        top_k: Number,
        scoring: Literal["softmax", "sigmoid", "sqrtsoftplus", "softmax of chosen"] = "softmax",
        correction: Value | None = None,
        scale: Value | None = None,
        table: Value | None = None,
        skip: bool = False,
    ) -> tuple[Value, Value]:
        """The weights and the indices of each token's experts, those of the highest scores.

        scoring: the function from logits to scores. The weights are the scores of the chosen experts over their sum, or
            a softmax over the logits of the chosen experts alone.
        correction: what is added to the scores for the choice alone, nothing by default.
        scale: a weight per expert, none by default.
        table: the experts of each token id, in place of those of the highest scores; none by default.
        skip: whether the last class is no expert at all, false by default.
        """
        beside = {"correction": correction, "scale": scale, "table": table}
        given = {name: value for name, value in beside.items() if value is not None}
        axis = Axis("top_k", top_k)
        weights, chosen = Value(logits.rows, (axis,)), Value(logits.rows, (axis,), fixed=True)
        ins = (logits, *given.values())
        self.record("route", "", ins, (weights, chosen), scoring=scoring, beside=tuple(given), skip=skip, top_k=top_k)
        return weights, chosen

    def product_keys(self, scores: Value, side: Axis, top_k: Number) -> tuple[Value, Value]:
        """The weights and the indices of each token's experts, which lie in a grid.

        scores: those of the rows of the grid and those of its columns, side by side. An expert's score is the sum of
            its row's and its column's; a softmax over the chosen experts' scores gives the weights.
        """
        axis = Axis("top_k", top_k)
        weights, chosen = Value(scores.rows, (axis,)), Value(scores.rows, (axis,), fixed=True)
        self.record("product_keys", "", (scores,), (weights, chosen), side=side, top_k=top_k)
        return weights, chosen

    def carry(self, name: str, x: Value, scale: Value | None = None) -> Value:
        """Keeps x for the layer above, under that name.

        scale: what the value of the layer below is multiplied by before it is added to x; nothing is added by default,
            nor in the first layer.
        """
        return self.step("carry", "", (x,) if scale is None else (x, scale), Value(x.rows, x.axes), slot=name)

    def dispatch(self, x: Value, chosen: Value, experts: Axis, top_k: Number) -> Value:
        """The rows of the tokens in the order of the experts, one for each expert that a token is routed to.

        x may have such rows already, in the order of the tokens.
        """
        rows = x.rows if isinstance(x.rows, Routed) else Routed(of=x.rows, top_k=top_k)
        return self.step("dispatch", "", (x, chosen), Value(rows, x.axes), experts=experts, top_k=top_k)

    def to_tokens(self, routed: Value) -> Value:
        """The rows of the tokens' experts, back in the order of the tokens."""
        return self.step("to_tokens", "", (routed,), Value(routed.rows, routed.axes))

    def combine(self, routed: Value, weights: Value, experts: Axis, top_k: Number) -> Value:
        """The weighted sum of the outputs of a token's experts."""
        made = Value(weights.rows, routed.axes)
        return self.step("combine", "", (routed, weights), made, experts=experts, top_k=top_k)

    # --- elementwise operations: no op, only memory -------------------------------------------------------------------

    def act(self, x: Value, name: str, *parameters: Value) -> Value:
        """An activation. parameters: vectors that it is computed with (xIELU)."""
        return self.step("act", "", (x, *parameters), Value(x.rows, x.axes), kind=name)

    def mul(self, a: Value, b: Value, axes: Shape | None = None) -> Value:
        """axes: the axes of the product, a's by default."""
        made = Value(a.rows, a.axes if axes is None else axes, fixed=a.fixed and b.fixed)
        return self.step("mul", "", (a, b), made)

    def add(self, a: Value, b: Value) -> Value:
        return self.step("add", "", (a, b), Value(a.rows, a.axes, fixed=a.fixed and b.fixed))

    def sub(self, a: Value, b: Value) -> Value:
        return self.step("sub", "", (a, b), Value(a.rows, a.axes, fixed=a.fixed and b.fixed))

    def div(self, a: Value, b: Value) -> Value:
        return self.step("div", "", (a, b), Value(a.rows, a.axes, fixed=a.fixed and b.fixed))

    def scale(self, x: Value, by: float) -> Value:
        """x times a constant."""
        return self.step("scale", "", (x,), Value(x.rows, x.axes, fixed=x.fixed), by=by)

    def plus(self, x: Value, constant: float) -> Value:
        """x plus a constant."""
        return self.step("plus", "", (x,), Value(x.rows, x.axes, fixed=x.fixed), constant=constant)

    def sum(self, x: Value, *axes: Axis | Beside, mean: bool = False) -> Value:
        """The sum over all axes of x except these, or their mean."""
        return self.step("sum", "", (x,), Value(x.rows, axes), mean=mean)

    def root_mean_square(self, x: Value) -> Value:
        """The root of the mean square of each row."""
        return self.step("root_mean_square", "", (x,), Value(x.rows, (Axis("one", 1),)))

    def sinkhorn(self, matrix: Value, steps: Number, eps: float) -> Value:
        """Divides the columns, then `steps` − 1 times the rows and the columns, of a square matrix by their sums.

        eps: added to each sum.
        """
        return self.step("sinkhorn", "", (matrix,), Value(matrix.rows, matrix.axes), steps=steps, eps=eps)

    def shift(self, x: Value) -> Value:
        """The previous row of each row; before the first row, the cached row of an earlier pass or zeros."""
        return self.step("shift", "", (x,), Value(x.rows, x.axes))

    def scan(self, *ins: Value, axes: Shape) -> Value:
        """An elementwise recurrence along the rows, which is not a module."""
        return self.step("scan", "", ins, Value(ins[0].rows, axes))

    def dropout(self, x: Value) -> Value:
        """Marks a place where published models apply dropout in training."""
        return self.step("dropout", "", (x,), Value(x.rows, x.axes))

    def rope(self, x: Value, spec: Any) -> Value:
        """RoPE. spec: the rotated dimensions and their angles; layers with equal specs share the cos and sin tables."""
        return self.step("rope", "", (x,), Value(x.rows, x.axes), spec=spec)

    def split(self, x: Value, *shapes: Shape) -> tuple[Value, ...]:
        """Views of parts of one storage, which lie side by side along the last axis."""
        parts = tuple(x.seen(*shape) for shape in shapes)
        self.record("split", "", (x,), parts)
        return parts

    def take(self, x: Value, *axes: Axis | Beside) -> Value:
        """A view of a part of x's first axis: of one index, if the axes have it no more, else of several."""
        return self.step("take", "", (x,), x.seen(*axes))

    def copies(self, x: Value, over: Axis) -> Value:
        """A view of x that repeats it along a further axis, the first."""
        return self.step("copies", "", (x,), x.seen(over, *x.axes))

    def cat(self, *xs: Value, axes: Shape, rows: Rows | None = None) -> Value:
        """Concatenates along the axes; with `rows`, along the rows."""
        cache = xs[0].cache if all(x.cache == xs[0].cache for x in xs) else ""
        return self.step("cat", "", xs, Value(xs[0].rows if rows is None else rows, axes, cache=cache))

    def merge(self, x: Value, rows: Rows, *neighbours: Axis, mean: bool = False) -> Value:
        """Merges neighbouring rows: concatenated, under further axes, or averaged."""
        axes = x.axes if mean else (*neighbours, *x.axes)
        return self.step("merge", "", (x,), Value(rows, axes), neighbours=neighbours, mean=mean)

    def repeat(self, x: Value, heads: Axis, tiled: bool = False) -> Value:
        """Repeats keys or values for each query head; unchanged if there are as many already.

        tiled: whether all heads follow one another before the first comes again; by default, the copies of a head lie
            side by side.
        """
        if same(x.axes[0].size, heads.size):
            return x
        made = Value(x.rows, (heads, *x.axes[1:]), cache=x.cache)
        made.once = x
        return self.step("repeat", "", (x,), made, tiled=tiled)

    def added_sinusoids(self, rows: Rows, *axes: Axis | Beside) -> Value:
        """Sinusoidal positions of these rows, shared by all sequences: a module that the tree shows."""
        return self.step("added_sinusoids", "", (), Value(rows, axes, fixed=True), op=ops.Elementwise())

    def cross_entropy(self, logits: Value) -> Value:
        return self.step("cross_entropy", "", (logits,), Value(logits.rows, ()))


def _pairs(of: Rows, *axes: Axis | Beside, fixed: bool = False, batched: bool = False) -> Value:
    """A value for each query and key of these rows. batched: whether each sequence has its own; false by default."""
    from ..run.derived import QueryKeyPairs

    return Value(QueryKeyPairs(of=of, batched=batched), axes, fixed=fixed)

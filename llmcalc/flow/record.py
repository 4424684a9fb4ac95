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
from ..algebra import Number, exact_div, is_zero, same
from ..ops.base import Op
from ..workload.rows import ONCE, SEQUENCES, TOKENS, Routed, Rows
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
    frames: the frames of an audio signal that the program is given; None where it reads token ids alone.
    entry: the value that the program is given in the place of its first layers; None where it has all of them.
    positions: the table of learned positions that was recorded last; None before any.
    """

    def __init__(self, name: str = "model", causal: bool = True, memory: Value | None = None) -> None:
        self.root = self.here = Scope(name, {})
        self.causal, self.memory = causal, memory
        self.result: Value | None = None
        self.frames: Value | None = None
        self.entry: Value | None = None
        self.positions: Weight | None = None
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

    def own(self, given: Any) -> Any:
        """The axes as they are recorded: as they are given, except for one rank's part of them (`RankFlow`)."""
        return given

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
        self.record("hold", "", tuple(named.values()), names=tuple(named), outside=False)

    def hold_outside(self, **named: Value) -> None:
        """Like `hold`, for variables of the forward pass of the module around this one."""
        self.record("hold", "", tuple(named.values()), names=tuple(named), outside=True)

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
        counted: Rows | None = None,
        lent: str = "",
        **about: Any,
    ) -> Value:
        """y = x·Wᵀ + b.

        weight: a weight shared with other steps; the first step that uses it owns it, the others are tied.
        rows: the rows of x that are projected, all by default.
        counted: the rows that the op counts, with those of further steps (`again`); by default those it projects.
        lent: the name of the linear layer, in the module around this one, whose weights it uses; empty for its own.
        """
        seen = x.rows if rows is None else rows
        tied = weight is not None and weight.made
        if tied and weight is not None:
            weight.tied = True
        op = ops.Linear(x.width, self.n(out), bias, seen if counted is None else counted, tied, x.fixed)
        weight = Weight(name, out, x.axes) if weight is None else weight
        made = Value(seen, out)
        return self.step("linear", name, (x,), made, op=op, weight=weight, about=about, bias=bias, lent=lent)

    def again(self, x: Value, like: Value, bias: bool = False) -> Value:
        """The linear layer that made the value `like`, on another value; the first step counts both."""
        return self.step("again", "", (x,), Value(x.rows, like.axes), like=like, bias=bias)

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

    def per_group(self, name: str, x: Value, groups: Axis, out: Axis) -> Value:
        """A separate linear layer per group: each maps its equal part of x. Every row passes through all groups."""
        each = exact_div(x.width, groups.size)
        op = ops.ExpertLinear(groups.size, groups.size, each, out.size, False, x.rows)
        weight = Weight(name, (groups, out), (Axis("group_width", each),))
        return self.step("per_group", name, (x,), Value(x.rows, (groups, out)), op=op, weight=weight)

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

    def look_up(self, weight: Weight, of: Rows = TOKENS, by: Index = "ids") -> Value:
        """Another look-up in an existing table, of token ids by default."""
        weight.tied = True
        return self.step("table", "", (), Value(of, weight.out), weight=weight, by=by)

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
        state: str = "",
        **about: Any,
    ) -> Value:
        """A convolution along the rows.

        groups, padding, overlap: as in `ops.Conv1d`. rows: the rows of the output. state: the name of the state that
        keeps the last inputs of a causal convolution; empty where the module around it says so.
        """
        seen = x.rows if rows is None else rows
        op = ops.Conv1d(x.width, self.n(out), kernel, groups, bias, padding, x.fixed, overlap, seen)
        how = {"kernel": kernel, "groups": groups, "bias": bias, "state": state}
        weight = Weight(name, out, x.axes)
        made = Value(seen, out) if is_zero(overlap) else Value(_with_more(seen, overlap), out)
        return self.step("conv", name, (x,), made, op=op, weight=weight, about=about, **how)

    def vector(
        self,
        name: str,
        *axes: Axis | Beside,
        heads: Axis | None = None,
        many: Number = None,
        frozen: bool = False,
        **about: Any,
    ) -> Value:
        """A parameter that is added or multiplied elementwise.

        heads, many, frozen: `heads`, `rows` and `frozen` of `ops.Weight`.
        """
        op = ops.Weight(self.n(axes), None if heads is None else heads.size, many, frozen)
        return self.step("vector", name, (), Value(ONCE, axes), op=op, about=about)

    def padded(self, x: Value, more: Number, state: str) -> Value:
        """x with `more` rows before its first: zeros, or those of an earlier pass.

        state: the name of the state that keeps them.
        """
        return self.step("padded", "", (x,), Value(_with_more(x.rows, more), x.axes), more=more, state=state)

    def zeros(self, x: Value, state: str) -> Value:
        """One row of zeros per sequence, with the axes of x; none where an earlier pass has kept the state of that
        name.
        """
        return self.step("zeros", "", (x,), Value(SEQUENCES, x.axes, fixed=True), state=state)

    def resumed(self, first: Value, state: str, index: int = 0) -> Value:
        """The row before the first one: that of an earlier pass, or else `first`.

        state: the name of the state that keeps it. index: which of the state's tensors it is.
        """
        return self.step("resumed", "", (first,), first.seen(*first.axes), state=state, index=index)

    def buffer(self, name: str, *axes: Axis | Beside, indices: bool = False, **about: Any) -> Value:
        """A buffer that is stored in the checkpoint and not trained. indices: whether it holds integers."""
        value = Value(ONCE, axes, fixed=True)
        return self.step("buffer", name, (), value, op=ops.Buffer(self.n(axes)), about=about, indices=indices)

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
        selection: Value | None = None,
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
        selection: the mask of keys that another part selected, in place of the one by positions; none by default.
        """
        heads, *qk = q.axes
        value = v.axes[1:]
        cross = None if k.rows is q.rows or k.rows == q.rows else k.rows
        op = core(heads.size, self.n(tuple(qk)), self.n(value), causal, rows=q.rows, keys=cross, **limits)
        out = Value(q.rows, (heads, *value))
        ins = (q, k, v, *(each for each in (bias, selection) if each is not None))
        kv_heads = (k if k.once is None else k.once).axes[0]
        how = {"causal": causal, "cap": cap, "biased": bias is not None, "sinks": sinks, **limits}
        how["masked"], how["narrowed"] = masked and cross is None, selection is not None
        how |= {"kv_heads": kv_heads, "cache": k.cache}
        return self.step("attention", name, ins, out, op=op, about=about, **how)

    def scores(
        self,
        name: str,
        q: Value,
        k: Value,
        *,
        weights: Value | None = None,
        values: Value | None = None,
        cross: bool = False,
        core: Callable[..., Op] = ops.AttentionCore,
        **limits: Any,
    ) -> Value:
        """q·kᵀ alone, without softmax and values; keys may have no heads.

        weights: per query, a weight for each head: the sum of ReLU(q·kᵀ) over the heads, with these weights.
        values: the values that a later step, `weighted`, adds up; the op of this step counts it too.
        cross: whether the keys are of another sequence, false by default. core, limits: as in `attention`.
        """
        heads, *qk = q.axes
        v_dim = 0 if values is None else values.axes[-1].size
        v_dim = v_dim if weights is None else 1
        keys = k.rows if cross else None
        op = core(heads.size, self.n(tuple(qk)), v_dim, rows=q.rows, keys=keys, **limits)
        ins = (q, k) if weights is None else (q, k, weights)
        made = _pairs(q.rows, *((heads,) if weights is None else ()), batched=True)
        return self.step("scores", name, ins, made, op=op)

    def strongest(self, strength: Value, q: Value, k: Value, *, keep: Number, window: Number = None) -> Value:
        """The strengths of the keys that each query may attend to, of which only the `keep` strongest are kept.

        strength: that of each key and head. window: as in `attention`.
        """
        made = _pairs(q.rows, *strength.axes, batched=True)
        return self.step("strongest", "", (strength, q, k), made, keep=keep, causal=True, window=window)

    def select(self, scores: Value, k: Value, top_k: Number) -> None:
        """Selects the `top_k` keys of each query with the highest scores, for this layer and those that share it."""
        self.record("select", "", (scores, k), top_k=top_k, causal=True)

    def selected(self, q: Value, *keys: Value) -> tuple[Value, ...]:
        """The mask of the keys that were selected last, in this layer or a lower one, and the keys that are read:
        where one token is decoded, only the selected ones.
        """
        made = _pairs(q.rows, fixed=True, batched=True), *map(_read_of, keys)
        self.record("selected", "", (q, *keys), made, causal=True)
        return made

    def select_blocks(self, scores: Value, k: Value, block: Number, blocks: Number) -> Value:
        """The mask of the `blocks` blocks of `block` keys with the highest scores, for each query and head."""
        made = _pairs(scores.rows, *scores.axes, fixed=True, batched=True)
        return self.step("select_blocks", "", (scores, k), made, block=block, blocks=blocks)

    def only_selected(self, mask: Value, *keys: Value, block: Number, blocks: Number) -> tuple[Value, ...]:
        """The mask of `select_blocks` and the keys and values that are read: where one token is decoded, only those of
        the selected blocks.
        """
        made = Value(mask.rows, mask.axes, fixed=True), *map(_read_of, keys)
        self.record("only_selected", "", (mask, *keys), made, block=block, blocks=blocks)
        return made

    def joint_softmax(
        self,
        q: Value,
        v: Value,
        *scores: Value,
        cap: float | None = None,
        window: Number = None,
        sinks: bool = False,
        selection: Value | None = None,
    ) -> Value:
        """One softmax over the scores of a token's own sequence, which are masked, and other scores.

        q, v: the queries, and the values of a token's own sequence.
        cap, window, sinks: as in `attention`. selection: the mask of the other scores, none by default.
        """
        ins = (*scores, q, v) if selection is None else (*scores, q, v, selection)
        how = {"cap": cap, "causal": True, "window": window, "sinks": sinks, "parts": len(scores)}
        return self.step("joint_softmax", "", ins, Value(q.rows, q.axes[:1]), **how)

    def weighted(self, weights: Value, values: Value) -> Value:
        """The sum of values with their weights, of which `weights` may have more for other values."""
        return self.step("weighted", "", (weights, values), Value(weights.rows, (*weights.axes, values.axes[-1])))

    # --- entries of several rows each ---------------------------------------------------------------------------------

    def windows(self, x: Value, rate: Axis) -> Value:
        """The rows of x in whole windows of `rate` rows."""
        from ..workload.derived_rows import Blocks

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
        return self.step("whole_entries", "", (q, entries), _pairs(q.rows, fixed=True), rate=rate)

    def choose_entries(self, scores: Value, weights: Value, mask: Value, top_k: Number) -> Value:
        """The `top_k` entries of each query with the highest scores: those of its heads, with these weights."""
        made = _pairs(weights.rows, fixed=True, batched=True)
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

    # --- relative positions ------------------------------------------------------------------------------------------

    def alibi(self, q: Value, k: Value) -> Value:
        """ALiBi's penalty for each head, query and key, computed once in a pass."""
        return self.step("alibi", "", (q, k), _pairs(q.rows, q.axes[0], fixed=True))

    def distance_bias(self, table: Value, q: Value) -> Value:
        """T5's bias: for each query and each token so far, the row of a table for the bucket of their distance."""
        made = _pairs(q.rows, *table.axes)
        return self.step("distance_bias", "", (table, q), made, causal=self.causal)

    def sinusoids(self, x: Value, distances: Rows, *axes: Axis | Beside, once: bool = False) -> Value:
        """Sines and cosines of distances, in x's precision. once: whether a pass keeps them, not only their angles."""
        return self.step("sinusoids", "", (x,), Value(distances, axes, fixed=True), once=once)

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

    def shift(self, x: Value, state: str) -> Value:
        """The previous row of each row; before the first row, that of an earlier pass, which the state of that name
        keeps, or zeros.
        """
        return self.step("shift", "", (x,), Value(x.rows, x.axes), state=state)

    def scan(self, kind: str, *ins: Value, axes: Shape) -> Value:
        """An elementwise recurrence along the rows, which is not a module. kind: which recurrence it is."""
        return self.step("scan", "", ins, Value(ins[0].rows, axes), kind=kind)

    def complement(self, x: Value) -> Value:
        """1 − x, of a share."""
        return self.step("complement", "", (x,), Value(x.rows, x.axes, fixed=x.fixed))

    def delayed(self, x: Value, first: Value) -> Value:
        """The previous row of each row. first: what is before the first row."""
        return self.step("delayed", "", (x, first), Value(x.rows, x.axes))

    def dropout(self, x: Value) -> Value:
        """Marks a place where published models apply dropout in training."""
        return self.step("dropout", "", (x,), Value(x.rows, x.axes))

    def rope(self, x: Value, spec: Any, *, back: bool = False, every: Number = None) -> Value:
        """RoPE. spec: the rotated dimensions and their angles; layers with equal specs share the cos and sin tables.

        back: whether it is undone, false by default.
        every: the number of positions from one row to the next; by default rows are tokens.
        """
        return self.step("rope", "", (x,), Value(x.rows, x.axes), spec=spec, back=back, every=every)

    def split(self, x: Value, *shapes: Shape) -> tuple[Value, ...]:
        """Views of parts of one storage, which lie side by side along the last axis."""
        parts = tuple(x.seen(*shape) for shape in shapes)
        self.record("split", "", (x,), parts)
        return parts

    def take(self, x: Value, *axes: Axis | Beside) -> Value:
        """A view of a part of x's first axis: of one index, if the axes have it no more, else of several."""
        return self.step("take", "", (x,), x.seen(*axes))

    def flat(self, x: Value) -> Value:
        """x with all of its axes as one: a copy where they are not stored in this order."""
        return self.step("flat", "", (x,), Value(x.rows, (Beside((x.axes,)),), fixed=x.fixed))

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

    def in_format_of(self, x: Value, value: Value) -> Value:
        """A value in the number format of x."""
        return self.step("in_format_of", "", (x, value), Value(value.rows, value.axes, fixed=value.fixed))

    def cross_entropy(self, logits: Value) -> Value:
        return self.step("cross_entropy", "", (logits,), Value(logits.rows, ()))


def _with_more(rows: Rows, more: Number) -> Rows:
    """Rows with more rows before their first."""
    from ..workload.derived_rows import WithMore

    return WithMore(of=rows, more=more)


def _read_of(keys: Value) -> Value:
    """The keys or values, of which some may not be read."""
    made = keys.seen(*keys.axes)
    made.once = keys.once
    return made


def _pairs(of: Rows, *axes: Axis | Beside, fixed: bool = False, batched: bool = False) -> Value:
    """A value for each query and key of these rows. batched: whether each sequence has its own; false by default."""
    from ..workload.derived_rows import QueryKeyPairs

    of = of.of if isinstance(of, QueryKeyPairs) else of
    return Value(QueryKeyPairs(of=of, batched=batched), axes, fixed=fixed)

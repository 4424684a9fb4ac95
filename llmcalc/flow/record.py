"""The recorder: a part tells it what it computes, verb by verb, as its forward runs, and it keeps a program of steps.

Every verb takes values and gives values; its `name` is the module that holds the verb's weights. What a step costs is
an op of the package, made of the axes of what it reads and gives. Nothing here asks for a workload, a phase, a dtype or
a framework, and no part asks for the size of anything but an axis of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from .. import ops
from ..algebra import Number, same
from ..ops.base import Op
from ..run.rows import ONCE, TOKENS, Routed, Rows
from .axis import Axis, Beside, Shape, extent
from .program import Alternatives, Scope, Step
from .tree import Node, Role
from .value import Value, Weight


class Normed(Protocol):
    """A norm's spec: which of weight and bias it has."""

    weight: bool

    @property
    def has_bias(self) -> bool: ...


class Recordable(Protocol):
    """A part that can be recorded: what it counts under, where its formula is from, and its flow."""

    kind: ClassVar[str]

    def source(self) -> str: ...

    @property
    def flow(self) -> Callable[..., Value]: ...


class Flow:
    """What parts write into.

    causal: whether a token of the stack that is being recorded sees only the tokens before it.
    memory: the encoder's output that the stack may attend to; None where there is none.
    """

    def __init__(self, name: str = "model", causal: bool = True, memory: Value | None = None) -> None:
        self.root = self.here = Scope(name, {})
        self.causal, self.memory = causal, memory
        self.memo: dict[Any, Any] = {}
        self._whole = False

    # --- places ------------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, *, whole: bool = False, **about: Any) -> Iterator[Scope]:
        """Everything inside is of the module `name`.

        whole: everything inside counts under it, whatever its own kind. about: what its node says of itself.
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
        **more: Any,
    ) -> Value:
        """A part of its own, under a name.

        nth: which of several equal parts in a list it is; the tree shows them as one node where the first stands.
        more: what its flow takes besides x.
        """
        which: dict[str, Any] = {} if nth is None else {"indices": (nth,)}
        with self.scope(name, kind=kind or part.kind, source=part.source(), role=role, **which) as scope:
            scope.nth = nth
            return part.flow(self, x, **more)

    def layers(
        self,
        x: Value,
        run: Callable[[Value], Value],
        repeat: Number,
        which: Sequence[int] | None,
        name: str = "layers",
        **about: Any,
    ) -> Value:
        """`repeat` equal layers, recorded once: what one gives is what the next one takes."""
        with self.scope(name, repeat=repeat, indices=which, **about) as scope:
            scope.takes, scope.gives = x, run(x)
        return scope.gives

    def side_by_side(
        self, name: str, over: Axis, x: Value, run: Callable[[Value], Value], *, split: bool = False, **about: Any
    ) -> Value:
        """As many equal modules as `over` is long, recorded once: their outputs stand side by side along that axis.

        split: each of them reads its own part of x along x's first axis, in place of all of x.
        """
        which = range(over.size) if isinstance(over.size, int) else None
        with self.scope(name, repeat=over.size, indices=which, **about):
            one = run(x.seen(*x.axes[1:]) if split else x)
        return self.step("stack", "", (one,), Value(one.rows, (over, *one.axes)), over=over)

    def alternatives(self, **branches: Callable[[], Value]) -> Value:
        """Several ways to compute one value, by the name of the form; the first runs where no other does.

        What is given back is the value of the first; each branch's scope knows its own.
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
        """Everything inside is a stack of its own: none of what other layers have handed over is seen there."""
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
        """Elements of a shape."""
        return extent(shape)

    def node(self) -> Node:
        """The program seen from above."""
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
        """One step, with all that it makes."""
        if weight is not None:
            weight.made = True
        self.here.items.append(Step(verb, name, ins, outs, op, weight, how, self._about(about) if about else None))

    def step(self, verb: str, name: str, ins: tuple[Value, ...], out: Value, **what: Any) -> Value:
        """One step that makes one value, which is given back."""
        self.record(verb, name, ins, (out,), **what)
        return out

    # --- maps with weights -------------------------------------------------------------------------------------------

    def linear(
        self,
        name: str,
        x: Value,
        *out: Axis | Beside,
        bias: bool = False,
        weight: Weight | None = None,
        rows: Rows | None = None,
        beside: Value | None = None,
        **about: Any,
    ) -> Value:
        """y = x·Wᵀ + b.

        weight: one that other steps have as well; the first step that takes it makes it, and all others are tied.
        rows: of x that are mapped, where they are not all or others.
        beside: a value of another sequence that the same map reads too; its rows stand after those of x.
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
        return self.step("linear", name, ins, Value(seen, out), op=op, weight=weight, about=about, bias=bias)

    def absorb(self, name: str, x: Value, weight: Weight, *out: Axis | Beside) -> Value:
        """A part of a weight on the other side of a product, head by head: q·Wᵀ in place of W·c (DeepSeek-V2, §2.1.2).

        Its steps together cost what the map itself costs for as many rows; the first of them, which has its name,
        stands for all.
        """
        made = Value(x.rows, (x.axes[0], *out))
        if not name:
            return self.step("absorb", "", (x,), made, weight=weight)
        op = ops.Linear(self.n(weight.ins), self.n(weight.out), rows=x.rows)
        return self.step("absorb", name, (x,), made, op=op, weight=weight)

    def blocks(self, name: str, x: Value, blocks: Axis, *out: Axis | Beside, bias: bool = False, **about: Any) -> Value:
        """Linear maps side by side, each from its part of x to its part of the output."""
        op = ops.BlockLinear(blocks.size, x.width, self.n(out), bias, x.rows)
        weight = Weight(name, (blocks, *out), x.axes)
        return self.step("blocks", name, (x,), Value(x.rows, out), op=op, weight=weight, about=about, bias=bias)

    def experts(
        self, name: str, x: Value, experts: Axis, top_k: Number, *out: Axis | Beside, bias: bool = False, **about: Any
    ) -> Value:
        """Each row through `top_k` of the experts' maps: a routed row is one of the `top_k` of its token."""
        rows = x.rows.of if isinstance(x.rows, Routed) else x.rows
        op = ops.ExpertLinear(experts.size, top_k, x.width, self.n(out), bias, rows)
        weight = Weight(name, (experts, *out), x.axes)
        how = {"bias": bias, "experts": experts, "top_k": top_k}
        return self.step("experts", name, (x,), Value(x.rows, out), op=op, weight=weight, about=about, **how)

    def table(
        self, name: str, rows: Axis, *dim: Axis | Beside, of: Rows = TOKENS, **about: Any
    ) -> tuple[Value, Weight]:
        """A look-up for each of the rows `of`. The weight is given back for another step that is tied to it."""
        weight = Weight(name, dim, (rows,))
        op = ops.Embedding(rows.size, self.n(dim))
        return self.step("table", name, (), Value(of, dim), op=op, weight=weight, about=about), weight

    def look_up(self, weight: Weight, of: Rows = TOKENS) -> Value:
        """Another look-up in a table that is already there."""
        weight.tied = True
        return self.step("table", "", (), Value(of, weight.out), weight=weight)

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
        """over: the axes that are normed together, all of x's by default. heads: each has weights of its own.

        groups: the parts of x that are normed apart, under one row of weights for all of x.
        """
        over = x.axes if over is None else over
        held = over if heads is None else (heads, *over)
        width = x.width if held is x.axes else self.n(held)
        op = ops.Norm(width, spec.weight, spec.has_bias, None if heads is None else heads.size)
        return self.step(
            "norm", name, (x,), Value(x.rows, x.axes), op=op, about=about, spec=spec, over=over, groups=groups
        )

    def normalized(self, x: Value, spec: Normed, over: Shape | None = None) -> Value:
        """A norm that holds nothing here, and is no node: it has no weights, or those of a norm elsewhere."""
        return self.step("norm", "", (x,), Value(x.rows, x.axes), spec=spec, over=x.axes if over is None else over)

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
        """A convolution along the rows. groups, padding, overlap: as of `ops.Conv1d`. rows: of the output."""
        seen = x.rows if rows is None else rows
        op = ops.Conv1d(x.width, self.n(out), kernel, groups, bias, padding, x.fixed, overlap, seen)
        how = {"kernel": kernel, "groups": groups, "bias": bias}
        weight = Weight(name, out, x.axes)
        return self.step("conv", name, (x,), Value(seen, out), op=op, weight=weight, about=about, **how)

    def vector(
        self, name: str, *axes: Axis | Beside, heads: Axis | None = None, many: Number = None, **about: Any
    ) -> Value:
        """Trained numbers that are added or multiplied by. heads, many: as `heads` and `rows` of `ops.Weight`."""
        op = ops.Weight(self.n(axes), None if heads is None else heads.size, many)
        return self.step("vector", name, (), Value(ONCE, axes), op=op, about=about)

    def buffer(self, name: str, *axes: Axis | Beside, **about: Any) -> Value:
        """Numbers that a checkpoint holds and that are not trained."""
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
        **limits: Any,
    ) -> Value:
        """softmax(q·kᵀ)·v. Axes are (heads, size). Keys and values have heads of their own, which a kernel may repeat.

        That keys are of another sequence is seen from their rows. core: the op, where it is none of the usual ones.
        limits: `window`, `chunk`, `selected`, and what else the op takes. cap: of the scores. bias: the value that is
        added to them.
        """
        heads, *qk = q.axes
        value = v.axes[1:]
        cross = None if k.rows is q.rows or k.rows == q.rows else k.rows
        op = core(heads.size, self.n(tuple(qk)), self.n(value), causal, rows=q.rows, keys=cross, **limits)
        out = Value(q.rows, (heads, *value))
        ins = (q, k, v) if bias is None else (q, k, v, bias)
        kv_heads = (k if k.once is None else k.once).axes[0]
        how = {"causal": causal, "cap": cap, "biased": bias is not None, **limits}
        how |= {"kv_heads": kv_heads, "cache": k.cache}
        return self.step("attention", name, ins, out, op=op, about=about, **how)

    def cache(self, name: str, kind: str, *kept: Value, limit: Number = None) -> tuple[Value, ...]:
        """What is kept of each row for later passes. Gives back all that this pass can see: kept rows and its own."""
        width = kept[0].width
        for value in kept[1:]:
            width = width + value.width
        seen = tuple(Value(v.rows, v.axes, v, v.fixed, name) for v in kept)
        parts = tuple((self.n(v.axes[:-1]), self.n(v.axes[-1:])) for v in kept)
        op = ops.KVCache(width, kind, limit, kept[0].rows, parts)
        self.record("cache", name, kept, seen, op=op, limit=limit)
        return seen

    def state(self, name: str, *axes: Axis | Beside, kind: str = "recurrent_state", bits: Number = None) -> None:
        """What is kept of each sequence, however many rows there were."""
        self.record("state", name, (), op=ops.State(self.n(axes), kind, bits))

    def core(
        self, name: str, op: Op, *ins: Value, axes: Shape, rows: Rows | None = None, about: dict[str, Any] | None = None
    ) -> Value:
        """A product, a scan or a look-up that is an op of its own: the op says what it costs."""
        made = Value(ins[0].rows if rows is None else rows, axes)
        return self.step("core", name, ins, made, op=op, about=about)

    # --- experts -----------------------------------------------------------------------------------------------------

    def dispatch(self, x: Value, scores: Value, experts: Axis, top_k: Number) -> Value:
        """The rows of each token, one for each expert that it goes to."""
        rows = Routed(of=x.rows, top_k=top_k)
        return self.step("dispatch", "", (x, scores), Value(rows, x.axes), experts=experts, top_k=top_k)

    def combine(self, routed: Value, scores: Value, experts: Axis, top_k: Number) -> Value:
        """The weighted sum of the outputs of a token's experts."""
        made = Value(scores.rows, routed.axes)
        return self.step("combine", "", (routed, scores), made, experts=experts, top_k=top_k)

    # --- element by element: no op, but memory -----------------------------------------------------------------------

    def act(self, x: Value, name: str) -> Value:
        return self.step("act", "", (x,), Value(x.rows, x.axes), kind=name)

    def mul(self, a: Value, b: Value, axes: Shape | None = None) -> Value:
        """axes: of the product, where they are not those of a."""
        made = Value(a.rows, a.axes if axes is None else axes, fixed=a.fixed and b.fixed)
        return self.step("mul", "", (a, b), made)

    def add(self, a: Value, b: Value) -> Value:
        return self.step("add", "", (a, b), Value(a.rows, a.axes, fixed=a.fixed and b.fixed))

    def scale(self, x: Value, by: float) -> Value:
        """x times a number that is not trained."""
        return self.step("scale", "", (x,), Value(x.rows, x.axes, fixed=x.fixed), by=by)

    def sum(self, x: Value, *axes: Axis | Beside) -> Value:
        """The sum over all of x's axes but these."""
        return self.step("sum", "", (x,), Value(x.rows, axes))

    def shift(self, x: Value) -> Value:
        """The row before each row; before the first one what an earlier pass kept, or zeros."""
        return self.step("shift", "", (x,), Value(x.rows, x.axes))

    def scan(self, *ins: Value, axes: Shape) -> Value:
        """A recurrence along the rows that is element by element, and no module of its own."""
        return self.step("scan", "", ins, Value(ins[0].rows, axes))

    def dropout(self, x: Value) -> Value:
        """Marks where published models drop elements while they are trained."""
        return self.step("dropout", "", (x,), Value(x.rows, x.axes))

    def rope(self, x: Value, spec: Any) -> Value:
        """Turned by position. spec: how much of a head, by which angles; layers with equal ones share the tables."""
        return self.step("rope", "", (x,), Value(x.rows, x.axes), spec=spec)

    def split(self, x: Value, *shapes: Shape) -> tuple[Value, ...]:
        """Views of one storage."""
        return tuple(x.seen(*shape) for shape in shapes)

    def cat(self, *xs: Value, axes: Shape, rows: Rows | None = None) -> Value:
        """Side by side along their axes; along their rows where `rows` are given."""
        cache = xs[0].cache if all(x.cache == xs[0].cache for x in xs) else ""
        return self.step("cat", "", xs, Value(xs[0].rows if rows is None else rows, axes, cache=cache))

    def merge(self, x: Value, rows: Rows, *neighbours: Axis, mean: bool = False) -> Value:
        """Neighbouring rows made one: side by side under further axes, or their mean."""
        axes = x.axes if mean else (*neighbours, *x.axes)
        return self.step("merge", "", (x,), Value(rows, axes), neighbours=neighbours, mean=mean)

    def repeat(self, x: Value, heads: Axis) -> Value:
        """Keys or values once for each query head; the same where there are as many already."""
        if same(x.axes[0].size, heads.size):
            return x
        made = Value(x.rows, (heads, *x.axes[1:]), cache=x.cache)
        made.once = x
        return self.step("repeat", "", (x,), made)

    def elementwise(self, name: str, *ins: Value, axes: Shape, rows: Rows | None = None, **about: Any) -> Value:
        """A module without parameters or products that the tree shows."""
        made = Value(ins[0].rows if rows is None else rows, axes)
        return self.step("elementwise", name, ins, made, op=ops.Elementwise(), about=about)

    def cross_entropy(self, logits: Value) -> Value:
        return self.step("cross_entropy", "", (logits,), Value(logits.rows, ()))

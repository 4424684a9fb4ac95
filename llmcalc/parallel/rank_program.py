"""The program of one rank: recorded with that rank's sizes, and of a pipeline's stage with its layers alone.

A layout divides axes by their names. What a part computes with a divided axis is that rank's share of it, so
parameters, operations, caches and kernels of a rank follow from its program as those of the model from the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from .. import ops
from ..algebra import Number
from ..errors import InputError
from ..flow.axis import Axis, Beside, Shape
from ..flow.program import Alternatives, Item, Scope, Step
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..flow.verbs.weights import Index
from ..model import ModelSpec
from ..optional import TOWERS
from ..workload.rows import TOKENS, Rows
from .divisors import divisors
from .layout import Chunks, Coordinates, ImpossibleLayout, Layout, Stage

TENSOR = frozenset({"heads", "kv_heads", "key_heads", "ffn", "vocab", "groups", "inner"})
"""The axes that tensor parallelism divides."""

FIELDS = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_heads": "linear_num_key_heads",
    "ffn": "intermediate_size",
    "expert_ffn": "the intermediate_size of an expert",
    "vocab": "vocab_size",
    "experts": "num_experts",
    "groups": "n_groups",
}
"""What an axis is called in a configuration."""

NO_OPERATIONS = frozenset({"hold", "keep", "enter", "leave", "also"})
"""Verbs of the recorder that compute nothing."""

SUMS = frozenset({"linear", "experts", "again"})
"""Verbs whose output is a sum over the axes of its input."""

NEAR_ROWS = frozenset({"vocab"})
"""Axes whose last shard may be shorter than the others."""


@dataclass(frozen=True, slots=True)
class Shard(Axis):
    """One rank's part of an axis. whole: how long the axis is. degree: ranks that divide it."""

    whole: Number = None
    degree: int = 1


def axes_of(shape: Shape) -> Iterator[Axis]:
    """Every axis of a shape, also those that lie side by side in one."""
    for axis in shape:
        if isinstance(axis, Beside):
            for part in axis.parts:
                yield from axes_of(part)
        else:
            yield axis


def is_divided(shape: Shape) -> bool:
    """Whether ranks hold different parts of the shape."""
    return any(isinstance(axis, Shard) and axis.degree > 1 for axis in axes_of(shape))


@dataclass(frozen=True)
class Shares:
    """How long axes are on one rank. at: where the rank stands."""

    layout: Layout
    at: Coordinates

    @property
    def divides(self) -> bool:
        """Whether any axis but that of the experts is divided."""
        return self.layout.tp > 1 or self.layout.expert_tp > 1

    def degree(self, name: str) -> int:
        """The ranks that divide the axes of that name; of experts, only where they are weights."""
        if name == "expert_ffn":
            return self.layout.expert_tp
        return self.layout.tp if name in TENSOR else 1

    def axis(self, axis: Axis) -> Axis:
        """The rank's part of an axis. Raises `InputError` for a size that the layout does not divide."""
        if isinstance(axis, Shard):
            return axis
        where = self.at.etp if axis.name == "expert_ffn" else self.at.tp
        return self.part(axis, self.degree(axis.name), where)

    def experts(self, axis: Axis) -> Axis:
        """The rank's experts; of heads with weights of their own, the rank's heads."""
        if isinstance(axis, Shard) or axis.name != "experts":
            return self.axis(axis)
        return self.part(axis, self.layout.ep, self.at.ep)

    def part(self, axis: Axis, degree: int, where: int) -> Axis:
        """Part `where` of `degree` parts of an axis."""
        size = axis.size
        if degree == 1 or not isinstance(size, int):
            return axis if degree == 1 else Shard(axis.name, size / degree, size, degree)
        if axis.name in NEAR_ROWS:
            each = -(-size // degree)
            return Shard(axis.name, max(0, min(each, size - each * where)), size, degree)
        if axis.name == "kv_heads" and degree > size and degree % size == 0:
            return Shard(axis.name, 1, size, degree)
        if size % degree:
            option = {"experts": "--ep", "expert_ffn": "--etp"}.get(axis.name, "--tp")
            fit = ", ".join(map(str, divisors(size, 4 * degree)))
            raise ImpossibleLayout(
                f"{option} {degree}: does not divide {FIELDS.get(axis.name, axis.name)} {size}; expected one of {fit}"
            )
        return Shard(axis.name, size // degree, size, degree)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def _shared(verb: Verb) -> Verb:
    """The verb with the rank's part of each axis that it is given."""

    @wraps(verb)
    def recorded(self: RankFlow, *args: Any, **more: Any) -> Any:
        own = self.own
        return verb(self, *map(own, args), **{name: own(value) for name, value in more.items()})

    return recorded  # type: ignore[return-value]


class RankFlow(Flow):
    """Records the operations of parts with the sizes of one rank.

    shares: how long its axes are. stage: the layers that it has; None for all.
    entry: the value that enters the first of its layers, which another rank sends. exit: the output of the last.
    """

    def __init__(self, shares: Shares, stage: Stage | Chunks | None) -> None:
        super().__init__()
        self.shares, self.stage = shares, stage
        self.exit: Value | None = None
        self.inside = range(0)  # which items of the program are its layers
        self.path: list[str] = []  # the names of the modules around what is recorded
        self.tables: dict[int, Weight] = {}  # the embedding that is looked up → the one that this stage has

    def own(self, given: Any) -> Any:
        """The rank's part of an axis, of axes side by side, of each axis of a shape, or of a weight; anything else as
        it is.
        """
        if isinstance(given, Axis):
            return self.shares.axis(given)
        if isinstance(given, Beside):
            return Beside(tuple(self.own(part) for part in given.parts), given.name)
        if type(given) is tuple and given and all(isinstance(one, (Axis, Beside)) for one in given):
            return tuple(map(self.own, given))
        if isinstance(given, Weight):
            given.out = tuple(map(self.own, given.out))
        return given

    @contextmanager
    def scope(self, name: str, *, whole: bool = False, **about: Any) -> Iterator[Scope]:
        self.path.append(name)
        try:
            with super().scope(name, whole=whole, **about) as scope:
                yield scope
        finally:
            self.path.pop()

    def record(
        self,
        verb: str,
        name: str,
        ins: tuple[Value, ...],
        outs: tuple[Value, ...] = (),
        op: ops.Op | None = None,
        weight: Weight | None = None,
        about: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if self.shares.divides and verb not in NO_OPERATIONS:
            self._check(verb, name, ins, outs)
        super().record(verb, name, ins, outs, op, weight, about, **options)

    def _check(self, verb: str, name: str, ins: tuple[Value, ...], outs: tuple[Value, ...]) -> None:
        """Raises `InputError` for a step of which a rank does not compute just its part."""
        degrees: dict[str, int] = {}
        for value in (*ins, *outs):
            if value.of is not None and is_divided(value.axes) != is_divided(value.storage.axes):
                raise self._refused(verb, name, "groups values across the parts of ranks")
            for axis in axes_of(value.axes):
                degree = axis.degree if isinstance(axis, Shard) else 1
                if degrees.setdefault(axis.name, degree) != degree:
                    axes = FIELDS.get(axis.name, axis.name)
                    raise self._refused(verb, name, f"joins a part of {axes} with all of it")
        if verb in SUMS and ins and is_divided(ins[0].axes) and is_divided(outs[0].axes):
            raise self._refused(verb, name, "reads divided values and makes divided ones")

    def _refused(self, verb: str, name: str, why: str) -> InputError:
        where = ".".join(one for one in (*self.path, name or verb) if one)
        return InputError(f"--tp {self.shares.layout.tp}: {where} {why}, which is not modelled; expected --tp 1")

    def repeat(self, x: Value, heads: Axis, tiled: bool = False) -> Value:
        heads = self.own(heads)
        if is_divided(x.axes[:1]) != is_divided((heads,)):
            raise self._refused("repeat", "", "repeats undivided heads for divided ones")
        return super().repeat(x, heads, tiled)

    def absorb(self, name: str, x: Value, weight: Weight, *out: Axis | Beside) -> Value:
        return super().absorb(name, x, self.own(weight), *map(self.own, out))

    def linear(self, name: str, x: Value, *out: Axis | Beside, **options: Any) -> Value:
        if options.get("weight") is not None:
            given, options["weight"] = options["weight"], self._here(options["weight"])
            if options["weight"] is not given and not options["weight"].made:
                options["weight"].out, options["weight"].ins = (
                    given.ins,
                    given.out,
                )  # the copy is this layer's own matrix
        return super().linear(name, x, *map(self.own, out), **options)

    def look_up(self, weight: Weight, of: Rows = TOKENS, by: Index = "ids") -> Value:
        here = self._here(weight)
        if not here.made:
            self._copied(here)
        return super().look_up(here, of, by)

    def _copied(self, table: Weight) -> None:
        """Records this stage's copy of the embedding, before the module that looks it up."""
        reader = self.root.items[-1]
        about = {} if isinstance(reader, Alternatives) else {"optional": reader.about.get("optional", "")}
        op = ops.Embedding(table.ins[0].size, self.n(table.out))
        self.root.items.insert(
            -1, Step("unread_table", table.name, (), (), op, table, None, {"kind": "embedding", **about})
        )
        table.made = True

    def table(self, name: str, rows: Axis, *dim: Axis | Beside, **options: Any) -> tuple[Value, Weight]:
        made, weight = super().table(name, self.own(rows), *map(self.own, dim), **options)
        if not self.path:
            self.tables[id(weight)] = weight
        return made, weight

    def _here(self, weight: Weight) -> Weight:
        """The weight itself; of a table that only the first stage has, this stage's copy of it."""
        self.own(weight)
        if self.stage is None or self.stage.first or id(weight) not in self.tables:
            return weight
        if self.tables[id(weight)] is weight:
            self.tables[id(weight)] = Weight(weight.name, weight.out, weight.ins)
        return self.tables[id(weight)]

    def experts(self, name: str, x: Value, experts: Axis, top_k: Number, *out: Axis | Beside, **options: Any) -> Value:
        return super().experts(name, x, self.shares.experts(experts), top_k, *map(self.own, out), **options)

    def layers(
        self,
        x: Value,
        run: Callable[[Value], Value],
        repeat: Number,
        which: Sequence[int] | None,
        name: str = "layers",
        **about: Any,
    ) -> Value:
        if self.stage is None or name != "layers" or self.path:
            return super().layers(x, run, repeat, which, name, **about)
        every = range(repeat) if which is None else which
        kept = [i for i in every if i in self.stage.layers]
        start = self.inside.start if self.inside.stop else len(self.root.items)
        if self.entry is None and not self.stage.first:
            x = self.entry = Value(x.rows, x.axes)
        self.exit = super().layers(x, run, len(kept), kept, name, **about) if kept else x
        self.inside = range(start, len(self.root.items))
        return self.exit

    def cut(self) -> None:
        """Leaves what this stage runs: the first alone has the embedding and the encoders of images and audio, whose
        output goes among the embeddings; the last alone has what reads the output of the layers.

        Raises `InputError` where it reads what only another stage has.
        """
        if self.stage is None or (self.stage.first and self.stage.last):
            return
        start, end = self.inside.start, self.inside.stop
        before, inside, after = self.root.items[:start], self.root.items[start:end], self.root.items[end:]
        towers = [item for item in after if isinstance(item, Scope) and item.about.get("optional") == TOWERS.name]
        before = [*before, *towers] if self.stage.first else [item for item in before if _is_frame(item)]
        after = [item for item in after if item not in towers and (self.stage.last or _is_frame(item))]
        self.root.items = [*before, *inside, *after]
        if not self.stage.last:
            self.result = self.exit
        made = {id(scope.after) for scope in self.root.scopes() if scope.after is not None} | {id(self.entry)}
        for step in self.root.steps(idle=False):
            for value in step.ins:
                if id(value.storage) not in made and not value.storage.fixed and step.verb not in NO_OPERATIONS:
                    raise InputError(
                        f"--pp {self.shares.layout.pp}: {step.name or step.verb} in layers after the first stage reads "
                        "what only the first stage computes, which is not modelled; expected --pp 1"
                    )
            made |= {id(value.storage) for value in step.outs}


WITH_AXES = (
    "unread_table",
    "norm",
    "normalized",
    "conv",
    "vector",
    "buffer",
    "state",
    "core",
    "per_group",
    "blocks",
    "split",
    "take",
    "flat",
    "copies",
    "cat",
    "sum",
    "joint_softmax",
    "sinusoids",
    "added_sinusoids",
)
"""The verbs of the recorder that parts give axes to, besides those above."""

for _name in WITH_AXES:
    setattr(RankFlow, _name, _shared(getattr(Flow, _name)))


def _is_frame(item: Item) -> bool:
    """Whether it says only where a function of the forward pass begins or ends."""
    return isinstance(item, Step) and item.verb in ("enter", "leave")


def rank_program(spec: ModelSpec, layout: Layout, rank: int = 0, stage: Stage | Chunks | None = None) -> RankFlow:
    """The program of one rank of a layout.

    stage: the layers that it has, with what comes before the first and after the last; by default all of the model.
    Raises `InputError` for sizes that the layout does not divide, and for what is not modelled.
    """
    if stage is not None and not (stage.first and stage.last) and (why := undivided(spec)):
        raise InputError(f"--pp {layout.pp}: {why}; expected --pp 1")
    flow = RankFlow(Shares(layout, layout.at(rank)), stage)
    spec.program(flow)
    flow.cut()
    return flow


def undivided(spec: ModelSpec) -> str:
    """Why no pipeline of a model is modelled, because layers need what is on another stage; empty if one is."""
    if spec.kind == "encoder-decoder":
        return "a pipeline of an encoder-decoder is not modelled"
    if spec.main.shared_layers:
        return "a pipeline of layers that share parameters is not modelled"
    borrowed = next(filter(None, (layer.borrows() for layer in spec.main.kinds().values())), "")
    if borrowed:
        return f"a pipeline of layers with {borrowed}, which need what is computed outside of them, is not modelled"
    return ""

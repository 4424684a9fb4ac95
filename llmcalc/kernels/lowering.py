"""Runs the steps of a program on tensors without values: what all profiles share.

A profile has a method per verb, `do_<verb>`. This class calls them in the program's order, knows the tensor of every
value, and lets go of it after the last step that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..components.stack import BASE, SHARED
from ..errors import InputError
from ..flow.axis import extent
from ..flow.program import NEVER_RUN, Alternatives, Item, Scope, Step
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..run.rows import ONCE
from ..run.sight import Sight
from .aten import Aten
from .autograd import Graph
from .checkpoint import Run, checkpoint, reentrant
from .layout import Shape, count
from .tensor import Dtype, Tensor, empty


class Unsupported(InputError):
    """A step that a profile has no kernels for."""


@dataclass
class Frame:
    """A module that runs.

    named: the variables of its forward pass, which keep their tensors until it returns.
    turn: for a layer, its index; owner: the index of the layer whose parameters it uses.
    """

    scope: Scope
    named: dict[str, Any] = field(default_factory=dict)
    turn: int | None = None
    owner: int | None = None


@dataclass(frozen=True)
class Recompute:
    """What runs again in the backward pass instead of being kept.

    layers: whether whole layers do, every `every`-th of them. core: whether the attention scores do, by themselves.
    reentrant: the older form, which runs all of it again. kept: operations in a layer whose results are kept.
    """

    layers: bool = False
    every: int = 1
    core: bool = False
    reentrant: bool = False
    kept: frozenset[str] = frozenset()


NONE = Recompute()


class Lowering:
    """Lowers programs for one run.

    sight: the run. graph: where operations are recorded. dtype: the type of weights and activations.
    trained: whether weights get gradients.
    recompute: what runs again in the backward pass, nothing by default.
    """

    def __init__(
        self, graph: Graph, sight: Sight, dtype: Dtype, trained: bool = True, recompute: Recompute = NONE
    ) -> None:
        self.graph, self.sight, self.dtype, self.trained = graph, sight, dtype, trained
        self.recompute = recompute
        self.t = Aten(graph)
        self.values: dict[int, Tensor] = {}
        self.given: dict[Any, Tensor] = {}
        self.weights: dict[Any, Tensor] = {}
        self.frames: list[Frame] = []
        self.memo: dict[Any, Any] = {}
        self.last: dict[int, int] = {}
        self.kept: set[int] = set()
        self.reads: dict[int, set[int]] = {}
        self.makes: dict[int, set[int]] = {}
        self.bound: dict[int, list[int]] = {}

    # --- tensors of values ------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> Shape:
        """The shape of a value: [batch, rows, *axes], or [*axes] of a value without rows."""
        sizes = tuple(axis.size for axis in value.axes)
        return sizes if value.rows is ONCE else (self.sight.batch, self.sight.new(value.rows), *sizes)

    def get(self, value: Value) -> Tensor:
        """The tensor of a value, in the value's shape; of other rows, the first of them."""
        found = self.values.get(id(value))
        if found is not None:
            return found
        if value.of is None:
            raise self.unsupported("reads a value that no step has made")
        x, shape = self.get(value.of), self.shape(value)
        if value.rows != value.of.rows and x.shape[1] != shape[1]:
            x = self.t.slice(x, shape[1], 1)
        return self.t.reshape(x, shape)

    def flat(self, value: Value) -> Tensor:
        """The tensor of a value as [batch, rows, width]; a copy where its heads are not stored side by side."""
        x = self.get(value)
        return x if len(value.axes) == 1 else self.t.flatten(x, len(x.shape) - len(value.axes))

    def set(self, value: Value, tensor: Tensor) -> None:
        """Binds a value to its tensor, under the value's own axes."""
        shape = self.shape(value)
        if tensor.shape != shape and type(tensor.count) is int and tensor.count != count(shape):
            shape = tensor.shape  # all sequences share it
        self.values[id(value)] = self.t.reshape(tensor, shape)
        self.bound.setdefault(id(value.storage), []).append(id(value))

    def forget(self, root: Value) -> None:
        """Lets go of a value's tensor, and of all views of it."""
        for key in (id(root), *self.bound.pop(id(root), ())):
            self.values.pop(key, None)

    # --- parameters -------------------------------------------------------------------------------------------------

    def weight(self, name: str, shape: Shape) -> Tensor:
        """The parameter of that name in the module that runs, made when it is first needed."""
        return self._parameter(self._key(name), shape)

    def buffer(self, name: str, shape: Shape) -> Tensor:
        """The buffer of that name in the module that runs."""
        return self._parameter(self._key(name), shape, trained=False)

    def matrix(self, step: Step) -> Tensor:
        """The weight [out, in] of a linear layer, which may be that of another step."""
        assert step.weight is not None
        return self._of(step.weight, step.name, (extent(step.weight.out), extent(step.weight.ins)))

    def table(self, step: Step) -> Tensor:
        """The weight [rows, width] of a table, which may be that of another step."""
        assert step.weight is not None
        return self._of(step.weight, step.name, (extent(step.weight.ins), extent(step.weight.out)))

    def _of(self, weight: Weight, name: str, shape: Shape) -> Tensor:
        """A parameter that several steps may use: of the layer that runs, or else of the model."""
        outside = ("", id(weight))
        if outside in self.weights:
            return self.weights[outside]
        made = self.weight(f"{name}.weight", shape)
        if all(frame.turn is None for frame in self.frames):
            self.weights[outside] = made
        return made

    def _parameter(self, key: Any, shape: Shape, trained: bool = True) -> Tensor:
        if key not in self.weights:
            self.graph.meter.kind, before = "weights", self.graph.meter.kind
            self.weights[key] = empty(self.graph.meter, shape, self.dtype, leaf=self.trained and trained)
            self.graph.meter.kind = before
        return self.weights[key]

    def _key(self, name: str) -> tuple[Any, ...]:
        """A parameter's path, with the indices of the layers that own it."""
        path: list[Any] = []
        for i, frame in enumerate(self.frames):
            path.append(frame.scope.name)
            if frame.scope.nth is not None:
                path.append(frame.scope.nth)
            if frame.turn is not None:
                shared = any(above.scope.about.get("role") == "shared" for above in self.frames[i:])
                path.append(frame.owner if shared else frame.turn)
        return (*path, name)

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The path of the module that runs."""
        return ".".join(frame.scope.name for frame in self.frames[1:] if frame.scope.name)

    def unsupported(self, what: str, name: str = "") -> Unsupported:
        """The error of a step that has no kernels here. name: the step's own name."""
        return Unsupported(f"{'.'.join(filter(None, (self.path, name)))}: {what}")

    def run(self, program: Flow) -> Tensor:
        """Runs a program from its first step to its last. Returns its result; nothing else is named any more."""
        assert program.result is not None
        self.last, self.kept = last_readers(program.root)
        self._look_through(program.root)
        self.module(Frame(program.root))
        out = self.get(program.result)
        self.values.clear()
        self.bound.clear()
        self.memo = {}
        return out

    def _look_through(self, root: Scope) -> None:
        """Finds which values each layer reads from outside, and which it makes."""
        if not self.recompute.layers:
            return
        for scope in root.scopes():
            if scope.takes is not None:
                steps = list(scope.steps(idle=False))
                made = {id(out) for step in steps for out in step.outs}
                read = {id(value.storage) for step in steps for value in step.ins}
                self.makes[id(scope)], self.reads[id(scope)] = made, read - made - {id(scope.takes.storage)}

    def module(self, frame: Frame) -> None:
        """Runs a module. Its caller holds the input that it is given until it returns."""
        scope = frame.scope
        argument = None if scope.reads is None else self.get(scope.reads)
        self.frames.append(frame)
        outside, self.graph.place = self.graph.place, self.path
        memo, self.memo = self.memo, {} if scope.apart else self.memo
        with self.graph.no_grad() if scope.about.get("role") == "no_grad" else nullcontext():
            self.items(scope.items)
        self.memo = memo
        self.frames.pop()
        self.graph.place = outside
        del argument

    def items(self, items: Sequence[Item]) -> None:
        kinds: list[Scope] = []
        for item in items:
            if isinstance(item, Scope) and (item.about.get("optional") or item.about.get("role") in NEVER_RUN):
                continue
            if isinstance(item, Scope) and item.takes is not None:
                kinds.append(item)
                continue
            if kinds:
                self.layers(kinds)
                kinds = []
            if isinstance(item, Alternatives):
                self.alternatives(item)
            elif isinstance(item, Step):
                self.step(item)
            else:
                self.module(Frame(item))
        if kinds:
            self.layers(kinds)

    def alternatives(self, item: Alternatives) -> None:
        """Runs the form that this run takes; its result stands for that of the first."""
        first, *_ = item.branches.values()
        branch = item.branches[self.sight.execution.form(item.branches, self.sight.workload)]
        self.items(branch.items)
        assert first.gives is not None
        assert branch.gives is not None
        if branch is not first:
            self.set(first.gives, self.get(branch.gives))
            self.forget(branch.gives.storage)

    def step(self, step: Step) -> None:
        run: Callable[[Step], None] | None = getattr(self, f"do_{step.verb}", None)
        if run is None:
            raise self.unsupported(f"no kernels for '{step.verb}'", step.name)
        run(step)
        for value in step.ins:
            if self.last.get(id(value.storage)) == id(step):
                self.forget(value.storage)

    def layers(self, kinds: list[Scope]) -> None:
        """Runs layers of these kinds in their order in the model; each reads the output of the one below it."""
        first, final = kinds[0], kinds[-1]
        assert first.takes is not None
        assert final.gives is not None
        now = self.get(first.takes)
        self.forget(first.takes.storage)
        owners: dict[str, int] = {}
        for turn, kind in enumerate(in_order(kinds)):
            assert kind.takes is not None
            assert kind.gives is not None
            label = kind.about.get("label", "").removesuffix(SHARED)
            owner = owners.setdefault("" if label == BASE else label, turn)
            below = now
            del now
            now = self.layer(Frame(kind, turn=turn, owner=owner), below)
            del below  # the stack's frame names a layer's input while the layer runs
        self.values[id(final.gives)] = now

    def layer(self, frame: Frame, x: Tensor) -> Tensor:
        """Runs one layer on the output of the one below it."""
        scope, what = frame.scope, self.recompute
        takes, gives = scope.takes, scope.gives
        assert takes is not None
        assert gives is not None
        if frame.turn is None or not what.layers or frame.turn % what.every:
            self.values[id(takes)] = x
            self.module(frame)
            out = self.get(gives)
            self.values.pop(id(takes), None)  # it may be a view of a value from outside
            self.forget(takes.storage)
            self.forget(gives.storage)
            return out
        return self.checkpointed(self.replayed(frame, takes, gives), [x])

    def replayed(self, frame: Frame, takes: Value, gives: Value) -> Run:
        """A function that runs a layer, now or again in the backward pass: what it reads beside x stays as it is now."""
        above, memo = [Frame(one.scope, turn=one.turn, owner=one.owner) for one in self.frames], self.memo
        outside = {key: self.values[key] for key in self.reads[id(frame.scope)] if key in self.values}
        made = (self.kept & self.makes[id(frame.scope)]) - {id(gives.storage)}

        def run(arguments: Sequence[Tensor]) -> Tensor:
            before = self.values, self.bound, self.frames, self.memo
            self.values, self.bound, self.frames, self.memo = {**outside, id(takes): arguments[0]}, {}, list(above), memo
            try:
                self.module(Frame(frame.scope, turn=frame.turn, owner=frame.owner))
                out = self.get(gives)
                before[0].update({key: self.values[key] for key in made if key in self.values})
                return out
            finally:
                self.values, self.bound, self.frames, self.memo = before

        return run

    def checkpointed(self, run: Run, arguments: Sequence[Tensor]) -> Tensor:
        """Runs a part whose activations are computed again in the backward pass."""
        if self.recompute.reentrant:
            return reentrant(self.graph, run, arguments)
        return checkpoint(self.graph, run, arguments, kept=self.recompute.kept)

    # --- steps that need no kernels ---------------------------------------------------------------------------------

    def do_hold(self, step: Step) -> None:
        for name, value in zip(step.how["names"], step.ins, strict=True):
            self.frames[-1].named[name] = self.get(value)

    def do_dropout(self, step: Step) -> None:
        self.set(step.outs[0], self.get(step.ins[0]))


def in_order(kinds: list[Scope]) -> Iterator[Scope]:
    """The kind of each layer, from the bottom."""
    if len(kinds) == 1 and kinds[0].about.get("indices") is None:
        for _ in range(kinds[0].about["repeat"]):
            yield kinds[0]
        return
    at = {i: kind for kind in kinds for i in kind.about["indices"]}
    for i in sorted(at):
        yield at[i]


def last_readers(root: Scope) -> tuple[dict[int, int], set[int]]:
    """Value that owns a storage → the last step that reads it; and values that other layers read, which have none."""
    last: dict[int, int] = {}
    made: dict[int, Scope] = {}
    kept: set[int] = set()

    def visit(items: Sequence[Item], layer: Scope) -> None:
        for item in items:
            if isinstance(item, Alternatives):
                for branch in item.branches.values():
                    visit(branch.items, layer)
                    if branch.gives is not None:
                        kept.add(id(branch.gives.storage))
            elif isinstance(item, Scope):
                visit(item.items, item if item.takes is not None else layer)
                if item.gives is not None:  # the next layer, or what follows the last, reads it
                    kept.add(id(item.gives.storage))
            else:
                for value in item.ins:
                    key = id(value.storage)
                    last[key] = id(item)
                    if made.get(key, layer) is not layer:
                        kept.add(key)
                for value in item.outs:
                    made[id(value)] = layer

    visit(root.items, root)
    return {key: step for key, step in last.items() if key not in kept}, kept

"""Runs the steps of a program on tensors without values: the base of all profiles.

A profile has a method per verb, `do_<verb>`. This class calls them in the program's order, knows the tensor of every
value, and drops it after the last step that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..algebra import is_zero
from ..components.base import BY_TORCH
from ..components.stack import BASE, SHARED
from ..errors import InputError
from ..evidence import compared
from ..flow.axis import extent
from ..flow.program import NEVER_RUN, Alternatives, Item, Scope, Step
from ..flow.record import Flow
from ..flow.tree import Use
from ..flow.value import Value, Weight
from ..ops import State
from ..workload.derived_rows import QueryKeyPairs
from ..workload.recompute import NONE, Recompute, check_nodes
from ..workload.rows import ONCE, SOURCE, TOKENS, Rows
from ..workload.run_config import RunConfig
from .adapters import Adapters
from .aten import Aten
from .autograd import Graph
from .checkpoint import Run, checkpoint, reentrant
from .choices import EAGER, Choices
from .layer_pattern import layer_kinds, shortened
from .liveness import among, is_a_layer, last_readers, modules_below, unused, view_of
from .meter import NoMeter, Place
from .strides import Shape, count
from .tensor import FLOAT32, INT64, Dtype, Tensor, counted_as, empty

Path: TypeAlias = tuple[Any, ...]
"""The path of a module or parameter, with the indices of layers."""

ParameterSet: TypeAlias = tuple[dict[Path, Tensor], set[Path]]
"""Path → parameter or buffer of a program, in the order in which the program reads them; the paths of the buffers."""

INPUTS = (TOKENS, SOURCE)
"""The rows for which the model takes token ids."""


ENTRY = "entry"
"""The key of the input of a pipeline stage that lacks the first layers."""


class Unsupported(InputError):
    """Raised for a step for which a profile has no kernels."""


@dataclass
class Frame:
    """The call of a module.

    scope: the module.
    local_tensors: the variables of its forward pass, which keep their tensors until it returns.
    callers: the variables of outer functions while an inner function of the module runs.
    layer_index: index of the layer; None for other modules.
    owner: index of the layer that owns the parameters; None for other modules.
    """

    scope: Scope
    local_tensors: dict[str, Any] = field(default_factory=dict)
    callers: list[dict[str, Any]] = field(default_factory=list)
    layer_index: int | None = None
    owner: int | None = None


@dataclass(frozen=True)
class RecomputedModule:
    """A module inside a layer that is recomputed in the backward pass.

    reads: the values that its steps read from outside, except its argument.
    escapes: ids of the values that it computes for steps outside of it, except its result.
    lasts: the values that no later step reads.
    """

    reads: tuple[Value, ...]
    escapes: frozenset[int]
    lasts: tuple[Value, ...]


class Lowering:
    """Runs programs with the kernels of a profile.

    graph: the graph that records operations.
    run_config: the run.
    dtype: number format of weights and activations.
    trained: whether weights get gradients, default true.
    recompute: the modules that are recomputed in the backward pass, default none.
    include: names of the optional parts that run (`llmcalc.optional`), default none.
    choices: the kernels that run, default the eager ones.
    adapters: the adapters that are trained instead of the weights; default none.
    inputs: the program's inputs by their rows, and the input of a pipeline stage.
    result: the value that the program computes.
    head: input and weight of the output layer, if the loss computes the logits.
    logits: logits of the last run that the training loop still refers to.
    further: additional results of the last run, such as the logits of multi-token-prediction modules.
    buffers: paths of the buffers that are read.
    known_parameters: the parameters of the program, found by `prepare` or set from an equal program; None before.
    store: path → the tensors of a cache or state between passes; None if no pass follows.
    continues: whether an earlier pass has filled the store.
    absent: ids of the values that such a pass does not compute.
    prepares: whether the run only finds the parameters.
    skipped: whether the first pass has left out a step, and with it parameters.
    run_only: stack → repeats of its pattern that run; stacks that are not there run whole.
    first_layer_index: layers of the model before the first layer of the program.
    paged: whether caches lie in a pool that exists before the passes and is not counted.
    shared_values: ids of the values that several layers read.
    recomputed_modules: id of a scope → its recomputation, for modules that are recomputed by themselves.
    """

    def __init__(
        self,
        graph: Graph,
        run_config: RunConfig,
        dtype: Dtype,
        trained: bool = True,
        recompute: Recompute = NONE,
        include: frozenset[str] = frozenset(),
        choices: Choices = EAGER,
        adapters: Adapters | None = None,
    ) -> None:
        self.graph, self.run_config, self.dtype, self.trained = graph, run_config, dtype, trained
        self.recompute, self.include, self.choices, self.adapters = recompute, include, choices, adapters
        graph.compiled = choices.compiled
        self.t = Aten(graph)
        self.values: dict[int, Tensor] = {}
        self.inputs: dict[Any, Tensor] = {}
        self.weights: dict[Any, Tensor] = {}
        self.buffers: set[Path] = set()
        self.known_parameters: ParameterSet | None = None
        self.frames: list[Frame] = []
        self.memo: dict[Any, Any] = {}
        self.further: list[Tensor] = []
        self.result: Value | None = None
        self.head: tuple[Tensor, Tensor | None] | None = None
        self.logits: list[Tensor] = []
        self.store: dict[Path, tuple[Tensor, ...]] | None = None
        self.continues = self.paged = self.prepares = self.skipped = self.carries = False
        self.absent: set[int] = set()
        self.run_only: dict[int, int] = {}
        self.after_first: Scope | None = None
        self.stack_number = self.first_layer_index = 0
        self.last: dict[int, int] = {}
        self.shared_values: set[int] = set()
        self.stacks: dict[int, list[Tensor]] = {}
        self.modules: dict[int, tuple[Path, str]] = {}
        self.reads: dict[int, set[int]] = {}
        self.makes: dict[int, set[int]] = {}
        self.recomputed_modules: dict[int, RecomputedModule] = {}
        self.bound: dict[int, list[int]] = {}
        self.unused: list[Tensor] = []

    # --- tensors of values ------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> Shape:
        """The shape of a value: [batch, rows, *axes]; [rows, *axes] if all sequences share it, [*axes] without rows."""
        sizes = tuple(axis.size for axis in value.axes)
        if value.rows is ONCE:
            return sizes
        rows = self.run_config.new(value.rows)
        return (self.run_config.batch, rows, *sizes) if value.rows.batched else (rows, *sizes)

    def get(self, value: Value) -> Tensor:
        """The tensor of a value, in the value's shape; if the tensor has more rows, the first rows."""
        tensor = self.values.get(id(value))
        if tensor is not None:
            return tensor
        if value.fixed and value.rows in self.inputs:  # audio frames
            return self.inputs[value.rows]
        if value.of is None:
            raise self.unsupported("reads a value that no step has made")
        x, shape = self.get(value.of), self.shape(value)
        if isinstance(x.count, int) and x.count != count(shape) and x.shape[1] != shape[1]:
            if value.rows == value.of.rows:  # rows of earlier passes are there too
                shape = (shape[0], x.shape[1], *shape[2:])
            else:
                x = self.t.slice(x, shape[1], 1)
        return self.t.reshape(x, shape)

    def missing(self, value: Value) -> bool:
        """Whether this pass does not compute a value, because an earlier pass has cached its results."""
        if id(value) in self.values:
            return False
        return id(value) in self.absent or (value.of is not None and self.missing(value.of))

    def follows(self, rows: Rows) -> bool:
        """Whether an earlier pass has computed all of these rows: those of an encoder, which runs once."""
        return self.continues and rows is not ONCE and is_zero(rows.new(self.run_config.workload.with_(phase="decode")))

    def take(self, step: Step, value: Value) -> Tensor:
        """The tensor of a value. If no later step reads the value, it is dropped now instead of after the step."""
        x = self.get(value)
        if self.last.get(id(value.storage)) == id(step):
            self.forget(value.storage)
        return x

    def flat(self, value: Value, step: Step | None = None) -> Tensor:
        """The tensor of a value as [batch, rows, width]; a copy where its heads are not stored side by side.

        step: the step that reads it, as in `take`; default none.
        """
        x = self.get(value) if step is None else self.take(step, value)
        return x if len(value.axes) == 1 else self.t.flatten(x, len(x.shape) - len(value.axes))

    def set(self, value: Value, tensor: Tensor) -> None:
        """Binds a value to its tensor, under the value's own axes."""
        if isinstance(value.rows, QueryKeyPairs):
            self.bind(value, tensor)
            return
        shape = self.shape(value)
        if tensor.shape != shape and isinstance(tensor.count, int) and tensor.count != count(shape):
            shape = tensor.shape  # all sequences share it
        self.bind(value, self.t.reshape(tensor, shape))

    def bind(self, value: Value, tensor: Tensor) -> None:
        """Binds a value to a tensor of another shape, such as the scores of pairs of a query and a key."""
        self.values[id(value)] = tensor
        self.bound.setdefault(id(value.storage), []).append(id(value))

    def forget(self, root: Value) -> None:
        """Drops a value's tensor and all views of it."""
        for key in (id(root), *self.bound.pop(id(root), ())):
            self.values.pop(key, None)

    def span(self, tokens: Any) -> Tensor:
        """The positions of the tokens, computed once in a pass."""
        key = ("span", tokens)
        if key not in self.memo:
            self.memo[key] = self.t.new((tokens,), INT64)
        span: Tensor = self.memo[key]
        return span

    # --- parameters -------------------------------------------------------------------------------------------------

    def weight(self, name: str, shape: Shape, module: Path | None = None) -> Tensor:
        """The parameter of that name in a module, by default the one that runs, allocated at its first use."""
        key = (*(self.module_path() if module is None else module), name)
        return self.parameter(key, shape, self.dtype, self.adapters is None)

    def buffer(self, name: str, shape: Shape, indices: bool = False) -> Tensor:
        """The buffer of that name in the current module. indices: whether its elements are integers."""
        key = (*self.module_path(), name)
        self.buffers.add(key)
        return self.parameter(key, shape, INT64 if indices else self.dtype, trained=False)

    def matrix(self, step: Step) -> Tensor:
        """The weight [out, in] of a linear layer. Another step may share it."""
        assert step.weight is not None
        shape = extent(step.weight.out), extent(step.weight.ins)
        lending_layer = step.options.get("lent")
        if lending_layer:
            return self.weight(f"{lending_layer}.weight", shape, self.module_path(levels_up=1))
        return self._shared_weight(step.weight, step.name, shape)

    def table(self, step: Step) -> Tensor:
        """The weight [rows, width] of an embedding table. Another step may share it."""
        assert step.weight is not None
        return self._shared_weight(step.weight, step.name, (extent(step.weight.ins), extent(step.weight.out)))

    def _shared_weight(self, weight: Weight, name: str, shape: Shape) -> Tensor:
        """A parameter that several steps may share, of the current layer or of the model."""
        outside = ("", id(weight))
        inside = (*outside, *(frame.layer_index for frame in self.frames if frame.layer_index is not None))
        for key in (outside, inside):
            if key in self.weights:
                return self.weights[key]
        self.weights[inside] = parameter = self.weight(f"{name}.weight", shape)
        return parameter

    def parameter(self, key: Path, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        """The parameter or buffer of that path, allocated at its first use."""
        if key not in self.weights:
            with counted_as(self.graph.meter, "weights"):
                self.weights[key] = empty(self.graph.meter, shape, dtype, leaf=self.trained and trained)
        return self.weights[key]

    def module_path(self, levels_up: int = 0) -> Path:
        """The path of the module that runs, with the indices of the layers that own its parameters.

        above: of which module around it instead, 1 for the nearest.
        """
        path: list[Any] = []
        for i, frame in enumerate(self.frames[: len(self.frames) - levels_up]):
            path.append(frame.scope.name)
            if frame.scope.nth is not None:
                path.append(frame.scope.nth)
            if frame.layer_index is not None:
                shared = any(levels_up.scope.about.get("role") == "shared" for levels_up in self.frames[i:])
                is_per_layer = any(levels_up.scope.per_layer for levels_up in self.frames[i:])
                path.append(frame.owner if shared and not is_per_layer else frame.layer_index)
        return tuple(path)

    def never_read(self, name: str, parameter_use: Use) -> list[Tensor]:
        """The weights and buffers of a node that no pass runs. name: the node's name."""
        meter, trained = self.graph.meter, self.trained and self.adapters is None
        is_leaf = trained and not getattr(parameter_use.op, "frozen", False)
        tensors = [empty(meter, tensor.shape, self.dtype, leaf=is_leaf) for tensor in parameter_use.tensors()]
        return (
            [*tensors, empty(meter, (parameter_use.buffers(),), self.dtype)]
            if parameter_use.has("buffers")
            else tensors
        )

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def cache_path(self) -> Path:
        """The path of the current module, with the indices of all layers around it, as a key of `store`."""
        return tuple(part for frame in self.frames for part in (frame.scope.name, frame.scope.nth, frame.layer_index))

    @property
    def path(self) -> str:
        """The path of the current module."""
        return ".".join(frame.scope.name for frame in self.frames[1:] if frame.scope.name)

    @property
    def place(self) -> Place:
        """The place of new storages."""
        layer_index = next((frame.layer_index for frame in self.frames if frame.layer_index is not None), -1)
        return Place(self.graph.meter.place.phase, layer_index, self.path)

    def unsupported(self, reason: str, name: str = "") -> Unsupported:
        """The error of a step that has no kernels here. name: the step's own name."""
        return Unsupported(f"{'.'.join(filter(None, (self.path, name)))}: {reason}")

    def run(self, program: Flow) -> Tensor:
        """Runs a program, drops all tensors but its result, and returns that."""
        assert program.result is not None
        self.result, self.continues = program.result, bool(self.store)
        self.absent = set()
        self.last, self.shared_values = last_readers(program.root, self.branch, self.skips)
        self.last.pop(id(program.result.storage), None)
        self.further = []
        self._find_dataflow(program.root)
        self.stack_number = 0
        if program.entry is not None:
            self.bind(program.entry, self.inputs.pop(ENTRY))
        self.module(Frame(program.root))
        out = self.get(program.result)
        self.values.clear()
        self.bound.clear()
        self.memo = {}
        return out

    def prepare(self, program: Flow) -> None:
        """Allocates all parameters, in the order in which the program uses them."""
        if self.known_parameters is None:
            self.known_parameters = self._find_parameters(program)
        parameters: dict[int, Tensor] = {}
        weights, self.buffers = self.known_parameters
        with counted_as(self.graph.meter, "weights"):
            for key, weight in weights.items():  # a shared parameter has several keys
                if id(weight) not in parameters:
                    self.graph.meter.parameter_path = key
                    parameters[id(weight)] = self.made_parameter(key, weight)
                self.weights[key] = parameters[id(weight)]
            self.graph.meter.parameter_path = None
        self.prepare_unread(program)

    def _find_parameters(self, program: Flow) -> ParameterSet:
        """The parameters of a program, from a run on tensors without memory."""
        dry = type(self)(
            Graph(NoMeter()),
            self.run_config,
            self.dtype,
            self.trained,
            include=self.include,
            choices=self.choices,
            adapters=self.adapters,
        )
        dry.graph.enabled, dry.run_only, dry.prepares, dry.first_layer_index = (
            False,
            self.run_only,
            True,
            self.first_layer_index,
        )
        dry.inputs = {
            rows: empty(dry.graph.meter, (self.run_config.batch, self.run_config.new(rows)), INT64) for rows in INPUTS
        }
        dry.take_frames(program)
        dry.enter(program)
        dry.run(program)
        return dry.weights, dry.buffers

    def made_parameter(self, key: Path, template: Tensor) -> Tensor:
        """Allocates a parameter or buffer. like: a tensor of its shape and number format."""
        return empty(self.graph.meter, template.shape, template.dtype, leaf=template.leaf)

    def prepare_unread(self, program: Flow) -> None:
        """Allocates the parameters that no pass reads."""
        with counted_as(self.graph.meter, "weights"):
            for name, parameter_use, times in unused(program.root):
                self.unused += [weight for _ in range(times) for weight in self.never_read(name, parameter_use)]

    def take_frames(self, program: Flow) -> None:
        """Allocates the input frames of a program, if it has any, stored as [batch, values per frame, frames]."""
        if program.frames is not None:
            batch, rows, values = self.shape(program.frames)
            frames = self.graph.new((batch, values, rows), self.dtype)
            self.inputs[program.frames.rows] = self.t.transpose(frames, 1, 2)

    def enter(self, program: Flow) -> Tensor | None:
        """Allocates the input of a pipeline stage that lacks the first layers; None for other programs."""
        if program.entry is None:
            return None
        with counted_as(self.graph.meter, "communication"):
            stage_input = empty(self.graph.meter, self.shape(program.entry), self.dtype, leaf=self.trained)
        self.inputs[ENTRY] = stage_input
        return stage_input

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        """Every trained parameter once, with its path."""
        return [(key, weight) for key, weight in self.weights.items() if weight.leaf and key[0] != ""]

    def _find_dataflow(self, root: Scope) -> None:
        """Finds the values that each layer reads from outside and computes, and the modules that are recomputed."""
        if self.recompute.nodes:
            self._find_recomputed_modules(root)
        if not self.recompute.layers:
            return
        self.carries = any(step.verb == "carry" and len(step.ins) > 1 for step in root.steps(idle=False))
        for scope in root.scopes():
            if scope.takes is not None:
                steps = list(scope.steps(idle=False))
                outputs = {id(out) for step in steps for out in step.outs}
                storages_read = {id(value.storage) for step in steps for value in step.ins}
                layer_input_ids = {id(scope.takes.storage)} - self.shared_values
                self.makes[id(scope)], self.reads[id(scope)] = outputs, storages_read - outputs - layer_input_ids

    def _find_recomputed_modules(self, root: Scope) -> None:
        """Finds the modules that are recomputed by themselves. Raises `InputError` for an unknown module."""
        modules = [module for scope in root.scopes() if is_a_layer(scope) for module in modules_below(scope)]
        check_nodes(self.recompute.nodes, (path for path, _ in modules))
        for path, scope in modules:
            if path in self.recompute.nodes:
                self.recomputed_modules[id(scope)] = self._recomputed_module(scope, root)

    def _recomputed_module(self, scope: Scope, root: Scope) -> RecomputedModule:
        steps = list(scope.steps(idle=False))
        inside, outputs = {id(step) for step in steps}, {id(out) for step in steps for out in step.outs}
        values_read = {id(value): value for step in steps for value in step.ins if among(value, outputs) is None}
        outside_reads = (value for step in root.steps(idle=False) if id(step) not in inside for value in step.ins)
        return RecomputedModule(
            tuple(value for value in values_read.values() if not view_of(value, scope.reads)),
            frozenset(among(value, outputs) or 0 for value in outside_reads) - {0, id(scope.gives)},
            tuple(value for value in values_read.values() if self.last.get(id(value.storage)) in inside),
        )

    def module(self, frame: Frame) -> None:
        """Runs a module. The caller refers to its input until it returns."""
        recomputed = self.recomputed_modules.get(id(frame.scope))
        if recomputed is None:
            self._module(frame)
        else:
            self._checkpointed_module(frame.scope, recomputed)

    def _checkpointed_module(self, scope: Scope, recomputed: RecomputedModule) -> None:
        """Runs a module that is recomputed by itself.

        The other tensors that it reads stay as they are now until the backward pass, as do those that all layers read,
        which the reference passes to every module.
        """
        assert scope.reads is not None
        assert scope.gives is not None
        module_input, module_output = scope.reads, scope.gives
        outer_frames, memo = self._frames_copy(), self.memo
        outside = {key: self.values[key] for key in self.shared_values if key in self.values}
        outside |= {
            id(bound): self.values[id(bound)] for value in recomputed.reads if (bound := self._bound(value)) is not None
        }

        def run(arguments: Sequence[Tensor]) -> Tensor:
            caller_state = self.values, self.bound, self.frames, self.memo
            self.values, self.bound = {**outside, id(module_input): arguments[0]}, {}
            self.frames, self.memo = list(outer_frames), memo
            try:
                self._module(Frame(scope))
                caller_state[0].update({key: self.values[key] for key in recomputed.escapes if key in self.values})
                return self.get(module_output)
            finally:
                self.values, self.bound, self.frames, self.memo = caller_state

        out = self.checkpointed(run, [self.get(module_input)])
        for value in recomputed.lasts:
            self.forget(value.storage)
        self.bind(module_output, out)

    def _bound(self, value: Value | None) -> Value | None:
        """The value itself or the nearest one it is a view of, whichever has a tensor."""
        while value is not None and id(value) not in self.values:
            value = value.of
        return value

    def _module(self, frame: Frame) -> None:
        scope = frame.scope
        argument = None if scope.reads is None else self.get(scope.reads)
        self.frames.append(frame)
        meter = self.graph.meter
        outer_place, meter.place = meter.place, self.place
        memo, self.memo = self.memo, {} if scope.apart else self.memo
        outer_values = set(self.values) if scope.apart else set()
        module_kernel = self.module_kernel(scope)
        with self.graph.no_grad() if scope.about.get("role") == "no_grad" else nullcontext():
            if module_kernel is None:
                self.items(scope.items)
            else:
                module_kernel()
        if scope.apart and scope.gives is not None:  # what its layers read goes with it
            for key in set(self.values) - outer_values - {id(scope.gives), id(scope.gives.storage)}:
                self.values.pop(key)
        self.memo = memo
        self.frames.pop()
        meter.place = outer_place
        del argument

    def module_kernel(self, scope: Scope) -> Callable[[], None] | None:
        """The kernel that runs a whole module; None where its steps run one by one."""
        return None

    def items(self, items: Sequence[Item]) -> None:
        layer_scopes: list[Scope] = []
        for item in items:
            if isinstance(item, Scope) and (self.skips(item) or self.has_run(item)):
                self._leave_out(item)
                continue
            if isinstance(item, Scope) and item.takes is not None:
                layer_scopes.append(item)
                continue
            if layer_scopes:
                self.layers(layer_scopes)
                layer_scopes = []
            if isinstance(item, Alternatives):
                self.alternatives(item)
            elif isinstance(item, Step):
                self.step(item)
            elif item.after is not None:
                self.after_first = item
            elif item.over is not None:
                self.side_by_side(item)
            else:
                self.module(Frame(item))
        if layer_scopes:
            self.layers(layer_scopes)

    def skips(self, scope: Scope) -> bool:
        """Whether a module does not run: an optional part that is not included, or one that never runs."""
        return scope.about.get("optional", "") not in {"", *self.include} or scope.about.get("role") in NEVER_RUN

    def has_run(self, scope: Scope) -> bool:
        """Whether a separate model, such as an encoder, has run in an earlier pass."""
        return scope.apart and scope.gives is not None and self.follows(scope.gives.rows)

    def _leave_out(self, scope: Scope) -> None:
        if scope.gives is not None:
            self.absent.add(id(scope.gives.storage))
        if not self.skips(scope):
            self.stack_number += self._count_stacks(scope)

    def _count_stacks(self, scope: Scope) -> int:
        """The number of stacks in a module."""
        stacks, in_stack = 0, False
        for item in scope.items:
            if isinstance(item, Scope) and self.skips(item):
                continue
            is_layer = isinstance(item, Scope) and item.takes is not None
            stacks += is_layer and not in_stack
            in_stack = is_layer
            if isinstance(item, Scope) and not is_layer:
                stacks += self._count_stacks(item)
        return stacks

    def branch(self, alternatives: Alternatives) -> Scope:
        """The alternative that this run uses."""
        return alternatives.branches[self.run_config.execution.form(alternatives.branches, self.run_config.workload)]

    def alternatives(self, item: Alternatives) -> None:
        """Runs one alternative, and binds its result to that of the first alternative."""
        first_branch, *_ = item.branches.values()
        branch = self.branch(item)
        self.items(branch.items)
        assert first_branch.gives is not None
        assert branch.gives is not None
        if branch is not first_branch:
            self.set(first_branch.gives, self.get(branch.gives))
            self.forget(branch.gives.storage)

    def step(self, step: Step) -> None:
        if (self.continues or self.absent) and self.needless(step):
            self.absent.update(map(id, step.outs))
            self.skipped = self.skipped or not self.continues
            self.release(step, step.ins)
            return
        run: Callable[[Step], None] | None = getattr(self, f"do_{step.verb}", None)
        if run is None:
            raise self.unsupported(f"no kernels for '{step.verb}'", step.name)
        run(step)
        self.release(step, step.ins)

    def needless(self, step: Step) -> bool:
        """Whether earlier passes have cached everything that a step's results are used for."""
        if step.verb in WITHOUT_NEW:
            return False
        if any(map(self.missing, step.ins)):
            return True
        return not step.ins and bool(step.outs) and all(self.follows(out.rows) for out in step.outs)

    def release(self, reader: Step | Scope, values: Iterable[Value]) -> None:
        """Drops the values that no later step reads."""
        for value in values:
            if self.last.get(id(value.storage)) == id(reader):
                self.forget(value.storage)

    def side_by_side(self, scope: Scope) -> None:
        """Runs equal modules one after the other. Their outputs wait in a list for the step that stacks them."""
        assert scope.over is not None
        assert scope.reads is not None
        assert scope.gives is not None
        outputs: list[Tensor] = []
        slices = None if scope.slice is None else self.t.unbind(self.get(scope.reads), 2)
        for i in range(scope.over.size):
            if slices is not None and scope.slice is not None:
                self.values[id(scope.slice)] = slices[i]
            self.module(Frame(scope, layer_index=i, owner=i))
            outputs.append(self.get(scope.gives))
            self.forget(scope.gives.storage)
        if scope.slice is not None:
            self.values.pop(id(scope.slice))
        self.stacks[id(scope.gives)] = outputs
        self.release(scope, (value for step in scope.steps() for value in step.ins))

    def layers(self, layer_scopes: list[Scope]) -> None:
        """Runs layers of these kinds in the model's order. Each reads the output of the one before it."""
        first_layer, last_layer = layer_scopes[0], layer_scopes[-1]
        assert first_layer.takes is not None
        assert last_layer.gives is not None
        hidden = self.get(first_layer.takes)
        self._leave(first_layer.takes)
        owners: dict[str, int] = {}
        layer_order = shortened(list(layer_kinds(layer_scopes)), self.run_only.get(self.stack_number))
        self.stack_number += 1
        module_after_first, self.after_first = self.after_first, None
        for layer_index, kind in enumerate(layer_order, self.first_layer_index):
            assert kind.takes is not None
            assert kind.gives is not None
            label = kind.about.get("label", "").removesuffix(SHARED)
            owner = owners.setdefault("" if label == BASE else label, layer_index)
            layer_input = hidden
            del hidden
            hidden = self.layer(Frame(kind, layer_index=layer_index, owner=owner), layer_input)
            if module_after_first is not None and layer_index == self.first_layer_index:
                hidden = self.changed(module_after_first, layer_input, hidden)
            del layer_input  # the stack's frame names a layer's input while the layer runs
        self.values[id(last_layer.gives)] = hidden

    def changed(self, scope: Scope, x: Tensor, y: Tensor) -> Tensor:
        """Runs a module right after a layer with input x and output y."""
        assert scope.reads is not None
        assert scope.after is not None
        assert scope.gives is not None
        self.values[id(scope.reads)], self.values[id(scope.after)] = x, y
        self.module(Frame(scope))
        out = self.get(scope.gives)
        for value in (scope.reads, scope.after):
            self.values.pop(id(value), None)
        self.forget(scope.gives.storage)
        return out

    def _frames_copy(self) -> list[Frame]:
        """The modules around the current one, without their variables."""
        return [Frame(frame.scope, layer_index=frame.layer_index, owner=frame.owner) for frame in self.frames]

    def _leave(self, layer_input: Value) -> None:
        """Drops the input of a layer; if other layers read it too, only the layer's own reference to it."""
        self.values.pop(id(layer_input), None)
        if id(layer_input.storage) not in self.shared_values:
            self.forget(layer_input.storage)

    def layer(self, frame: Frame, x: Tensor) -> Tensor:
        """Runs one layer on the output of the one before it."""
        scope, recompute = frame.scope, self.recompute
        layer_input, layer_output = scope.takes, scope.gives
        assert layer_input is not None
        assert layer_output is not None
        if (
            frame.layer_index is None
            or not recompute.layers
            or frame.layer_index % recompute.every
            or not is_a_layer(scope)
        ):
            self.values[id(layer_input)] = x
            self.module(frame)
            out = self.get(layer_output)
            self._leave(layer_input)
            self.forget(layer_output.storage)
            return out
        return self.checkpointed(self.replayed(frame, layer_input, layer_output), [x, *self.carried.values()])

    @property
    def carried(self) -> dict[Any, Tensor]:
        """The tensors that a layer passes to the next one beside its output (`Flow.carry`)."""
        return {key: tensor for key, tensor in self.memo.items() if self.carries and key[0] == CARRIED}

    def carry(self, tensors: dict[Any, Tensor]) -> None:
        """Replaces the carried tensors."""
        for key in self.carried:
            del self.memo[key]
        self.memo.update(tensors)

    def replayed(self, frame: Frame, layer_input: Value, layer_output: Value) -> Run:
        """A function that runs a layer, now or in the backward pass.

        Its arguments are x and the tensors that the layer before carries. The other tensors that it reads stay as they
        are now.
        """
        outer_frames, memo = (
            self._frames_copy(),
            self.memo,
        )
        carried_keys, is_first_run = tuple(self.carried), True
        outside = {key: self.values[key] for key in self.reads[id(frame.scope)] if key in self.values}
        shared_outputs = (self.shared_values & self.makes[id(frame.scope)]) - {id(layer_output.storage)}

        def run(arguments: Sequence[Tensor]) -> Tensor:
            nonlocal is_first_run
            caller_state = self.values, self.bound, self.frames, self.memo
            self.values, self.bound, self.frames, self.memo = (
                {**outside, id(layer_input): arguments[0]},
                {},
                list(outer_frames),
                memo,
            )
            carried_now, is_recomputed, is_first_run = self.carried, not is_first_run, False
            self.carry(dict(zip(carried_keys, arguments[1:], strict=True)))
            try:
                self.module(Frame(frame.scope, layer_index=frame.layer_index, owner=frame.owner))
                out = self.get(layer_output)
                caller_state[0].update({key: self.values[key] for key in shared_outputs if key in self.values})
                return out
            finally:
                if is_recomputed:
                    self.carry(carried_now)
                self.values, self.bound, self.frames, self.memo = caller_state

        return run

    def checkpointed(self, run: Run, arguments: Sequence[Tensor]) -> Tensor:
        """Runs a part whose activations are recomputed in the backward pass."""
        if self.recompute.reentrant:
            return reentrant(self.graph, run, arguments)
        recompute, compiled = self.recompute, self.choices.compiled
        return checkpoint(
            self.graph, run, arguments, kept_operations=recompute.kept, alternate=recompute.alternate, compiled=compiled
        )

    # --- what passes keep for later ones ----------------------------------------------------------------------------

    def cached(self, name: str) -> tuple[Tensor, ...] | None:
        """The tensors that earlier passes have cached under that name in the current module; None in the first pass."""
        return None if self.store is None else self.store.get((*self.cache_path, name))

    def keep(self, name: str, *tensors: Tensor) -> None:
        """Caches copies of these tensors for later passes."""
        if self.store is None:
            return
        with counted_as(self.graph.meter, "cache"):
            copies = tuple(self.in_pool(x.shape, x.dtype) if self.paged else self.t.copy(x) for x in tensors)
            self.store[(*self.cache_path, name)] = copies

    def states(self, step: Step, *shapes: Shape) -> tuple[Tensor, ...]:
        """The tensors of a recurrent state, allocated in the first pass and written in place; none without a store.

        shapes: shapes for one sequence.
        """
        if self.store is None:
            return ()
        cached = self.cached(step.name)
        if cached is not None:
            return cached
        assert isinstance(step.op, State)
        assert sum(map(count, shapes)) == step.op.size, (shapes, step.op)
        dtype, batch = self.dtype if step.op.bits is None else FLOAT32, self.run_config.batch
        with counted_as(self.graph.meter, "cache"):
            make = self.in_pool if self.paged else self.graph.new
            states = tuple(make((batch, *shape), dtype) for shape in shapes)
        self.store[(*self.cache_path, step.name)] = states
        return states

    def in_pool(self, shape: Shape, dtype: Dtype) -> Tensor:
        """A tensor in the pool, which is not counted here."""
        return empty(NoMeter(), shape, dtype)

    def pooled(self, x: Tensor) -> bool:
        """Whether a tensor lies in the pool of a paged cache."""
        return self.paged and isinstance(x.storage.meter, NoMeter)

    # --- steps that need no kernels ---------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_hold(self, step: Step) -> None:
        frame = self.frames[-2 if step.options["outside"] else -1]
        for name, value in zip(step.options["names"], step.ins, strict=True):
            if not self.missing(value):
                frame.local_tensors[name] = self.get(value)

    @compared(BY_TORCH)
    def do_keep(self, step: Step) -> None:
        for name, value in zip(step.options["names"], step.ins, strict=True):
            self.memo[name] = self.get(value)

    @compared(BY_TORCH)
    def do_enter(self, step: Step) -> None:
        frame = self.frames[-1]
        frame.callers.append(frame.local_tensors)
        frame.local_tensors = {}

    @compared(BY_TORCH)
    def do_leave(self, step: Step) -> None:
        frame = self.frames[-1]
        frame.local_tensors = frame.callers.pop()

    @compared(BY_TORCH)
    def do_also(self, step: Step) -> None:
        self.further.append(self.get(step.ins[0]))

    @compared(BY_TORCH)
    def do_dropout(self, step: Step) -> None:
        self.set(step.outs[0], self.get(step.ins[0]))


CARRIED = "carried"
"""The first part of the keys in `Lowering.memo` of tensors that a layer passes to the next one."""

WITHOUT_NEW = frozenset({"cache", "resumed", "keep_entries", "hold", "keep"})
"""Verbs of steps that may read cached tensors instead of values of this pass."""

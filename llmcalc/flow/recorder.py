"""The base class that records modules, layers and values; methods for single operations are in `verbs/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from ..algebra import Number
from ..ops.base import Op
from .axis import Axis, Shape, element_count
from .program import AlternativeBranches, ModuleScope, Step
from .tree import Node, Role
from .value import Value, Weight


class Recordable(Protocol):
    """The interface that components need to be recorded: their kind, the source of their formula, and `flow`."""

    kind: ClassVar[str]

    @property
    def formula_source(self) -> str: ...

    @property
    def flow(self) -> Callable[..., Value]: ...


class Recorder:
    """Records the modules and layers of a model's components, and the operations in them.

    causal: whether the recorded stack is causal.
    encoder_output: the encoder's output that the stack may attend to; None without one.
    result: the value that the whole program computes.
    audio_frames: the frames of an audio signal that the program is given; None where it reads token ids alone.
    frames_by_row: whether the values of a frame are neighbours in memory, false by default.
    stage_input: the value that the program is given in the place of its first layers; None where it has all of them.
    position_table: the table of learned positions that was recorded last; None before any.
    dropouts: place → probability of dropout in training; empty for a model without dropout.
    streams: the residual streams of the recorded stack before they are merged; None without streams.
    has_output: whether the program goes on after the layers; true by default.
    """

    has_output = True

    def __init__(self, model_name: str = "model", causal: bool = True, encoder_output: Value | None = None) -> None:
        self.root: ModuleScope = ModuleScope(model_name, {})
        self.current_scope: ModuleScope = self.root
        self.causal: bool = causal
        self.encoder_output = encoder_output
        self.result: Value | None = None
        self.audio_frames: Value | None = None
        self.frames_by_row = False
        self.stage_input: Value | None = None
        self.position_table: Weight | None = None
        self.dropouts: Mapping[str, float] = {}
        self.layer_memo: dict[Any, Any] = {}
        self.streams: Value | None = None
        self._is_counted_whole = False

    @contextmanager
    def scope(self, scope_name: str, *, is_counted_whole: bool = False, **node_fields: Any) -> Iterator[ModuleScope]:
        """Records the operations in a `with` block as operations of the module `scope_name`.

        is_counted_whole: whether everything inside is counted under its kind. node_fields: fields of its node.
        """
        outer_scope, was_counted_whole = self.current_scope, self._is_counted_whole
        self.current_scope = ModuleScope(scope_name, self._node_fields(node_fields))
        outer_scope.items.append(self.current_scope)
        self._is_counted_whole = was_counted_whole or is_counted_whole
        try:
            yield self.current_scope
        finally:
            self.current_scope, self._is_counted_whole = outer_scope, was_counted_whole

    def part(
        self,
        part_name: str,
        part: Recordable,
        x: Value,
        *,
        kind: str = "",
        role: Role = "own",
        list_index: int | None = None,
        is_separate_model: bool = False,
        first_layer_output: Value | None = None,
        **arguments: Any,
    ) -> Value:
        """Records a component's operations as those of the module `part_name`, and returns the output.

        list_index: its index in a list of equal parts; the tree shows them as one node, in the place of the first.
        is_separate_model: whether it runs as a model of its own, as in `ModuleScope`; false by default.
        first_layer_output: a value that stands for the output of the first of the layers that follow: the part runs
            right after that layer, on its input x and this output, and replaces it; None for a part that runs where it
            is recorded.
        arguments: further arguments of its flow.
        """
        index_field: dict[str, Any] = {} if list_index is None else {"indices": (list_index,)}
        with self.scope(
            part_name, kind=kind or part.kind, source=part.formula_source, role=role, **index_field
        ) as part_scope:
            part_scope.list_index, part_scope.module_argument = list_index, x
            part_scope.is_separate_model, part_scope.first_layer_output = is_separate_model, first_layer_output
            output_value = (
                part.flow(self, x, **arguments)
                if first_layer_output is None
                else part.flow(self, x, first_layer_output=first_layer_output, **arguments)
            )
            part_scope.output = output_value
            return output_value

    def layers(
        self,
        x: Value,
        record_layer: Callable[[Value], Value],
        repeat: Number,
        indices: Sequence[int] | None,
        layers_name: str = "layers",
        **node_fields: Any,
    ) -> Value:
        """Records one layer in place of `repeat` equal layers, each of which reads the output of the previous layer."""
        with self.scope(layers_name, repeat=repeat, indices=indices, **node_fields) as layer_scope:
            layer_scope.first_input, layer_scope.output = x, record_layer(x)
        return layer_scope.output

    def side_by_side(
        self,
        list_name: str,
        module_axis: Axis,
        x: Value,
        record_module: Callable[[Value], Value],
        *,
        first_value: Value,
        slices_input: bool = False,
        **node_fields: Any,
    ) -> Value:
        """Records equal parallel modules as one, with an axis for their number; stacks `first_value` and their outputs.

        slices_input: whether each module reads its own slice of x's first axis instead of all of x, false by default.
        """
        module_indices = range(module_axis.size) if isinstance(module_axis.size, int) else None
        module_input = x.view(*x.axes[1:]) if slices_input else x
        with self.scope(list_name, repeat=module_axis.size, indices=module_indices, **node_fields) as module_scope:
            module_scope.stacked_axis, module_scope.module_argument, module_scope.argument_slice = (
                module_axis,
                x,
                module_input if slices_input else None,
            )
            output = module_scope.output = record_module(module_input)
        stacked_axis = Axis(module_axis.name, module_axis.size + 1)
        return self.step("stack", "", (first_value, output), Value(output.rows, (stacked_axis, *output.axes)))

    def alternatives(self, **branches: Callable[[], Value]) -> Value:
        """Records equivalent computations of a value by name (expanded and absorbed MLA); the first is the default.

        Returns the value of the first form; each branch's scope has its own.
        """
        outer_scope, scopes = self.current_scope, dict[str, ModuleScope]()
        for form_name, branch in branches.items():
            self.current_scope = scopes[form_name] = ModuleScope(form_name, {})
            self.current_scope.output = branch()
        self.current_scope = outer_scope
        outer_scope.items.append(AlternativeBranches(scopes))
        first_scope, *_ = scopes.values()
        assert first_scope.output is not None
        return first_scope.output

    @contextmanager
    def separate_stack(self, causal: bool, memory: Value | None = None) -> Iterator[None]:
        """Records the operations in a `with` block as a separate stack, which reads no values of other stacks."""
        outer_state = self.causal, self.encoder_output, self.layer_memo
        self.causal, self.encoder_output, self.layer_memo = causal, memory, {}
        try:
            yield
        finally:
            self.causal, self.encoder_output, self.layer_memo = outer_state

    def _node_fields(self, node_fields: dict[str, Any]) -> dict[str, Any]:
        if self._is_counted_whole:
            node_fields.pop("kind", None)
        return node_fields

    def argument_on_rank(self, argument: Any) -> Any:
        """Returns an axis, shape or weight unchanged; `RankFlow` overrides this to return one rank's shard."""
        return argument

    def element_count(self, shape: Shape) -> Number:
        """Returns the number of elements of a shape: the product of the lengths of its axes."""
        return element_count(shape)

    def node(self) -> Node:
        """Returns the tree of named nodes for everything that has been recorded."""
        return self.root.node()

    def record(
        self,
        verb: str,
        node_name: str,
        input_values: tuple[Value, ...],
        output_values: tuple[Value, ...] = (),
        op: Op | None = None,
        weight: Weight | None = None,
        node_fields: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Records one operation, which may have any number of outputs."""
        if weight is not None:
            weight.is_counted = True
        self.current_scope.items.append(
            Step(
                verb,
                node_name,
                input_values,
                output_values,
                op,
                weight,
                options,
                self._node_fields(node_fields) if node_fields else None,
            )
        )

    def step(self, verb: str, node_name: str, inputs: tuple[Value, ...], output: Value, **options: Any) -> Value:
        """Records one operation with a single output, and returns the output."""
        self.record(verb, node_name, inputs, (output,), **options)
        return output

    @contextmanager
    def function(self) -> Iterator[None]:
        """Records the operations in a `with` block as a Python function whose variables are released at its end.

        At its end, the variables that `hold` names inside let go of their values.
        """
        self.record("enter", "", ())
        yield
        self.record("leave", "", ())

    def add_output(self, output_value: Value) -> None:
        """Records a further output of the model besides the main result, such as predictions with a separate loss."""
        self.record("add_output", "", (output_value,))

    def hold(self, **variables: Value) -> None:
        """Keeps values alive under names of variables in the forward pass, until reassignment or the function's end.

        Only a profile that runs this very code reads them. A value that has no name lives until its last use.
        """
        self.record("hold", "", tuple(variables.values()), names=tuple(variables), outside=False)

    def hold_outside(self, **variables: Value) -> None:
        """Keeps values alive under names of variables in the enclosing module's forward pass."""
        self.record("hold", "", tuple(variables.values()), names=tuple(variables), outside=True)

    def keep(self, **named_values: Value) -> None:
        """Keeps values alive under names until the whole model's forward pass ends."""
        self.record("keep", "", tuple(named_values.values()), names=tuple(named_values))

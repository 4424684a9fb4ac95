"""The compute graph (program) of a model: operations in nested modules; equal layers are one module with a repeat.

A program does not depend on a workload, dtype, device or framework. The tree of nodes is derived from it: every scope
is a node, and so is every named step with parameters or costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..algebra import are_equal
from ..ops.base import Op
from .axis import Axis
from .tree import Node
from .value import Value, Weight

UNEXECUTED_ROLES = ("idle", "kept")
"""The roles of model parts whose parameters exist but are not used in the pass."""


class Step:
    """One operation in a compute graph, with its inputs and outputs.

    verb: the kind of operation.
    name: the name of its module; empty if it is not a module.
    input_values, output_values: the values it reads and makes.
    op: its cost; None where it only needs memory.
    weight: the parameter it multiplies by; None without one.
    options: further settings of the operation (an activation, a window).
    node_fields: fields of its node (`kind`, `source`, `role`).
    """

    __slots__ = ("input_values", "name", "node_fields", "op", "options", "output_values", "verb", "weight")

    def __init__(
        self,
        verb: str,
        step_name: str,
        input_values: tuple[Value, ...],
        output_values: tuple[Value, ...],
        op: Op | None = None,
        weight: Weight | None = None,
        options: Mapping[str, Any] | None = None,
        node_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.verb: str = verb
        self.name: str = step_name
        self.input_values: tuple[Value, ...] = input_values
        self.output_values: tuple[Value, ...] = output_values
        self.op: Op | None = op
        self.weight: Weight | None = weight
        self.options: Mapping[str, Any] = options or {}
        self.node_fields: Mapping[str, Any] = node_fields or {}


class ModuleScope:
    """A module in a compute graph: operations, inner modules and alternative branches, in execution order.

    node_fields: fields of its node.
    first_input, output: for a scope with a repeat, the input of its first run and the output of its last; each run's
        output is the next one's input. For a branch of alternatives, and for a part of its own, `output` is its output.
    list_index: its index in a list of equal modules that are recorded one by one; the tree shows them as one node.
    module_argument: the value that it is called with; None if it is not a part of its own.
    stacked_axis: for a scope that runs once for each index of an axis, side by side, that axis; its outputs are
        stacked.
    argument_slice: for such a scope, the slice of `module_argument` that each run reads; None if each reads all of it.
    is_separate_model: whether it runs as a model of its own, which shares no masks and angles with what is around it.
    has_parameters_per_layer: whether each layer has parameters of its own here, in a module whose parameters layers
        share.
    first_layer_output: for a module that runs right after the first of the layers that follow it: the value that
        stands for that layer's output. `module_argument` is the layer's input, and `output` replaces its output.
    """

    __slots__ = (
        "argument_slice",
        "first_input",
        "first_layer_output",
        "has_parameters_per_layer",
        "is_separate_model",
        "items",
        "list_index",
        "module_argument",
        "name",
        "node_fields",
        "output",
        "stacked_axis",
    )

    def __init__(self, scope_name: str, node_fields: dict[str, Any]) -> None:
        self.name: str = scope_name
        self.node_fields: dict[str, Any] = node_fields
        self.items: list[ProgramItem] = []
        self.first_input: Value | None = None
        self.output: Value | None = None
        self.list_index: int | None = None
        self.module_argument: Value | None = None
        self.stacked_axis: Axis | None = None
        self.argument_slice: Value | None = None
        self.is_separate_model: bool = False
        self.has_parameters_per_layer: bool = False
        self.first_layer_output: Value | None = None

    @property
    def layer_values(self) -> tuple[Value, Value]:
        """The input and the output of a single layer, in a module that represents several equal layers."""
        assert self.first_input is not None
        assert self.output is not None
        return self.first_input, self.output

    @property
    def input_and_output_values(self) -> tuple[Value, Value]:
        """The input and the output of a module with one argument."""
        assert self.module_argument is not None
        assert self.output is not None
        return self.module_argument, self.output

    def node(self) -> Node:
        """Returns the tree node for this module, with nodes for all modules inside it."""
        op, ops_by_form, child_nodes = _nodes_of_program_items(self.items)
        return Node(self.name, op, tuple(child_nodes), ops_by_form=ops_by_form, **self.node_fields)

    def scopes(self) -> Iterator[ModuleScope]:
        """Yields this module and all modules inside it, in order; of alternative branches only the first branch's."""
        yield self
        for program_item in self.items:
            if isinstance(program_item, ModuleScope):
                yield from program_item.scopes()
            elif isinstance(program_item, AlternativeBranches):
                _, *inner_scopes = next(iter(program_item.branches.values())).scopes()
                yield from inner_scopes

    def steps(self, includes_idle: bool = True) -> Iterator[Step]:
        """Yields all operations in this module, in order; of alternative branches only the first branch's.

        includes_idle: whether to include steps that no pass runs, true by default.
        """
        for program_item in self.items:
            if isinstance(program_item, AlternativeBranches):
                yield from next(iter(program_item.branches.values())).steps(includes_idle)
            elif not includes_idle and program_item.node_fields.get("role") in UNEXECUTED_ROLES:
                continue
            elif isinstance(program_item, Step):
                yield program_item
            else:
                yield from program_item.steps(includes_idle)


class AlternativeBranches:
    """Alternative computations of the same value by name, such as expanded or absorbed MLA; the first is the default.

    All branches have the same nodes with the same parameters.
    """

    __slots__ = ("branches",)

    def __init__(self, branch_scopes: dict[str, ModuleScope]) -> None:
        self.branches: dict[str, ModuleScope] = branch_scopes


ProgramItem: TypeAlias = Step | ModuleScope | AlternativeBranches


def all_steps(program_items: Iterable[ProgramItem]) -> Iterator[Step]:
    """Yields all operations in a list of operations and modules, including those in every alternative branch."""
    for program_item in program_items:
        if isinstance(program_item, Step):
            yield program_item
        elif isinstance(program_item, AlternativeBranches):
            for branch in program_item.branches.values():
                yield from all_steps(branch.items)
        else:
            yield from all_steps(program_item.items)


def _nodes_of_program_items(program_items: Sequence[ProgramItem]) -> tuple[Op | None, dict[str, Op], list[Node]]:
    """Returns a module's own operation, its alternative operations by name of the form, and its child nodes."""
    op: Op | None = None
    ops_by_form: dict[str, Op] = {}
    child_nodes: list[Node] = []
    for program_item in program_items:
        if isinstance(program_item, ModuleScope) and program_item.list_index:
            item_index, first_copy = next(
                (item_index, child) for item_index, child in enumerate(child_nodes) if child.name == program_item.name
            )
            child_nodes[item_index] = replace(
                first_copy, repeat=program_item.list_index + 1, indices=range(program_item.list_index + 1)
            )
        elif isinstance(program_item, ModuleScope):
            child_nodes.append(program_item.node())
        elif isinstance(program_item, AlternativeBranches):
            branch_op, branch_forms, branch_children = _merge_alternative_nodes(program_item)
            op, ops_by_form = (op, ops_by_form) if branch_op is None else (branch_op, branch_forms)
            child_nodes += branch_children
        elif program_item.name:
            is_fused = bool(program_item.options.get("fused"))
            child_nodes.append(Node(program_item.name, program_item.op, is_fused=is_fused, **program_item.node_fields))
        elif program_item.op is not None:
            op = program_item.op
    return op, ops_by_form, child_nodes


def _merge_alternative_nodes(alternatives: AlternativeBranches) -> tuple[Op | None, dict[str, Op], list[Node]]:
    """Returns the first branch's operation, the other branches' operations by name, and the child nodes of both."""
    (_, first_branch), *other_branches = alternatives.branches.items()
    other_nodes = [(form_name, _nodes_of_program_items(branch.items)) for form_name, branch in other_branches]
    op, ops_by_form, child_nodes = _nodes_of_program_items(first_branch.items)
    ops_by_form |= {
        form_name: other_op
        for form_name, (other_op, _, _) in other_nodes
        if other_op is not None and not _are_equal_ops(other_op, op)
    }
    merged_children = []
    for child in child_nodes:
        nodes_by_form = {
            form_name: next(form_node for form_node in form_nodes if form_node.name == child.name)
            for form_name, (_, _, form_nodes) in other_nodes
        }
        different_ops = {
            form_name: form_node.op
            for form_name, form_node in nodes_by_form.items()
            if form_node.op is not None and not _are_equal_ops(form_node.op, child.op)
        }
        merged_children.append(
            Node(**{**_fields_of_node(child), "ops_by_form": {**child.ops_by_form, **different_ops}})
            if different_ops
            else child
        )
    return op, ops_by_form, merged_children


def _are_equal_ops(op: Op, other_op: Op | None) -> bool:
    """Whether two operations are certainly equal; their sizes may be integers, arrays or symbols."""
    return type(op) is type(other_op) and all(
        are_equal(getattr(op, field_name), getattr(other_op, field_name)) for field_name in op.__dataclass_fields__
    )


def _fields_of_node(node: Node) -> dict[str, Any]:
    return {field_name: getattr(node, field_name) for field_name in Node.__dataclass_fields__}

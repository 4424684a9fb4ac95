"""The tree of named nodes, from which counts, tables and checks of a model are computed.

A node's path equals the path of a module in the PyTorch reference, so that the two can be compared node by node.
Identical layers are one node with a `repeat`; totals are recomputed by walking the tree and never stored.

Nodes are data. A node's cost depends on its position: the repeats of its ancestors, and their roles. So costs are
computed from a `NodePosition`, and every walk goes from position to position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from ..algebra import Number, add, is_zero, times
from ..characters import printable
from ..frozen import frozen
from ..ops.base import BUFFER_EFFECTS, CACHE_EFFECTS, FLOP_EFFECTS, PARAM_EFFECTS, SKIPPED_PARAM_EFFECTS, Op
from ..workload.run_config import RunConfig

Role: TypeAlias = Literal["own", "shared", "kept", "idle", "no_grad"]
"""The role of a node and of all nodes below, which decides what counts.

own: it has its parameters and runs.
shared: it runs with the parameters of another node, where they are counted.
kept: it has parameters that run at another node, or in passes that are not counted.
idle: it has parameters that no text token uses.
no_grad: it runs only forward: its output selects something, and no gradient passes through a selection.
"""

EXCLUDED_EFFECTS_BY_ROLE: Mapping[Role, frozenset[str]] = {
    "own": frozenset(),
    "shared": PARAM_EFFECTS | BUFFER_EFFECTS | SKIPPED_PARAM_EFFECTS,
    "kept": FLOP_EFFECTS | CACHE_EFFECTS,
    "idle": FLOP_EFFECTS | CACHE_EFFECTS | SKIPPED_PARAM_EFFECTS | {"active_params"},
    "no_grad": frozenset({"backward_flops"}),
}
"""Role of a node → the effects of its operation that do not count."""


@cache
def _effects_excluded_by_roles(node_roles: frozenset[Role]) -> frozenset[str]:
    """Returns the effects (parameters, FLOPs, …) that nodes with these roles do not have."""
    return frozenset().union(*(EXCLUDED_EFFECTS_BY_ROLE[role] for role in node_roles))


@frozen(slots=True, repr=False)
class Node:
    """A named node of a model's tree: one operation (`op`), or a group of child nodes (`children`).

    name: its attribute name in the reference model; for repeated parts, the container's (`layers`).
    op: its primitive; None for a group.
    children: the nodes below it.
    repeat: the number of copies.
    indices: the index of each copy in the reference (`layers.0`, `layers.5`).
    kind: the component it is counted under (`attention`, `feed_forward`, …), inherited by the nodes below it.
    label: distinguishes a group of layers from its siblings (`sliding`, `dense`).
    role: its role in the model, which also applies to everything below it.
    optional: the name of the optional part that it is (`mtp`), left out of totals by default; empty if it is none.
    source: the source of its formula.
    ops_by_form: name of a form → primitive that replaces `op` in some executions.
    is_fused: whether the class computes this linear layer with others of the same input as one product.
    """

    name: str
    op: Op | None = None
    children: tuple[Node, ...] = ()
    repeat: Number = 1
    indices: Sequence[int] | None = None
    kind: str = ""
    label: str = ""
    role: Role = "own"
    optional: str = ""
    source: str = ""
    ops_by_form: Mapping[str, Op] = field(default_factory=dict)
    is_fused: bool = False

    def __repr__(self) -> str:
        content_text = f"{len(self.children)} parts" if self.op is None else type(self.op).__name__
        return printable(f"<Node {self.path_segment or 'of a model'}: {content_text}>")

    @property
    def path_segment(self) -> str:
        """The node's part of a dotted path, with layer indices: `layers.0-31`, `layers.{0-4,6-10}`, `self_attn`."""
        return self.name if self.indices is None else f"{self.name}.{index_ranges(self.indices)}"

    @property
    def is_stack(self) -> bool:
        """Whether this node has layers as children."""
        return any(child_node.kind == "layer" for child_node in self.children)

    def with_effect(self, effect: str) -> Node:
        """Returns the tree with only nodes that can have an effect, such as parameters; the effect's totals stay."""
        reduced_children = (child_node.with_effect(effect) for child_node in self.children)
        child_nodes = tuple(child for child in reduced_children if child.children or child._can_have_effect(effect))
        return replace(self, children=child_nodes)

    def _can_have_effect(self, effect: str) -> bool:
        return self.op is not None and any(effect in op.effects for op in (self.op, *self.ops_by_form.values()))

    def has_form(self, form_name: str) -> bool:
        """Whether this node, or a node below it, has an alternative computation of this name."""
        return form_name in self.ops_by_form or any(child_node.has_form(form_name) for child_node in self.children)

    def root_position(self, run_config: RunConfig | None = None) -> NodePosition:
        """Returns the `NodePosition` of this node as the root of a tree."""
        return NodePosition(self, None, self.repeat, self.kind, frozenset({self.role}), run_config, self.optional)

    def walk(self, run_config: RunConfig | None = None) -> Iterator[NodePosition]:
        """Yields the `NodePosition` of this node, as the root, and of every node below it, parents first."""
        return self.root_position(run_config).walk()

    def total(self, cost: Cost, run_config: RunConfig | None = None, include: frozenset[str] = frozenset()) -> Number:
        """Returns the cost of all repeats of this node, as the root of a tree, including all nodes below it."""
        return self.root_position(run_config).total(cost, include)

    def cost_per_repeat(
        self, cost: Cost, run_config: RunConfig | None = None, included_parts: frozenset[str] = frozenset()
    ) -> Number:
        """Returns the cost of one repeat of this node, as the root of a tree, including all nodes below it."""
        return self.root_position(run_config).cost_per_repeat(cost, included_parts)


@frozen
class NodePosition:
    """A node with its place in the tree: its parents, its copies and roles, which follow from them, and the run.

    node: the node.
    parent: the position of its parent; None for the root.
    copies: the number of copies in the model: its own repeat times those of all ancestors.
    kind: the component it is counted under.
    roles: its own role and those of its ancestors.
    run_config: the run; None where only parameters are counted.
    optional_part: the optional part that it is or belongs to; empty if none.
    """

    node: Node
    parent: NodePosition | None
    copies: Number
    kind: str
    roles: frozenset[Role]
    run_config: RunConfig | None
    optional_part: str

    @cached_property
    def path(self) -> str:
        """The dotted path of the node: the segments of the ancestors and of the node; empty for the root."""
        if self.parent is None:
            return ""
        return f"{self.parent.path}.{self.node.path_segment}" if self.parent.path else self.node.path_segment

    def child_position(self, node: Node) -> NodePosition:
        """Returns one of this node's children with its place in the tree."""
        return NodePosition(
            node,
            self,
            times(self.copies, node.repeat),
            node.kind or self.kind,
            self.roles if node.role == "own" else self.roles | {node.role},
            self.run_config,
            node.optional or self.optional_part,
        )

    def children(self) -> Iterator[NodePosition]:
        """Returns this node's children with their places in the tree."""
        return map(self.child_position, self.node.children)

    def walk(self) -> Iterator[NodePosition]:
        """Yields this node and all nodes below it, with their places in the tree, parents first."""
        yield self
        for child_node in self.children():
            yield from child_node.walk()

    @property
    def counted_op(self) -> CountedOp | None:
        """Returns the node's operation with its roles and run config; None for a node that only groups others."""
        return _counted_primitive(self.node, self.roles, self.run_config)

    def cost_of_operation(self, cost: Cost) -> Number:
        """Returns the cost of the node's own operation for one repeat, without child nodes."""
        counted_op = self.counted_op
        return 0 if counted_op is None else cost(counted_op)

    def cost_per_repeat(self, cost: Cost, included_parts: frozenset[str] = frozenset()) -> Number:
        """Returns the cost of one repeat of the node, including all nodes below it.

        included_parts: the optional parts below it that are counted.
        """
        return _cost_per_repeat(self.node, self.roles, self.run_config, cost, included_parts)

    def total(self, cost: Cost, include: frozenset[str] = frozenset()) -> Number:
        """Returns the cost of all repeats of the node within one copy of its parent."""
        return times(self.cost_per_repeat(cost, include), self.node.repeat)

    def cost_in_model(self, cost: Cost, included_parts: frozenset[str] = frozenset()) -> Number:
        """Returns the cost of all copies of the node in the model."""
        return times(self.cost_per_repeat(cost, included_parts), self.copies)


@frozen(slots=True)
class CountedOp:
    """An operation to be counted, with the roles of its node and the run config.

    A cost that it lacks, or that its roles exclude, is 0.
    """

    op: Op
    roles: frozenset[Role]
    run_config: RunConfig | None

    def has_effect(self, effect: str) -> bool:
        """Whether the operation has an effect (parameters, FLOPs, …), given the roles of its node."""
        return effect in self.op.effects and effect not in _effects_excluded_by_roles(self.roles)

    def _value_of_effect(self, effect: str, *arguments: Any) -> Number:
        return getattr(self.op, effect)(*arguments) if self.has_effect(effect) else 0

    def params(self) -> Number:
        return self._value_of_effect("params")

    def active_params(self) -> Number:
        return self._value_of_effect("active_params")

    def tensors(self) -> tuple[Any, ...]:
        return self._value_of_effect("tensors") or ()

    def buffers(self) -> Number:
        return self._value_of_effect("buffers")

    def forward_flops(self) -> Number:
        return self._flops_of_effect("forward_flops")

    def backward_flops(self) -> Number:
        return self._flops_of_effect("backward_flops")

    def _flops_of_effect(self, effect: str) -> Number:
        flops = self._value_of_effect(effect, self.run_config)
        return flops if self.run_config is None else self.run_config.flops_per_rank(flops)

    def cache_bits(self, kv_bits: Number) -> Number:
        return self._value_of_effect("cache_bits", self.run_config, kv_bits)

    def max_skipped_params(self) -> Number:
        return self._value_of_effect("max_skipped_params")

    def mean_skipped_params(self) -> Number:
        return self._value_of_effect("mean_skipped_params")


def _counted_primitive(node: Node, node_roles: frozenset[Role], run_config: RunConfig | None) -> CountedOp | None:
    """Returns the operation that runs at a node with these roles; None for a node that only groups others."""
    op = node.op
    if op is None:
        return None
    if node.ops_by_form and run_config is not None:
        op = node.ops_by_form.get(run_config.execution.choose_form(("", *node.ops_by_form), run_config.workload), op)
    return CountedOp(op, node_roles, run_config)


def _cost_per_repeat(
    node: Node, node_roles: frozenset[Role], run_config: RunConfig | None, cost: Cost, included_parts: frozenset[str]
) -> Number:
    """Returns the cost of one repeat of a node with these roles, including all nodes below it."""
    counted_op = _counted_primitive(node, node_roles, run_config)
    total_cost: Number = 0 if counted_op is None else cost(counted_op)
    for child_node in node.children:
        if not child_node.optional or child_node.optional in included_parts:
            child_roles = node_roles if child_node.role == "own" else node_roles | {child_node.role}
            child_cost = _cost_per_repeat(child_node, child_roles, run_config, cost, included_parts)
            if not is_zero(child_cost):
                total_cost = add(total_cost, times(child_cost, child_node.repeat))
    return total_cost


Cost: TypeAlias = Callable[[CountedOp], Number]
"""The type of a cost function, `cost(counted_op)`, of a primitive operation with the roles of its node."""


def cost_by_kind(
    root_node: Node, cost: Cost, run_config: RunConfig | None = None, included_parts: frozenset[str] = frozenset()
) -> dict[str, Number]:
    """Returns the cost of each kind of component, such as attention; the costs add up to the tree's total."""
    costs_by_kind: dict[str, Number] = {}
    for positioned_node in root_node.walk(run_config):
        if positioned_node.optional_part and positioned_node.optional_part not in included_parts:
            continue
        cost_of_node = times(positioned_node.cost_of_operation(cost), positioned_node.copies)
        if not is_zero(cost_of_node):
            costs_by_kind[positioned_node.kind] = add(costs_by_kind.get(positioned_node.kind, 0), cost_of_node)
    return costs_by_kind


def index_ranges(indices: Sequence[int]) -> str:
    """Returns layer indices as ranges: `0-31`; `{0-4,6-10}` with gaps; `0..58/2` for an even stride above two."""
    if len(indices) > 2:
        stride = indices[1] - indices[0]
        if stride > 1 and all(last_index - first_index == stride for first_index, last_index in pairwise(indices)):
            return f"{indices[0]}..{indices[-1]}/{stride}"
    consecutive_ranges: list[list[int]] = []
    for layer_index in indices:
        if consecutive_ranges and layer_index == consecutive_ranges[-1][1] + 1:
            consecutive_ranges[-1][1] = layer_index
        else:
            consecutive_ranges.append([layer_index, layer_index])
    range_texts = [
        str(first_index) if first_index == last_index else f"{first_index}-{last_index}"
        for first_index, last_index in consecutive_ranges
    ]
    return range_texts[0] if len(range_texts) == 1 else "{" + ",".join(range_texts) + "}"

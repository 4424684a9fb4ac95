"""A tree of the model's nodes as nested dicts, for JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..algebra import times
from ..flow.tree import Cost, NodePosition

NodeCountsFunction: TypeAlias = Callable[[NodePosition], dict[str, Any]]
"""A function that returns the numbers of a node at its position, by name."""


def tree_data(node_position: NodePosition, counts_function: NodeCountsFunction) -> dict[str, Any]:
    """Returns a node of the model and its descendants as nested dicts with their counts."""
    node = node_position.node
    node_data: dict[str, Any] = {"name": node.path_segment, **counts_function(node_position)}
    for figure_key in ("kind", "label", "optional", "source"):
        if getattr(node, figure_key):
            node_data[figure_key] = getattr(node, figure_key)
    if node.role != "own":
        node_data["role"] = node.role
    if node.op is not None:
        node_data["op"] = type(node.op).__name__
    if node.children:
        node_data["children"] = [
            tree_data(child_position, counts_function) for child_position in node_position.children()
        ]
    return node_data


def node_cost_data(
    quantity: str, node_position: NodePosition, cost_function: Cost, included_parts: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Returns the cost of a node three times: per repeat, for all repeats in one parent, and in the whole model.

    `<quantity>`: all repeats of the node in one repeat of its parent.
    `<quantity>_each`: one repeat, if there are several. The children add up to it, or without it to `<quantity>`.
    `<quantity>_in_all`: all repeats in the model. Those of the children add up to it.
    An optional part always has its own count, and counts in its parents if it is included.
    """
    cost_per_repeat = node_position.cost_per_repeat(cost_function, included_parts)
    repeat_count = node_position.node.repeat
    node_figures: dict[str, Any] = {quantity: times(cost_per_repeat, repeat_count)}
    if repeat_count != 1:
        node_figures |= {"repeat": repeat_count, f"{quantity}_each": cost_per_repeat}
    return node_figures | {f"{quantity}_in_all": times(cost_per_repeat, node_position.copies)}

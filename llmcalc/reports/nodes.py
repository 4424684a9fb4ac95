"""A tree of nodes as nested dicts, for the JSON of any command that counts over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..algebra import times
from ..flow.tree import Cost, Place

Figures: TypeAlias = Callable[[Place], dict[str, Any]]
"""A node where it stands → its numbers by name."""


def tree_data(place: Place, figures: Figures) -> dict[str, Any]:
    """Every node with its numbers, where it stands, and what is below it."""
    node = place.node
    data: dict[str, Any] = {"name": node.segment, **figures(place)}
    for key in ("kind", "label", "optional", "source"):
        if getattr(node, key):
            data[key] = getattr(node, key)
    if node.role != "own":
        data["role"] = node.role
    if node.op is not None:
        data["op"] = type(node.op).__name__
    if node.children:
        data["children"] = [tree_data(child, figures) for child in place.children()]
    return data


def figures_of(quantity: str, place: Place, cost: Cost, include: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A quantity of a node: of all its repeats in one of its parent, of each of them, and of all in the model.

    The children of a node add up to its `<quantity>_each` where it has a repeat, else to its `<quantity>`; and their
    `<quantity>_in_all` add up to its own. An optional part counts in itself, and in what is above it if it is included.
    """
    each, repeat = place.each(cost, include), place.node.repeat
    data: dict[str, Any] = {quantity: times(each, repeat)}
    if repeat != 1:
        data |= {"repeat": repeat, f"{quantity}_each": each}
    return data | {f"{quantity}_in_all": times(each, place.times)}

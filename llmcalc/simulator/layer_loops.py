"""The repeats of a stack's pattern of layers: where they begin, how many there are, and the paths of their modules."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from ..flow.program import Scope
from ..model import ModelSpec
from .layer_pattern import RECORDED_REPEATS, find_pattern, layer_kinds
from .meter import Place

SHORT_RUN_REPEATS = 3
"""Repeats that a folded run has: the first, one between, and the last."""


@dataclass(frozen=True)
class LayerStack:
    """The layers of a stack.

    path: that of its layers.
    before: layers before the pattern begins.
    period: layers in it.
    repeats: whole repeats of it, between the layers before and after it.
    times: how many repeats of the pattern of kinds one repeat of this pattern has, 1 by default.
    rest: repeats of the pattern of kinds after the last whole repeat. Where layers share tensors, one whole repeat is
        among them: the first gradient of a shared tensor may be a view, to which no second one is added in place.
    after: layers after those, which follow no pattern.
    """

    path: str
    before: int
    period: int
    repeats: int
    times: int = 1
    rest: int = 0
    after: int = 0

    @property
    def alone(self) -> int:
        """The layers outside of the repeats."""
        return self.before + self.rest * (self.period // self.times) + self.after

    @property
    def layers(self) -> int:
        """All layers of the stack."""
        return self.alone + self.period * self.repeats

    def holds(self, place: Place) -> bool:
        """Whether a place is a layer of this stack, or in one."""
        return place.path == self.path or place.path.startswith(f"{self.path}.")

    def is_second(self, place: Place) -> bool:
        """Whether a place is in the second repeat of the pattern."""
        return self.holds(place) and self.before + self.period <= place.turn < self.before + 2 * self.period

    def further(self, place: Place, repeats: int) -> Place:
        """The same module, that many repeats of the pattern further up."""
        return Place(place.phase, place.turn + repeats * self.period, place.path)

    def node(self, place: Place) -> str:
        """The path of a module in one of the layers, with the index of that layer."""
        return f"{self.path}.{place.turn}{place.path[len(self.path) :]}"

    def end(self, repeats: int) -> int:
        """The layer after the last one, with that many repeats of this pattern."""
        return self.before + self.period * repeats + self.rest * (self.period // self.times) + self.after

    def kinds(self, repeats: int) -> int:
        """How many repeats of the pattern of kinds a run has, with that many repeats of this pattern."""
        return repeats * self.times + self.rest

    @property
    def can_extrapolate(self) -> bool:
        """Whether two runs of a few repeats have fewer layers than one of all."""
        return 2 * (self.alone + self.period * SHORT_RUN_REPEATS) + self.period < self.layers


def layer_stacks(spec: ModelSpec, every: int = 1) -> list[LayerStack]:
    """The layers of each stack, in the order in which the stacks run.

    every: one layer of so many is not run as the others are; 1 (default) if all are run alike.
    """
    return program_stacks(spec.program().root, every)


def program_stacks(root: Scope, every: int = 1, below: int = 0) -> list[LayerStack]:
    """The layers of each stack of a program. below: the layers of the model that come before its first one."""
    found = []
    for above, kinds in _stacks(root):
        order = list(layer_kinds(kinds))
        before, period, repeats = find_pattern(order)
        after = len(order) - before - period * repeats
        path = ".".join((*above, kinds[0].name))
        times = lcm(period, every) // period
        repeats, rest = divmod(repeats, times)
        if repeats > RECORDED_REPEATS and any(map(_shares_tensors, kinds)):
            repeats, rest = repeats - 1, rest + times
        found.append(LayerStack(path, below + before, period * times, repeats, times, rest, after))
    return found


def _shares_tensors(kind: Scope) -> bool:
    """Whether layers read a tensor that others read too: an encoder's output, a bias of positions, shared weights."""
    assert kind.takes is not None
    inside = {id(kind.takes.storage)}
    for step in kind.steps():
        if any(id(value.storage) not in inside for value in step.ins):
            return True
        inside |= {id(value.storage) for value in step.outs}
    return kind.about.get("role") == "shared"


def _stacks(scope: Scope, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[Scope]]]:
    """Every stack that runs: the path of the module that it stands in, and its kinds of layers."""
    kinds = [
        item
        for item in scope.items
        if isinstance(item, Scope) and item.takes is not None and not item.about.get("optional")
    ]
    found = [(above, kinds)] if kinds else []
    for item in scope.items:
        if isinstance(item, Scope) and item.takes is None and not item.about.get("optional"):
            found += _stacks(item, (*above, item.name))
    return found

"""The tree of named nodes that every count, table and check is computed from.

A node's path is the path of a module in the PyTorch reference, so that the two can be compared place by place.
Identical layers are one node with a `repeat`; totals are recomputed by walking and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from .algebra import Number, add, is_zero, times
from .workload import Stream, Workload

Cost: TypeAlias = Callable[[Any, Any], Number]
"""What a primitive costs in a workload: `cost(op, workload)`."""


@dataclass(frozen=True, slots=True)
class Node:
    """A named part of a model: a primitive (`op`), or a group of parts (`children`).

    name: the attribute under which the reference model holds it; of repeated parts, the container's (`layers`).
    repeat: how many of it there are; `indices` names each of them in the reference (`layers.0`, `layers.5`).
    kind: the component it counts under (`attention`, `feed_forward`, …); inherited by what is below it.
    label: what tells a group of layers from its siblings (`sliding`, `dense`).
    stream: set where the layers below see other tokens than the rest of the model (an encoder beside a decoder).
    source_tokens: set where an encoder reads so many tokens, whatever the workload says (frames of a fixed length).
    optional: set on parts that are left out of totals unless asked for (`mtp`).
    gated: what it gives is multiplied with something before it is added to the residual stream, so that a backward pass
    needs it.
    source: where its formula is from.
    """

    name: str
    op: Any = None
    children: tuple[Node, ...] = ()
    repeat: Number = 1
    indices: Sequence[int] | None = None
    kind: str = ""
    label: str = ""
    stream: Stream | None = None
    source_tokens: Number = None
    optional: str = ""
    gated: bool = False
    source: str = ""

    def total(self, cost: Cost, workload: Workload | None = None, include: frozenset[str] = frozenset()) -> Number:
        """The cost of everything at and below this node, all repeats of it."""
        return times(self.each(cost, workload, include), self.repeat)

    def each(self, cost: Cost, workload: Workload | None = None, include: frozenset[str] = frozenset()) -> Number:
        """The cost of one of the repeats of this node."""
        if self.optional and self.optional not in include:
            return 0
        workload = self._seen(workload)
        value: Number = 0 if self.op is None else cost(self.op, workload)
        for child in self.children:
            value = add(value, child.total(cost, workload, include))
        return value

    def _seen(self, workload: Workload | None) -> Workload | None:
        """The workload as this node and those below it see it."""
        if workload is not None and self.source_tokens is not None:
            workload = workload.with_(source=self.source_tokens)
        return workload if workload is None or self.stream is None else workload.enter(self.stream)

    @property
    def segment(self) -> str:
        """This node's part of a path: `layers.0-31`, `layers.{0-4,6-10}`, `self_attn`."""
        return self.name if self.indices is None else f"{self.name}.{spans(self.indices)}"

    def walk(self, workload: Workload | None = None) -> Iterator[Place]:
        """Every node below and at this one, each with its path, repeats and kind, parents first."""
        yield from _walk(self, Place("", self, 1, self.kind, workload, self.optional))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: its path, how often it occurs in the model, what it counts under, and what it sees."""

    path: str
    node: Node
    times: Number
    kind: str
    workload: Workload | None
    optional: str


def _walk(node: Node, here: Place) -> Iterator[Place]:
    workload = node._seen(here.workload)
    here = Place(here.path, node, times(here.times, node.repeat), node.kind or here.kind, workload, here.optional)
    yield here
    for child in node.children:
        path = f"{here.path}.{child.segment}" if here.path else child.segment
        yield from _walk(child, Place(path, child, here.times, here.kind, workload, child.optional or here.optional))


def by_kind(
    root: Node, cost: Cost, workload: Workload | None = None, include: frozenset[str] = frozenset()
) -> dict[str, Number]:
    """The cost of every primitive, summed by the component it counts under. The values add up to the total."""
    sums: dict[str, Number] = {}
    for place in root.walk(workload):
        if place.node.op is None or (place.optional and place.optional not in include):
            continue
        value = times(cost(place.node.op, place.workload), place.times)
        if not is_zero(value):
            sums[place.kind] = add(sums.get(place.kind, 0), value)
    return sums


def spans(indices: Sequence[int]) -> str:
    """`0-31`, or `{0-4,6-10}` where there are gaps, or `0..58/2` for an even stride of more than two."""
    if len(indices) > 2:
        stride = indices[1] - indices[0]
        if stride > 1 and all(b - a == stride for a, b in pairwise(indices)):
            return f"{indices[0]}..{indices[-1]}/{stride}"
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    text = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return text[0] if len(text) == 1 else "{" + ",".join(text) + "}"

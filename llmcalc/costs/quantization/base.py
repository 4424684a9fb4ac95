"""What a scheme stores of each tensor, summed over a model.

All sizes are those of the tensors that a checkpoint of the scheme holds, tensor by tensor: its header and metadata are
not counted. Layers are taken one by one, since a scheme may treat them differently; stacked experts are one matrix
each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain

from ...algebra import Number, add, is_zero, times
from ...errors import InputError
from ...flow.tree import Node, Place
from ...model import ModelSpec
from ...ops import ParamTensor
from ...optional import TOWERS
from ...units import DTYPE_BITS, bits_to_bytes

MOST_TAKEN_APART = 1000
"""Layers of a stack whose tensors are counted one by one."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes. weights: the codes of converted weights. scales: what they are multiplied with, scales of scales included.

    zeros: zero points, or minima. other: group indices, code books, stored shapes, scales of activations. unconverted:
    all tensors that keep a plain number format.
    """

    weights: Number = 0
    scales: Number = 0
    zeros: Number = 0
    other: Number = 0
    unconverted: Number = 0

    def __add__(self, more: Parts) -> Parts:
        return Parts(*(add(getattr(self, name), getattr(more, name)) for name in PARTS))

    def __mul__(self, count: Number) -> Parts:
        return Parts(*(n if is_zero(n) else times(n, count) for n in (getattr(self, name) for name in PARTS)))

    @property
    def total(self) -> Number:
        total: Number = 0
        for name in PARTS:
            total = add(total, getattr(self, name))
        return total

    def data(self) -> dict[str, Number]:
        """By name, zeros included."""
        return {name: getattr(self, name) for name in PARTS}


PARTS = tuple(field.name for field in fields(Parts))


def plain(elements: Number, dtype: str) -> Parts:
    """Elements that keep a plain number format."""
    bits = DTYPE_BITS[dtype]
    return Parts(unconverted=elements * (bits // 8) if bits % 8 == 0 else bits_to_bytes(elements * bits))


@dataclass(frozen=True, slots=True)
class Site:
    """One tensor of one layer. path: of its module, as in the reference model. kind: the component it counts under.

    layer: which one of its stack, None outside of layers. times: more than 1 only where the depth is no integer.
    parent: the node that its module stands in. optional: the option that counts it in (`mtp`), empty for the model's
    own.
    """

    path: str
    kind: str
    tensor: ParamTensor
    times: Number
    layer: int | None
    parent: Node
    optional: str = ""

    @property
    def name(self) -> str:
        """The last step of its path."""
        return self.path.rpartition(".")[2]


def sites(tree: Node, include: frozenset[str] = frozenset()) -> Iterator[Site]:
    """Every trainable tensor, layer by layer, in the order of the tree; a tied one once."""
    yield from _below(tree.place(), Site("", "", ParamTensor((), "vector"), 1, None, tree), include)


def _below(place: Place, here: Site, include: frozenset[str]) -> Iterator[Site]:
    """here: where the node stands, as a site whose tensor is not looked at."""
    for below in place.children():
        child = below.node
        if child.optional and child.optional not in include:
            continue
        where = f"{here.path}.{child.name}" if here.path else child.name
        if child.indices is None:
            copies: Iterable[tuple[str, Number, int | None]] = [(where, times(here.times, child.repeat), here.layer)]
        else:
            copies = [(f"{where}.{i}", here.times, i) for i in child.indices]
        for at, many, which in copies:
            there = Site(at, below.kind, here.tensor, many, which, place.node, below.optional)
            if below.use is not None:
                yield from (replace(there, tensor=tensor) for tensor in below.use.tensors())
            yield from _below(below, there, include)


@dataclass(frozen=True)
class Scheme:
    """How weights are stored. label: its short name. source: where its layout is from.
    remarks: what its reader has to say.
    """

    label: str
    source: str
    remarks: tuple[str, ...] = ()

    def store(self, spec: ModelSpec, found: list[Site], dtype: str) -> Iterator[tuple[Site, Parts]]:
        """Each of the tensors with the bytes that are stored of one of it. dtype: of what is not converted.

        Raises `InputError` for a tensor that the format cannot hold.
        """
        raise TypeError(f"{type(self).__name__} stores nothing")

    def notes(self) -> list[str]:
        """What it converts and how, for the user."""
        return [f"{self.label}: {self.source}", *self.remarks]

    def unconverted_dtype(self, dtype: str) -> str:
        """The format of what is not converted, where the model's is `dtype`."""
        return dtype


@dataclass(frozen=True)
class QuantizedSize:
    """Bytes of a model's weights under a scheme. dtype: of the tensors that are not converted."""

    scheme: Scheme
    dtype: str
    by_part: Parts
    by_component: dict[str, Parts]

    @property
    def total(self) -> Number:
        return self.by_part.total


def quantized(
    spec: ModelSpec, scheme: Scheme, dtype: str = "bfloat16", include: frozenset[str] = frozenset()
) -> QuantizedSize:
    """Bytes of all parameters, a tied one once; those of towers are not converted.

    dtype: full name of the number format of what is not converted. include: optional parts to count in (`mtp`,
    `towers`). Raises `InputError` for a tensor that the scheme's format cannot hold.
    """
    total, by_component = Parts(), dict[str, Parts]()
    deepest = max(stack.num_hidden_layers for _, stack in spec.stacks())
    if isinstance(deepest, int) and deepest > MOST_TAKEN_APART:
        raise InputError(
            f"num_hidden_layers: {deepest} layers are too many to take one by one; expected at most "
            f"{MOST_TAKEN_APART} for a scheme"
        )
    found = list(sites(spec.tree(), include))
    text, towers = [s for s in found if s.optional != TOWERS.name], [s for s in found if s.optional == TOWERS.name]
    if towers and scheme.unconverted_dtype(dtype) != dtype:
        raise InputError(
            f"{TOWERS.option}: {scheme.label} stores no towers: they are a file of their own; expected a count "
            "without them"
        )
    beside = ((site, plain(site.tensor.size, dtype)) for site in towers)
    for site, each in chain(scheme.store(spec, text, dtype), beside):
        stored = each * site.times
        total += stored
        by_component[site.kind] = by_component.get(site.kind, Parts()) + stored
    return QuantizedSize(scheme, scheme.unconverted_dtype(dtype), total, by_component)

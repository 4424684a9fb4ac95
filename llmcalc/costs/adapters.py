"""Low-rank adapters as closed forms: what LoRA trains (Hu et al. 2021, arXiv:2106.09685) beside frozen weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from ..algebra import Number, add, is_zero, times
from ..errors import InputError, suggest
from ..flow.tree import Node, Place
from ..ops import Linear, ParamTensor
from ..workload.lora import ALL_LINEAR, PROJECTIONS, Base, Library, nf4_bytes
from .trained_tensors import TrainedTensor, in_a_layer

BASES: tuple[Base, ...] = get_args(Base)


@dataclass(frozen=True)
class LowRank:
    """Adapters in the place of training the weights.

    rank: the inner width of every adapter. targets: names of the linear layers that have one.
    base: how the frozen matrices of the layers are stored.
    library: whose adapters they are.
    copies: names of modules of which a copy is trained in full.
    quantized_head: whether a base in 4 bits includes an output head of its own; false by default.
    fused_qkv: whether queries, keys and values are one linear layer; false by default.
    """

    rank: int
    targets: frozenset[str]
    base: Base = "none"
    library: Library = "peft"
    copies: frozenset[str] = frozenset()
    quantized_head: bool = False
    fused_qkv: bool = False

    def adapters(self, tree: Node, include: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """The trained tensors of the adapters: A [rank, in] and B [out, rank] of every adapted layer.

        LitGPT has one A [rank · parts, in] and one B [out, rank] for the adapted ones of queries, keys and values.
        """
        found = []
        for together in self._products(tree, include):
            adapted = [(place, op) for place, op in together if place.node.name in self.targets]
            if adapted:
                (place, op), wide = adapted[0], 0
                for _, one in adapted:
                    wide = add(wide, one.n_out)
                rank = self.rank * (len(adapted) if self.library == "litgpt" else 1)
                for shape in ((rank, op.n_in), (wide, self.rank)):
                    found.append(TrainedTensor(ParamTensor(shape, "matrix"), place.kind, place.times))
        return found

    def copied(self, tree: Node, include: frozenset[str] = frozenset()) -> list[TrainedTensor]:
        """The tensors of modules that are trained in full beside their frozen originals; a tied weight too."""
        found = []
        for place in tree.walk():
            op, use = place.node.op, place.use
            if use is None or place.node.name not in self.copies or place.optional not in {"", *include}:
                continue
            matrix = (ParamTensor((op.n_out, op.n_in), "matrix"),) if isinstance(op, Linear) else use.tensors()
            found += [TrainedTensor(tensor, place.kind, place.times) for tensor in matrix]
        return found

    def narrowed(self, tree: Node, include: frozenset[str] = frozenset()) -> tuple[Number, Number]:
        """(weights that are stored in 4 bits, the bytes that they take): the matrices of linear layers in the layers,
        and an output head if that is asked for. A matrix that belongs to another node is counted there.
        """
        weights: Number = 0
        stored: Number = 0
        if self.base == "none":
            return weights, stored
        heads = [[one] for one in _linears(tree, include, layers=False) if one[0].kind == "lm_head"]
        for together in [*self._products(tree, include), *(heads if self.quantized_head else [])]:
            size: Number = 0
            for place, op in together:
                use = place.use
                if use is not None and use.has("params") and not op.tied:
                    size = add(size, op.n_in * op.n_out)
            if not is_zero(size):
                many = together[0][0].times
                weights = add(weights, times(size, many))
                stored = add(stored, times(nf4_bytes(size, self.base == "nf4-dq"), many))
        return weights, stored

    def _products(self, tree: Node, include: frozenset[str]) -> Iterator[list[tuple[Place, Linear]]]:
        """The linear layers of the layers; those that run as one product together."""
        fused = self.fused_qkv or self.library == "litgpt"
        waiting: list[tuple[Place, Linear]] = []
        for place, op in _linears(tree, include):
            joins = fused and place.node.name in PROJECTIONS
            if waiting and not (joins and waiting[0][0].above is place.above):
                yield waiting
                waiting = []
            if joins:
                waiting.append((place, op))
            else:
                yield [(place, op)]
        if waiting:
            yield waiting


def _linears(tree: Node, include: frozenset[str], layers: bool = True) -> Iterator[tuple[Place, Linear]]:
    """Yields every linear layer inside the model's layers, or outside of them, with its primitive."""
    for place in tree.walk():
        op = place.node.op
        if isinstance(op, Linear) and place.optional in {"", *include} and in_a_layer(place) == layers:
            yield place, op


def low_rank(tree: Node, adapters: LowRank, targets: Sequence[str], include: frozenset[str] = frozenset()) -> LowRank:
    """The adapters with these targets: names of linear layers, or `all-linear`.

    Raises `InputError`, naming the option, for a target that no linear layer has, for a module that the model has not,
    and for an unknown base.
    """
    if adapters.base not in BASES:
        raise InputError(f"--base {adapters.base}: not known; expected one of {', '.join(BASES)}")
    known = list(dict.fromkeys(place.node.name for place, _ in _linears(tree, include)))
    wanted = list(known) if list(targets) == [ALL_LINEAR] else list(targets)
    for name in wanted:
        if name not in known:
            raise InputError(
                f"--lora-targets {name}: no linear layer has that name; expected some of {', '.join(known)}, or "
                f"{ALL_LINEAR}.{suggest(name, known)}"
            )
    outside = [place.node.name for place in tree.walk() if place.node.op is not None and not in_a_layer(place)]
    for name in sorted(adapters.copies):
        if name not in outside:
            there = ", ".join(dict.fromkeys(outside))
            raise InputError(f"--modules-to-save {name}: no such module; expected some of {there}")
    return replace(adapters, targets=frozenset(wanted))

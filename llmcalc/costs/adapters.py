"""Low-rank adapters as closed forms: what LoRA trains (Hu et al. 2021, arXiv:2106.09685) beside frozen weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from ..algebra import Number, add, times
from ..errors import InputError, suggest
from ..flow.tree import Node, Place
from ..ops import Linear, ParamTensor
from ..run.low_rank import ALL_LINEAR, Base, nf4_bytes
from .optimizers import Held, in_a_layer

BASES: tuple[Base, ...] = get_args(Base)


@dataclass(frozen=True)
class LowRank:
    """Adapters in the place of training the weights.

    rank: the inner width of every adapter. targets: names of the linear layers that have one.
    base: how the frozen matrices of the layers are stored.
    """

    rank: int
    targets: frozenset[str]
    base: Base = "none"

    def tensors(self, tree: Node, include: frozenset[str] = frozenset()) -> list[Held]:
        """The trained tensors: A [rank, in] and B [out, rank] of every adapted layer."""
        found = []
        for place, op in linears(tree, include):
            if place.node.name in self.targets:
                for shape in ((self.rank, op.n_in), (op.n_out, self.rank)):
                    found.append(Held(ParamTensor(shape, "matrix"), place.kind, place.times))
        return found

    def narrowed(self, tree: Node, include: frozenset[str] = frozenset()) -> tuple[Number, Number]:
        """(weights that are stored in 4 bits, the bytes that they take): the matrices of linear layers in the layers.

        A matrix that belongs to another node is counted there.
        """
        weights: Number = 0
        stored: Number = 0
        if self.base == "none":
            return weights, stored
        for place, op in linears(tree, include):
            use = place.use
            if use is not None and use.has("params") and not op.tied:
                size = op.n_in * op.n_out
                weights = add(weights, times(size, place.times))
                stored = add(stored, times(nf4_bytes(size, self.base == "nf4-dq"), place.times))
        return weights, stored


def linears(tree: Node, include: frozenset[str] = frozenset()) -> Iterator[tuple[Place, Linear]]:
    """Yields every linear layer inside the model's layers, with its primitive."""
    for place in tree.walk():
        if isinstance(place.node.op, Linear) and in_a_layer(place) and place.optional in {"", *include}:
            yield place, place.node.op


def low_rank(
    tree: Node, rank: int, targets: Sequence[str], base: str = "none", include: frozenset[str] = frozenset()
) -> LowRank:
    """Returns the adapters of these settings. targets: names of linear layers, or `all-linear`.

    Raises `InputError`, naming the option, for a target that no linear layer has and for an unknown base.
    """
    if base not in BASES:
        raise InputError(f"--base {base}: not known; expected one of {', '.join(BASES)}")
    known = list(dict.fromkeys(place.node.name for place, _ in linears(tree, include)))
    wanted = list(known) if list(targets) == [ALL_LINEAR] else list(targets)
    for name in wanted:
        if name not in known:
            raise InputError(
                f"--lora-targets {name}: no linear layer has that name; expected some of {', '.join(known)}, or "
                f"{ALL_LINEAR}.{suggest(name, known)}".rstrip(".")
            )
    return LowRank(rank, frozenset(wanted), base)

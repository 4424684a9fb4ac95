"""What every primitive answers, and those that hold tensors without a product of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..algebra import Number, exact_div, times
from ..run.sight import Sight

PARAMS = frozenset({"params", "active_params", "tensors"})
BUFFERS = frozenset({"buffers"})
FLOPS = frozenset({"forward_flops", "backward_flops"})
CACHE = frozenset({"cache_bits"})
SPARED = frozenset({"spared_at_most", "spared_evenly"})
EFFECTS = PARAMS | BUFFERS | FLOPS | CACHE | SPARED
"""Everything that a primitive can have or cost. What it does not declare is 0."""


@dataclass(frozen=True, slots=True)
class ParamTensor:
    """One trainable tensor, shaped as PyTorch holds it.

    role: `matrix`, a product's weight (its last two axes; further ones are a stack of them), `table`, rows that are
    looked up, or `vector`, whatever acts element by element, biases included.
    """

    shape: tuple[Number, ...]
    role: Literal["matrix", "table", "vector"]

    @property
    def size(self) -> Number:
        """Elements."""
        n: Number = 1
        for axis in self.shape:
            n = times(n, axis)
        return n


@dataclass(frozen=True, slots=True)
class Op:
    """A primitive. It declares its effects and has a method for each of them; it costs and holds nothing else.

    params(): trainable parameters; a tied weight counts where it is first used, and nowhere else.
    tensors(): the tensors that `params` counts: an optimizer keeps its state by tensor.
    active_params(): parameters that one token passes through.
    buffers(): elements that a checkpoint holds and no gradient reaches. They are not parameters.
    forward_flops(sight), backward_flops(sight): matrix-multiply FLOPs.
    cache_bits(sight, kv_bits): bits held for the next token after this pass.
    """

    effects: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Raises `TypeError` where an effect is declared without a method, or a method stands without its effect."""
        defined = {name for name in EFFECTS for c in cls.__mro__[:-2] if name in c.__dict__}
        derived = {name for name in ("active_params", "backward_flops") if name in cls.effects}
        if cls.effects - EFFECTS:
            raise TypeError(f"{cls.__name__}.effects: {sorted(cls.effects - EFFECTS)} are no effects of an op")
        if cls.effects - defined - derived:
            raise TypeError(f"{cls.__name__}: {sorted(cls.effects - defined - derived)} declared without a method")
        if defined - cls.effects:
            raise TypeError(f"{cls.__name__}: {sorted(defined - cls.effects)} defined and not declared in effects")

    def params(self) -> Number:
        raise TypeError(f"{type(self).__name__} declares no parameters")

    def active_params(self) -> Number:
        return self.params()

    def forward_flops(self, s: Sight) -> Number:
        raise TypeError(f"{type(self).__name__} declares no FLOPs")

    def backward_flops(self, s: Sight) -> Number:
        """A product y = x·Wᵀ has two in its backward, dx = dy·W and dW = dyᵀ·x, of the same size."""
        return 2 * self.forward_flops(s)


@dataclass(frozen=True, slots=True)
class Weight(Op):
    """A vector of parameters that is added or concatenated (attention sinks): no product.

    heads: where each head has a part of it, held as [heads, 1, size / heads]. rows: where it is so many vectors, held
    as [rows, size / rows]; with heads, as [rows, heads, size / (rows · heads)].
    """

    effects = PARAMS

    size: Number
    heads: Number = None
    rows: Number = None

    def params(self) -> Number:
        return self.size

    def tensors(self) -> tuple[ParamTensor, ...]:
        if self.rows is None:
            return (ParamTensor(by_head(self.size, self.heads), "vector"),)
        each = exact_div(self.size, self.rows)
        shape = (self.rows, each) if self.heads is None else (self.rows, self.heads, exact_div(each, self.heads))
        return (ParamTensor(shape, "vector"),)


@dataclass(frozen=True, slots=True)
class Buffer(Op):
    """Values that a checkpoint holds and an optimizer does not train (DeepSeek-V3's expert score correction)."""

    effects = BUFFERS

    size: Number

    def buffers(self) -> Number:
        return self.size


@dataclass(frozen=True, slots=True)
class Elementwise(Op):
    """Something computed element by element that holds nothing: no product, 0 FLOPs."""


def by_head(size: Number, heads: Number) -> tuple[Number, ...]:
    """The shape of a vector, or of one for each head."""
    return (size,) if heads is None else (heads, 1, exact_div(size, heads))

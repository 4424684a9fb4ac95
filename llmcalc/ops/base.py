"""What every primitive answers, and those that hold tensors without a product of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..algebra import Number, exact_div, times
from ..workload import Workload


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
    """A primitive that costs nothing, unless a subclass says otherwise."""

    def params(self) -> Number:
        """Trainable parameters; a tied weight counts where it is first used, and nowhere else."""
        return 0

    def tensors(self) -> tuple[ParamTensor, ...]:
        """The tensors that `params` counts: an optimizer keeps its state by tensor, and may keep less of a matrix."""
        return ()

    def active_params(self) -> Number:
        """Parameters that one token passes through."""
        return self.params()

    def buffers(self) -> Number:
        """Elements that a checkpoint holds and no gradient reaches. Not parameters."""
        return 0

    def forward_flops(self, w: Workload) -> Number:
        return 0

    def backward_flops(self, w: Workload) -> Number:
        """A product y = x·Wᵀ has two in its backward, dx = dy·W and dW = dyᵀ·x, of the same size."""
        return 2 * self.forward_flops(w)

    def cache_bits(self, w: Workload, kv_bits: Number) -> Number:
        """Bits held for the next token after `context + seq` tokens of each sequence."""
        return 0


@dataclass(frozen=True, slots=True)
class Weight(Op):
    """A vector of parameters that is added or concatenated (attention sinks): no product.

    heads: where each head has a part of it, held as [heads, 1, size / heads]. rows: where it is so many vectors, held
    as [rows, size / rows]; with heads, as [rows, heads, size / (rows · heads)].
    """

    size: Number
    heads: Number = None
    rows: Number = None

    def params(self) -> Number:
        return self.size

    def tensors(self) -> tuple[ParamTensor, ...]:
        if self.rows is None:
            return (ParamTensor(_by_head(self.size, self.heads), "vector"),)
        each = exact_div(self.size, self.rows)
        return (
            ParamTensor(
                (self.rows, each) if self.heads is None else (self.rows, self.heads, exact_div(each, self.heads)),
                "vector",
            ),
        )


@dataclass(frozen=True, slots=True)
class Buffer(Op):
    """Values that a checkpoint holds and an optimizer does not train (DeepSeek-V3's expert score correction)."""

    size: Number

    def buffers(self) -> Number:
        return self.size


@dataclass(frozen=True, slots=True)
class Kept(Op):
    """The parameters of a primitive that runs at another node, as `Shared`:
    it holds all that `op` does, and costs nothing here.
    """

    op: Op

    def params(self) -> Number:
        return self.op.params()

    def tensors(self) -> tuple[ParamTensor, ...]:
        return self.op.tensors()

    def buffers(self) -> Number:
        return self.op.buffers()


@dataclass(frozen=True, slots=True)
class Idle(Kept):
    """The parameters of a primitive that no token of text passes (experts for images)."""

    def active_params(self) -> Number:
        return 0


@dataclass(frozen=True, slots=True)
class Shared(Op):
    """A primitive whose parameters stand at another node, where they are counted:
    it costs all that `op` does, and holds nothing.
    """

    op: Op

    def forward_flops(self, w: Workload) -> Number:
        return self.op.forward_flops(w)

    def backward_flops(self, w: Workload) -> Number:
        return self.op.backward_flops(w)

    def cache_bits(self, w: Workload, kv_bits: Number) -> Number:
        return self.op.cache_bits(w, kv_bits)


@dataclass(frozen=True, slots=True)
class Undifferentiated(Op):
    """A primitive that runs forward alone: what it makes is chosen with, and no gradient goes through a choice."""

    op: Op

    def params(self) -> Number:
        return self.op.params()

    def tensors(self) -> tuple[ParamTensor, ...]:
        return self.op.tensors()

    def forward_flops(self, w: Workload) -> Number:
        return self.op.forward_flops(w)

    def backward_flops(self, w: Workload) -> Number:
        return 0


def _by_head(size: Number, heads: Number) -> tuple[Number, ...]:
    """The shape of a vector, or of one for each head."""
    return (size,) if heads is None else (heads, 1, exact_div(size, heads))

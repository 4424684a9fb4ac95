"""The base class of primitives, and primitives with parameters or buffers but without matrix products."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..algebra import Number, exact_div, times
from ..frozen import frozen
from ..workload.run_config import RunConfig

PARAM_EFFECTS = frozenset({"params", "active_params", "tensors"})
BUFFER_EFFECTS = frozenset({"buffers"})
FLOP_EFFECTS = frozenset({"forward_flops", "backward_flops"})
CACHE_EFFECTS = frozenset({"cache_bits"})
SKIPPED_PARAM_EFFECTS = frozenset({"max_skipped_params", "mean_skipped_params"})
EFFECTS = PARAM_EFFECTS | BUFFER_EFFECTS | FLOP_EFFECTS | CACHE_EFFECTS | SKIPPED_PARAM_EFFECTS
"""All effects (parameters, FLOPs, …) that a primitive operation can declare; an undeclared effect is 0."""


@frozen(slots=True)
class ParamTensor:
    """A trainable tensor with its PyTorch shape.

    shape: its shape.
    role: `matrix`, a weight of a matrix multiplication (in its last two axes; further axes stack matrices); `table`, an
        embedding table; `vector`, any elementwise parameter, biases included.
    """

    shape: tuple[Number, ...]
    role: Literal["matrix", "table", "vector"]

    @property
    def size(self) -> Number:
        """The number of elements of the tensor."""
        element_count: Number = 1
        for axis in self.shape:
            element_count = times(element_count, axis)
        return element_count


@frozen(slots=True)
class Op:
    """The base class of primitives, which declare effects and have a method for each effect.

    params(): trainable parameters; a tied weight is counted only where it is first used.
    tensors(): the tensors that `params` counts, because optimizers keep their state per tensor.
    active_params(): parameters that one token uses.
    buffers(): elements that are stored in the checkpoint and receive no gradient. They are not parameters.
    forward_flops(run_config), backward_flops(run_config): matrix-multiplication FLOPs.
    cache_bits(run_config, kv_bits): bits that are cached for the next token after this pass.
    """

    effects: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Raises `TypeError` for a subclass whose methods do not match its declared effects."""
        effects = {effect for effect in EFFECTS for base_class in cls.__mro__[:-2] if effect in base_class.__dict__}
        effects_with_default_method = {
            effect for effect in ("active_params", "backward_flops") if effect in cls.effects
        }
        if cls.effects - EFFECTS:
            raise TypeError(f"{cls.__name__}.effects: {sorted(cls.effects - EFFECTS)} are no effects of an op")
        missing_methods = cls.effects - effects - effects_with_default_method
        if missing_methods:
            raise TypeError(f"{cls.__name__}: {sorted(missing_methods)} declared without a method")
        if effects - cls.effects:
            raise TypeError(f"{cls.__name__}: {sorted(effects - cls.effects)} defined and not declared in effects")

    def params(self) -> Number:
        raise TypeError(f"{type(self).__name__} declares no parameters")

    def active_params(self) -> Number:
        return self.params()

    def forward_flops(self, run_config: RunConfig) -> Number:
        raise TypeError(f"{type(self).__name__} declares no FLOPs")

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns twice the forward FLOPs, since the backward pass of y = x·Wᵀ has two products (dx and dW)."""
        return 2 * self.forward_flops(run_config)


@frozen(slots=True)
class Weight(Op):
    """A vector of parameters that is added or concatenated, such as attention sinks.

    size: the number of elements.
    heads: the number of heads with a part each, shaped [heads, 1, size / heads]; None for none.
    rows: the number of vectors, shaped [rows, size / rows], or with heads [rows, heads, size / (rows · heads)]; None
        for one vector.
    is_frozen: whether training sets it by a rule of its own, without a gradient.
    """

    effects = PARAM_EFFECTS

    size: Number
    heads: Number = None
    rows: Number = None
    is_frozen: bool = False

    def params(self) -> Number:
        return self.size

    def tensors(self) -> tuple[ParamTensor, ...]:
        if self.rows is None:
            return (ParamTensor(per_head_shape(self.size, self.heads), "vector"),)
        row_size = exact_div(self.size, self.rows)
        shape = (
            (self.rows, row_size) if self.heads is None else (self.rows, self.heads, exact_div(row_size, self.heads))
        )
        return (ParamTensor(shape, "vector"),)


@frozen(slots=True)
class Buffer(Op):
    """Values that are stored in the checkpoint and not trained (DeepSeek-V3's e_score_correction_bias)."""

    effects = BUFFER_EFFECTS

    size: Number

    def buffers(self) -> Number:
        return self.size


@frozen(slots=True)
class Elementwise(Op):
    """An elementwise computation without parameters, which counts 0 FLOPs."""


def per_head_shape(vector_size: Number, heads: Number) -> tuple[Number, ...]:
    """Returns the shape of one vector or, with `heads`, of one vector per head."""
    return (vector_size,) if heads is None else (heads, 1, exact_div(vector_size, heads))

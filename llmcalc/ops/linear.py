"""Maps with weights that most models have: look-ups, linear maps, experts, norms."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add
from ..run.rows import TOKENS, Rows
from ..run.sight import Sight
from .base import FLOPS, PARAMS, Op, ParamTensor, by_head


@dataclass(frozen=True, slots=True)
class Embedding(Op):
    """A look-up table: [num_embeddings, dim]. A gather is no product: 0 FLOPs."""

    effects = PARAMS

    num_embeddings: Number
    dim: Number

    def params(self) -> Number:
        return self.num_embeddings * self.dim

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.num_embeddings, self.dim), "table"),)


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """y = x·Wᵀ + b.  x: [rows, n_in] → y: [rows, n_out].

    rows: the vectors that it maps. tied: the weight is another node's, the bias its own. constant: x is not computed
    from any parameter, so that the backward has dW alone.
    """

    effects = PARAMS | FLOPS

    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = TOKENS
    tied: bool = False
    constant: bool = False

    def params(self) -> Number:
        weight = 0 if self.tied else self.n_in * self.n_out
        return add(weight, self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = () if self.tied else (ParamTensor((self.n_out, self.n_in), "matrix"),)
        return (*weight, ParamTensor((self.n_out,), "vector")) if self.bias else weight

    def forward_flops(self, s: Sight) -> Number:
        return 2 * s.rows(self.rows) * self.n_in * self.n_out

    def backward_flops(self, s: Sight) -> Number:
        """dW over all rows, dx over those that are computed from parameters."""
        rows = s.rows(self.rows)
        graded = 0 if self.constant else rows - s.constant(self.rows)
        return 2 * add(rows, graded) * self.n_in * self.n_out


@dataclass(frozen=True, slots=True)
class ExpertLinear(Op):
    """`num_experts` linear maps, of which each token passes through `top_k`.  W: [num_experts, n_out, n_in]."""

    effects = PARAMS | FLOPS

    num_experts: Number
    top_k: Number
    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = TOKENS

    def one(self) -> Number:
        """Parameters of one of the maps."""
        return add(self.n_in * self.n_out, self.n_out if self.bias else 0)

    def params(self) -> Number:
        return self.num_experts * self.one()

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = ParamTensor((self.num_experts, self.n_out, self.n_in), "matrix")
        return (weight, ParamTensor((self.num_experts, self.n_out), "vector")) if self.bias else (weight,)

    def active_params(self) -> Number:
        return self.top_k * self.one()

    def forward_flops(self, s: Sight) -> Number:
        return 2 * s.rows(self.rows) * self.top_k * self.n_in * self.n_out


@dataclass(frozen=True, slots=True)
class Norm(Op):
    """LayerNorm or RMSNorm with weights for `width` elements. Elementwise: no product.

    heads: where each head has weights of its own, held as [heads, 1, width / heads].
    """

    effects = PARAMS

    width: Number
    weight: bool = True
    bias: bool = False
    heads: Number = None

    def params(self) -> Number:
        return self.width * (self.weight + self.bias) if self.weight or self.bias else 0

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor(by_head(self.width, self.heads), "vector"),) * (self.weight + self.bias)

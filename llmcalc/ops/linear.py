"""Primitives with weights that most models have: embeddings, linear layers, experts, norms."""

from __future__ import annotations

from typing import ClassVar

from ..algebra import Number, add, minimum
from ..frozen import frozen
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .base import FLOP_EFFECTS, PARAM_EFFECTS, Op, ParamTensor, per_head_shape


@frozen(slots=True)
class Embedding(Op):
    """An embedding table: [num_embeddings, dim]. A look-up is not a matrix multiplication: 0 FLOPs.

    active_rows: the number of rows that are active for a token; all rows if None, as tables of tokens are counted.
    """

    effects = PARAM_EFFECTS

    num_embeddings: Number
    dim: Number
    active_rows: Number = None

    def params(self) -> Number:
        return self.num_embeddings * self.dim

    def active_params(self) -> Number:
        return self.params() if self.active_rows is None else minimum(self.active_rows, self.num_embeddings) * self.dim

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.num_embeddings, self.dim), "table"),)


@frozen(slots=True)
class Linear(Op):
    """A linear layer, y = x·Wᵀ + b.  x: [rows, n_in] → y: [rows, n_out].

    bias: whether it has a bias, false by default.
    rows: the rows of x.
    is_tied: whether the weight belongs to another node; the bias is its own. False by default.
    has_constant_input: whether x is computed from no parameter, so that the backward pass computes only dW; false by
        default.
    """

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = TOKENS
    is_tied: bool = False
    has_constant_input: bool = False

    def params(self) -> Number:
        matrix_params = 0 if self.is_tied else self.n_in * self.n_out
        return add(matrix_params, self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = () if self.is_tied else (ParamTensor((self.n_out, self.n_in), "matrix"),)
        return (*weight, ParamTensor((self.n_out,), "vector")) if self.bias else weight

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.n_in * self.n_out

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns the FLOPs of dW over all rows, and of dx over the rows that depend on parameters."""
        row_count = run_config.rows(self.rows)
        gradient_rows = 0 if self.has_constant_input else row_count - run_config.constant_rows(self.rows)
        return 2 * add(row_count, gradient_rows) * self.n_in * self.n_out


@frozen(slots=True)
class ExpertLinear(Op):
    """The linear layers of `num_experts` experts, of which each token uses `top_k`.  W: [num_experts, n_out, n_in]."""

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    num_experts: Number
    top_k: Number
    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = TOKENS

    def expert_params(self) -> Number:
        """Returns the number of parameters of one expert's linear layer."""
        return add(self.n_in * self.n_out, self.n_out if self.bias else 0)

    def params(self) -> Number:
        return self.num_experts * self.expert_params()

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = ParamTensor((self.num_experts, self.n_out, self.n_in), "matrix")
        return (weight, ParamTensor((self.num_experts, self.n_out), "vector")) if self.bias else (weight,)

    def active_params(self) -> Number:
        return self.top_k * self.expert_params()

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.top_k * self.n_in * self.n_out


@frozen(slots=True)
class Norm(Op):
    """LayerNorm or RMSNorm over `width` elements. Elementwise: no FLOPs.

    weight, bias: whether it has them.
    heads: the number of heads with separate weights, shaped [heads, 1, width / heads]; None for none.
    """

    effects = PARAM_EFFECTS

    width: Number
    weight: bool = True
    bias: bool = False
    heads: Number = None

    def params(self) -> Number:
        return self.width * (self.weight + self.bias) if self.weight or self.bias else 0

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor(per_head_shape(self.width, self.heads), "vector"),) * (self.weight + self.bias)

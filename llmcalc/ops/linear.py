"""Maps with weights: look-ups, linear maps, experts, convolutions, norms; and products without any."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add, ceil_div, exact_div, is_zero, minimum, times
from ..workload import Rows, Workload
from .base import Op, ParamTensor, _by_head


@dataclass(frozen=True, slots=True)
class Embedding(Op):
    """A look-up table: [num_embeddings, dim]. A gather is no product: 0 FLOPs."""

    num_embeddings: Number
    dim: Number

    def params(self) -> Number:
        return self.num_embeddings * self.dim

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.num_embeddings, self.dim), "table"),)


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """y = x·Wᵀ + b.  x: [rows, n_in] → y: [rows, n_out].

    tied: the weight is another node's, the bias its own. constant: x is no function of any parameter, so that the
    backward has dW alone.
    """

    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = "tokens"
    tied: bool = False
    constant: bool = False

    def params(self) -> Number:
        weight = 0 if self.tied else self.n_in * self.n_out
        return add(weight, self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = () if self.tied else (ParamTensor((self.n_out, self.n_in), "matrix"),)
        return (*weight, ParamTensor((self.n_out,), "vector")) if self.bias else weight

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.rows(self.rows) * self.n_in * self.n_out

    def backward_flops(self, w: Workload) -> Number:
        return (1 if self.constant else 2) * self.forward_flops(w)


@dataclass(frozen=True, slots=True)
class ExpertLinear(Op):
    """`num_experts` linear maps, of which each token passes through `top_k`.  W: [num_experts, n_out, n_in]."""

    num_experts: Number
    top_k: Number
    n_in: Number
    n_out: Number
    bias: bool = False

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

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.rows("tokens") * self.top_k * self.n_in * self.n_out


@dataclass(frozen=True, slots=True)
class IdentityExperts(Op):
    """`count` experts that hand on what they read, among which a router chooses as it does among the real ones, whose
    maps are `maps`.

    They hold nothing and run no product. How many of a token's `top_k` experts are such depends on the data; the maps
    count as though none were.
    """

    count: Number
    maps: tuple[ExpertLinear, ...]

    def _one(self) -> Number:
        """Parameters of one real expert."""
        size: Number = 0
        for one in self.maps:
            size = add(size, one.one())
        return size

    def spared_at_most(self) -> Number:
        """Parameters that a token passes fewer where as many of its experts as can be are identity ones."""
        return minimum(self.maps[0].top_k, self.count) * self._one()

    def spared_evenly(self) -> Number:
        """The same on average where all experts, real or not, are chosen alike: t·Z/(E + Z) of its t experts;
        rounded up.
        """
        experts, top_k = self.maps[0].num_experts, self.maps[0].top_k
        return ceil_div(top_k * self.count * self._one(), experts + self.count)


@dataclass(frozen=True, slots=True)
class BlockLinear(Op):
    """`blocks` linear maps side by side, each from its part of x to its part of y.
    W: [blocks, n_out / blocks, n_in / blocks].
    """

    blocks: Number
    n_in: Number
    n_out: Number
    bias: bool = False

    def params(self) -> Number:
        return add(exact_div(self.n_in * self.n_out, self.blocks), self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        part_in, part_out = exact_div(self.n_in, self.blocks), exact_div(self.n_out, self.blocks)
        weight = ParamTensor((self.blocks, part_out, part_in), "matrix")
        return (weight, ParamTensor((self.blocks, part_out), "vector")) if self.bias else (weight,)

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.rows("tokens") * exact_div(self.n_in * self.n_out, self.blocks)


@dataclass(frozen=True, slots=True)
class Product(Op):
    """A product of two activations of each token, [rows, inner] · [inner, columns]."""

    rows: Number
    inner: Number
    columns: Number

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.rows("tokens") * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Norm(Op):
    """LayerNorm or RMSNorm with weights for `width` elements. Elementwise: no product.

    heads: where each head has weights of its own, held as [heads, 1, width / heads].
    """

    width: Number
    weight: bool = True
    bias: bool = False
    heads: Number = None

    def params(self) -> Number:
        return self.width * (self.weight + self.bias) if self.weight or self.bias else 0

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor(_by_head(self.width, self.heads), "vector"),) * (self.weight + self.bias)


@dataclass(frozen=True, slots=True)
class Conv1d(Op):
    """A convolution along the tokens.  x: [batch, n_in, tokens] → y: [batch, n_out, tokens].  W: [n_out, n_in / groups,
    kernel].

    padding: outputs beyond the tokens' own that a pass from the first token computes and cuts off (kernel − 1 where
    zeros stand on both sides, as most implementations have it); a pass that goes on from a kept state computes none.
    per_token: outputs for each token (2 below a stride of 2). overlap: outputs before the tokens' own that every pass
    computes, for another convolution to see. constant: as a `Linear`'s.
    """

    n_in: Number
    n_out: Number
    kernel: Number
    groups: Number = 1
    bias: bool = False
    padding: Number = 0
    per_token: Number = 1
    constant: bool = False
    overlap: Number = 0

    def params(self) -> Number:
        weight = self.n_out * exact_div(self.n_in, self.groups) * self.kernel
        return add(weight, self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        weight = ParamTensor((self.n_out, exact_div(self.n_in, self.groups), self.kernel), "vector")
        return (weight, ParamTensor((self.n_out,), "vector")) if self.bias else (weight,)

    def forward_flops(self, w: Workload) -> Number:
        goes_on = w.phase == "decode" or not is_zero(w.context)
        outputs = times(w.seq, self.per_token)
        outputs = add(outputs, self.overlap)
        outputs = outputs if goes_on else add(outputs, self.padding)
        return 2 * w.batch * outputs * self.n_out * exact_div(self.n_in, self.groups) * self.kernel

    def backward_flops(self, w: Workload) -> Number:
        return (1 if self.constant else 2) * self.forward_flops(w)


@dataclass(frozen=True, slots=True)
class TableLinear(Linear):
    """A map of the rows of a table, whatever the batch:
    all `table_rows`, or two for each token where that is fewer (`by_tokens`).
    """

    table_rows: Number = 0
    by_tokens: bool = False

    def forward_flops(self, w: Workload) -> Number:
        return 2 * _rows_met(w, self.table_rows, self.by_tokens) * self.n_in * self.n_out


@dataclass(frozen=True, slots=True)
class TableScores(Op):
    """Every head's products of each token's vector with the mapped rows of a table, counted as in `TableLinear`."""

    heads: Number
    head_dim: Number
    table_rows: Number
    by_tokens: bool = False

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.batch * w.seq * self.heads * self.head_dim * _rows_met(w, self.table_rows, self.by_tokens)


def _rows_met(w: Workload, rows: Number, by_tokens: bool) -> Number:
    return minimum(2 * w.seq, rows) if by_tokens else rows

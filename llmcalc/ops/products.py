"""Less common matrix products: convolutions, block-diagonal layers, residual streams, tables, activations."""

from __future__ import annotations

from typing import ClassVar

from ..algebra import Number, add, ceil_div, exact_div, floor_div, minimum
from ..frozen import frozen
from ..workload.derived_rows import EmbeddingRows
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .base import FLOP_EFFECTS, PARAM_EFFECTS, SKIPPED_PARAM_EFFECTS, Op, ParamTensor
from .linear import ExpertLinear, Linear


@frozen(slots=True)
class CompressionLinear(Linear):
    """A linear layer whose outputs are compressed, several tokens each; without a complete one it has no gradient."""

    tokens_per_entry: Number = 1

    def backward_flops(self, run_config: RunConfig) -> Number:
        return (
            2
            * self.forward_flops(run_config)
            * minimum(floor_div(run_config.new_rows(self.rows), self.tokens_per_entry), 1)
        )


@frozen(slots=True)
class IdentityExperts(Op):
    """`identity_count` experts that return their input unchanged and compete with real experts in the router.

    They have no parameters and no FLOPs. How many of a token's `top_k` experts are identity experts depends on the
    data; the real experts are counted as if there were none.

    identity_count: the number of identity experts.
    expert_layers: the linear layers of the real experts.
    """

    effects = SKIPPED_PARAM_EFFECTS

    identity_count: Number
    expert_layers: tuple[ExpertLinear, ...]

    def _expert_params(self) -> Number:
        """Returns the number of parameters of one real expert, which a token skips by selecting an identity expert."""
        parameter_count: Number = 0
        for expert_layer in self.expert_layers:
            parameter_count = add(parameter_count, expert_layer.expert_params())
        return parameter_count

    def max_skipped_params(self) -> Number:
        """Returns the largest number of parameters that a token can skip by selecting identity experts."""
        return minimum(self.expert_layers[0].top_k, self.identity_count) * self._expert_params()

    def mean_skipped_params(self) -> Number:
        """Returns the parameters that a token skips on average if all experts are selected equally often.

        With E real and Z identity experts and top-t: t·Z/(E + Z) of its t experts; rounded up.
        """
        expert_count, top_k = self.expert_layers[0].num_experts, self.expert_layers[0].top_k
        return ceil_div(top_k * self.identity_count * self._expert_params(), expert_count + self.identity_count)


@frozen(slots=True)
class BlockLinear(Op):
    """A block-diagonal linear layer: each of `block_count` blocks maps one slice of x to one slice of y.

    W: [blocks, n_out / blocks, n_in / blocks].
    """

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    block_count: Number
    n_in: Number
    n_out: Number
    bias: bool = False
    rows: Rows = TOKENS

    def params(self) -> Number:
        return add(exact_div(self.n_in * self.n_out, self.block_count), self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        inputs_per_block = exact_div(self.n_in, self.block_count)
        outputs_per_block = exact_div(self.n_out, self.block_count)
        weight = ParamTensor((self.block_count, outputs_per_block, inputs_per_block), "matrix")
        return (weight, ParamTensor((self.block_count, outputs_per_block), "vector")) if self.bias else (weight,)

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * exact_div(self.n_in * self.n_out, self.block_count)


@frozen(slots=True)
class Product(Op):
    """A product of two activations per row, [outer, inner] · [inner, columns], without parameters."""

    effects = FLOP_EFFECTS

    row_count: Number
    inner_size: Number
    column_count: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.row_count * self.inner_size * self.column_count


@frozen(slots=True)
class ExpertRows(Op):
    """A table with one vector per expert; each token uses the vectors of `top_k` experts (Doge)."""

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    num_experts: Number
    top_k: Number
    width: Number
    rows: Rows = TOKENS

    def params(self) -> Number:
        return self.num_experts * self.width

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.num_experts, self.width), "table"),)

    def active_params(self) -> Number:
        return self.top_k * self.width

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.top_k * self.width


@frozen(slots=True)
class BlockSumMatmul(Op):
    """Sums over each block of `block_size` tokens, as a product with a 0/1 matrix without a gradient (LongT5)."""

    effects = FLOP_EFFECTS

    width: Number
    block_size: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * floor_div(run_config.new_rows(self.rows), self.block_size) * self.width

    def backward_flops(self, run_config: RunConfig) -> Number:
        return self.forward_flops(run_config)


@frozen(slots=True)
class ResidualStreamMix(Op):
    """Per token, the product of a [streams, streams] matrix and the residual streams (hyper-connections).

    The streams are [streams, width]. Neither factor is a parameter.
    """

    effects = FLOP_EFFECTS

    stream_count: Number
    width: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.stream_count * self.stream_count * self.width


@frozen(slots=True)
class ResidualStreamOffsets(Op):
    """The parameters of a hyper-connection: an offset per stream weight, and a scale per kind of weight."""

    effects = PARAM_EFFECTS

    weight_count: Number
    weight_kinds: Number

    def params(self) -> Number:
        return self.weight_count + self.weight_kinds

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.weight_count,), "vector"), ParamTensor((self.weight_kinds,), "vector"))


@frozen(slots=True)
class Conv1d(Op):
    """A convolution along the tokens.  x: [batch, n_in, tokens] → y: [batch, n_out, tokens].

    W: [n_out, n_in / groups, kernel].
    kernel: the kernel size.
    groups: the number of channel groups, 1 by default.
    bias: whether it has a bias, false by default.
    padding: the number of further outputs that a pass from the first token computes and cuts off (kernel − 1 with zeros
        on both sides, as in most implementations), 0 by default; a pass that continues from a cached state computes
        none.
    has_constant_input: whether x is computed from no parameter, as in `Linear`; false by default.
    overlap_outputs: the number of outputs before the new rows that every pass computes, as input of another
        convolution; 0 by default.
    rows: the rows of the output.
    outputs_per_filter: the number of outputs that have one filter, 1 by default.
    """

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    n_in: Number
    n_out: Number
    kernel: Number
    groups: Number = 1
    bias: bool = False
    padding: Number = 0
    has_constant_input: bool = False
    overlap_outputs: Number = 0
    rows: Rows = TOKENS
    outputs_per_filter: Number = 1

    def params(self) -> Number:
        weight = exact_div(self.n_out, self.outputs_per_filter) * exact_div(self.n_in, self.groups) * self.kernel
        return add(weight, self.n_out if self.bias else 0)

    def tensors(self) -> tuple[ParamTensor, ...]:
        filter_count = exact_div(self.n_out, self.outputs_per_filter)
        weight = ParamTensor((filter_count, exact_div(self.n_in, self.groups), self.kernel), "vector")
        return (weight, ParamTensor((self.n_out,), "vector")) if self.bias else (weight,)

    def forward_flops(self, run_config: RunConfig) -> Number:
        output_rows = add(run_config.new_rows(self.rows), self.overlap_outputs)
        output_rows = output_rows if run_config.has_earlier_tokens(self.rows) else add(output_rows, self.padding)
        return 2 * run_config.batch * output_rows * self.n_out * exact_div(self.n_in, self.groups) * self.kernel

    def backward_flops(self, run_config: RunConfig) -> Number:
        return (1 if self.has_constant_input else 2) * self.forward_flops(run_config)


@frozen(slots=True)
class DynamicConvolution(Op):
    """A convolution along the tokens per head, with filters that are inputs computed per token (ConvBERT).

    Filters: [rows, heads, kernel].
    """

    effects = FLOP_EFFECTS

    heads: Number
    head_dim: Number
    kernel: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.heads * self.head_dim * self.kernel


@frozen(slots=True)
class TableScores(Op):
    """The product, per head, of each token's vector with the projected rows of a table."""

    effects = FLOP_EFFECTS

    heads: Number
    head_dim: Number
    table_rows: EmbeddingRows
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.heads * self.head_dim * run_config.new_rows(self.table_rows)

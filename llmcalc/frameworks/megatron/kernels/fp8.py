"""Linear layers in 8 bits: what is multiplied is a byte for each element, and scales.

A product reads its operands by rows; what another product reads by columns is kept a second time for it. With one
scale for a tensor that copy is the transposed one, which only tensor cores before Blackwell's need; with scales of
blocks it has scales of its own. So the input of a layer is used by rows, and saved by columns. Where ranks divide its
rows, they gather it again in the backward pass; a tensor with one scale is gathered by rows alone.

Sources: TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, linear.py and base.py
(`quantize_weight`, `grad_output_preprocess`), distributed.py (`_all_gather_fp8`, `_start_all_gather_fp8_blockwise`,
`_all_gather_mxfp8`), tensor/*.py (`inner_tensor_specs`), quantization.py (`DelayedScalingRecipeState`) and
csrc/extensions/normalization.cpp; Megatron-LM, megatron/core/fp8_utils.py and megatron/core/transformer/attention.py
(`set_save_original_input`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....algebra import Number, ceil_div, exact_div
from ....flow.program import Step
from ....simulator.strides import Shape, count
from ....simulator.tensor import FLOAT32, UINT8, Dtype, Gradient, Needs, Tensor
from .choices import RankChoices
from .gated_delta import DeltaKernels
from .lowering import direct_steps

Specs = list[tuple[Shape, Dtype]]


class Quantized(NamedTuple):
    """A tensor in 8 bits with its scales: by rows, and by columns. Both may have tensors in common."""

    rows: list[Tensor]
    columns: list[Tensor]


def up(n: Number, multiple: int) -> Number:
    return ceil_div(n, multiple) * multiple


def specs(recipe: str, rows: Number, width: Number, weight: bool = False) -> tuple[Specs, Specs]:
    """The shapes of a tensor by rows, and of it by columns. weight: its blocks have two sides."""
    data, turned = ((rows, width), UINT8), ((width, rows), UINT8)
    if recipe == "mxfp8":
        return (
            [data, ((up(rows, 128), up(ceil_div(width, 32), 4)), UINT8)],
            [data, ((up(ceil_div(rows, 32), 4), up(width, 128)), UINT8)],
        )
    if recipe == "blockwise":
        r, w = ceil_div(rows, 128), ceil_div(width, 128)
        first, second = ((r, up(w, 4)), (w, up(r, 4))) if weight else ((w, up(rows, 4)), (r, up(width, 4)))
        return [data, (first, FLOAT32)], [turned, (second, FLOAT32)]
    return [data, ((1,), FLOAT32)], [turned]


def weight_sizes(choices: RankChoices, rows: Number, width: Number) -> list[int]:
    """Bytes of what a weight in 8 bits has: its elements by rows, scales, and what products read by columns."""
    by_rows, by_columns = specs(choices.narrow, rows, width, weight=True)
    tensors = [*by_rows, *(by_columns if choices.narrow not in ONE_SCALE or choices.transposes else [])]
    return [int(count(shape)) * dtype.bytes for shape, dtype in tensors]


def state_sizes(choices: RankChoices) -> list[int]:
    """Bytes of the scales and of the history of maxima that a layer has with delayed scaling: of its input, weight and
    output, and of two gradients.
    """
    return (
        [4 * n for tensors in (3, 2) for n in (tensors, tensors * choices.history)]
        if choices.narrow == "delayed"
        else []
    )


ONE_SCALE = ("tensorwise", "delayed")
"""Recipes with one scale for a tensor."""

ALIGNED = 16
"""Rows of each expert are padded to a multiple of this, or of a block (core/fp8_utils.py, `get_fp8_align_size`)."""

MULTIPLES = {"blockwise": 128, "mxfp8": 32}
"""Recipe → what rows and widths are multiples of; others are gathered in 16 bits."""


class NarrowKernels(DeltaKernels):
    """Products of Transformer Engine's linear layers in 8 bits, but for layers that stay wide."""

    @property
    def runs_in_fp8(self) -> bool:
        """Whether the layer that runs multiplies in 8 bits."""
        choices = self.rank_choices
        if choices.narrow == "none":
            return False
        layer_index = next((frame.layer_index for frame in self.frames if frame.layer_index is not None), None)
        if layer_index is None or self.in_multi_token_prediction:
            return True
        first, last = choices.wide_layers
        return first <= layer_index < choices.layers - last

    def quantize(self, rows: Number, width: Number, by_rows: bool = True, by_columns: bool = True) -> Quantized:
        """A tensor in 8 bits, as its products read it."""
        choices = self.rank_choices
        row_specs, column_specs = specs(choices.narrow, rows, width)
        if choices.narrow not in ONE_SCALE:
            return Quantized(
                [self.graph.new(*spec) for spec in row_specs] if by_rows else [],
                [self.graph.new(*spec) for spec in column_specs] if by_columns else [],
            )
        data = [self.graph.new(*row_specs[0])] if by_rows or not choices.transposes else []
        transposed = [self.graph.new(*column_specs[0])] if by_columns and choices.transposes else []
        scale = self.graph.new(*row_specs[1])
        if not choices.transposes:
            return Quantized([*data, scale], [*data, scale])
        return Quantized([*data, scale], [*transposed, scale] if transposed else [])

    def quantize_experts(self, rows: Number, width: Number, n: int, by_columns: bool = True) -> Quantized:
        """n tensors of as many rows. With scales of blocks, all of them by rows are one, and by columns
        (csrc/extensions/cast.cpp, `bulk_allocate_fp8_blockwise_tensors`).
        """
        if self.rank_choices.narrow in ONE_SCALE:
            parts = [self.quantize(rows, width, by_columns=by_columns) for _ in range(n)]
            return Quantized([x for part in parts for x in part.rows], [x for part in parts for x in part.columns])
        sizes = []
        for (data, _), (scales, dtype) in specs(self.rank_choices.narrow, rows, width):
            size = n * (up(count(data), 256) + up(count(scales) * dtype.bytes, 16))
            sizes.append(size)
        by_rows = [self.graph.new((sizes[0],), UINT8)]
        return Quantized(by_rows, [self.graph.new((sizes[1],), UINT8)] if by_columns else [])

    def gather_quantized(
        self, rows: Number, width: Number, by_rows: bool, by_columns: bool
    ) -> tuple[Quantized, list[Tensor]]:
        """What is gathered from ranks that divide rows, and what lies between ranks' parts while it is sorted."""
        multiple = MULTIPLES.get(self.rank_choices.narrow, 1)
        if exact_div(rows, self.rank_choices.tensor) % multiple or width % multiple:
            raise self.unsupported(
                f"{rows} rows of {width} elements on {self.rank_choices.tensor} ranks; expected multiples of {multiple}"
            )
        quantized = self.quantize(rows, width, by_rows, by_columns)
        if self.rank_choices.narrow != "blockwise":
            return quantized, []
        sorting_buffers = [self.graph.new(x.shape, x.dtype) for x in (*quantized.rows[1:], *quantized.columns[:1])]
        return quantized, sorting_buffers

    def quantize_weight(self, weight: Tensor) -> None:
        """A weight in 8 bits, which stays from its first use on; a weight that is in 8 bits itself needs no other."""
        data_sizes = [] if self.rank_choices.narrow_weights else weight_sizes(self.rank_choices, *weight.shape)
        self.persistent.keep_quantized_weight(weight, [*data_sizes, *state_sizes(self.rank_choices)])

    @property
    def gathers_rows_alone(self) -> bool:
        """Whether tensors are gathered by rows alone."""
        return self.rank_choices.narrow in ONE_SCALE

    def engine_column_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], waiting: Step | None
    ) -> Tensor:
        """LayerNormLinear, or Linear. A norm with delayed scaling makes bytes at once."""
        if not self.runs_in_fp8:
            return super().engine_column_linear(x, weight, bias, norm, waiting)
        if self.saves_wide_input and waiting is None:
            return self.wide_input_column_linear(x, weight, bias)
        divided, gathers_rows_alone = (
            self.rank_choices.sequence_parallel,
            self.gathers_rows_alone and self.rank_choices.sequence_parallel,
        )
        local, n_in = x.shape
        rows, n_out = local * self.rank_choices.tensor if divided else local, weight.shape[0]
        statistics: list[Tensor] = []
        norm_output: Tensor | None = None
        if waiting is not None:
            norm_output = None if self.rank_choices.narrow == "delayed" else self.like(x)
            has_mean = waiting.options["spec"].type == "layernorm"
            statistics = [self.statistics(local) for _ in range(2 if has_mean else 1)]
        quantized_input = self.quantize(local, n_in, by_columns=not gathers_rows_alone and self.graph.enabled)
        del norm_output
        self.quantize_weight(weight)
        in_user_buffers = self.rank_choices.user_buffers
        gathered = self.gather_quantized(rows, n_in, True, False) if divided and not in_user_buffers else None
        self.use_overlap_workspaces()
        out = self.new(rows, n_out)
        del gathered
        ins = [x, *norm, weight, *([] if bias is None else [bias])]
        norm_shapes, bias_shape = [tensor.shape for tensor in norm], None if bias is None else bias.shape
        shape, with_norm = x.shape, waiting is not None

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            new = self.new
            bias = [] if bias_shape is None else [self.graph.new(bias_shape, g.dtype)]
            quantized_gradient = [self.quantize(rows, n_out)]
            gathered = (
                [self.gather_quantized(rows, n_in, gathers_rows_alone, not gathers_rows_alone)]
                if divided and not in_user_buffers
                else []
            )
            self.use_overlap_workspaces()
            input_gradient: Tensor | None = None if in_user_buffers else new(rows, n_in)
            scattered = new(local, n_in) if divided and not in_user_buffers else None
            transposed = [new(n_in, rows, UINT8)] if gathers_rows_alone and self.rank_choices.transposes else []
            weight_gradient = self.weight_gradient(weight)
            if in_user_buffers:
                input_gradient = new(local, n_in)
            for i in input_places:
                saved_tensors[i] = None  # clear_tensor_data(ln_out)
            gathered.clear()
            transposed.clear()
            if divided:
                quantized_gradient.clear()
            if not with_norm:
                return [input_gradient if scattered is None else scattered, weight_gradient, *bias]
            x_gradient = self.graph.new(shape, g.dtype)
            del input_gradient, scattered
            return [
                x_gradient,
                *(self.graph.new(input_shape, g.dtype) for input_shape in norm_shapes),
                weight_gradient,
                *bias,
            ]

        saved_input = quantized_input.rows if gathers_rows_alone else quantized_input.columns
        saved = [*saved_input, *([x] if with_norm else []), *statistics]
        input_places = range(len(saved_input))
        del quantized_input, saved_input
        self.node("norm_linear" if with_norm else "linear", ins, [out], backward, *saved)
        return out

    @property
    def saves_wide_input(self) -> bool:
        """Whether shared experts run: the router saves their input in 16 bits (shared_experts.py)."""
        shared = any(frame.scope.about.get("kind") == "shared_expert" for frame in self.frames)
        return shared and self.rank_choices.narrow != "delayed"

    def wide_input_column_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Linear that saves its input in 16 bits, and quantizes it again in its backward pass."""
        divided, gathers_rows_alone = (
            self.rank_choices.sequence_parallel,
            self.gathers_rows_alone and self.rank_choices.sequence_parallel,
        )
        local, n_in = x.shape
        rows, n_out = local * self.rank_choices.tensor if divided else local, weight.shape[0]
        quantized_input = self.quantize(local, n_in, by_columns=False)
        self.quantize_weight(weight)
        gathered = self.gather_quantized(rows, n_in, True, False) if divided else None
        self.persistent.use_engine_workspace()
        out = self.new(rows, n_out)
        del gathered, quantized_input
        bias_shape = None if bias is None else bias.shape

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            bias_gradients = [] if bias_shape is None else [self.graph.new(bias_shape, g.dtype)]
            quantized_gradient = [self.quantize(rows, n_out)]
            requantized = [self.quantize(local, n_in, self.gathers_rows_alone, not gathers_rows_alone)]
            gathered = (
                [self.gather_quantized(rows, n_in, gathers_rows_alone, not gathers_rows_alone)] if divided else []
            )
            self.persistent.use_engine_workspace()
            input_gradient = self.new(rows, n_in)
            scattered = self.new(local, n_in) if divided else None
            transposed = [self.new(n_in, rows, UINT8)] if gathers_rows_alone and self.rank_choices.transposes else []
            weight_gradient = self.weight_gradient(weight)
            requantized.clear()
            gathered.clear()
            transposed.clear()
            if divided:
                quantized_gradient.clear()
            return [input_gradient if scattered is None else scattered, weight_gradient, *bias_gradients]

        self.node("linear", [x, weight, *([] if bias is None else [bias])], [out], backward, x)
        return out

    def grouped_linear(self, step: Step, x: Tensor, width: Number) -> Tensor:
        """TEGroupedLinear: the rows of each expert have a scale of their own."""
        if not self.runs_in_fp8:
            return super().grouped_linear(step, x, width)
        (rows, n_in), experts = x.shape, self.local_experts
        rows_per_expert = rows // experts
        multiple = MULTIPLES["mxfp8"] if self.rank_choices.narrow == "mxfp8" else ALIGNED
        if rows_per_expert * experts != rows or rows_per_expert % multiple:
            raise self.unsupported(
                f"{rows} rows of {experts} experts in 8 bits; expected a multiple of {multiple} rows of each", step.name
            )
        weights, biases = self.expert_weights(step, n_in, width, "expert")
        quantized_input = self.quantize_experts(rows_per_expert, n_in, experts, self.graph.enabled)
        for parameter in weights:
            self.quantize_weight(parameter)
        self.persistent.use_grouped_workspaces()
        out = self.new(rows, width)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            bias_gradients = [self.graph.new(parameter.shape, g.dtype) for parameter in biases]
            _narrow = self.quantize_experts(rows_per_expert, width, experts)
            self.persistent.use_grouped_workspaces()
            input_gradient = self.new(rows, n_in)
            weight_gradients = [self.weight_gradient(parameter) for parameter in weights]
            saved_tensors[:] = [None] * len(saved_tensors)  # clear_tensor_data(*inputmats)
            return [input_gradient, *weight_gradients, *bias_gradients]

        saved = quantized_input.columns
        del quantized_input
        self.node("grouped_linear", (x, *weights, *biases), [out], backward, *saved)
        return out

    def row_linear(self, step: Step, x: Tensor) -> Tensor:
        """Linear. The output of attention is saved as attention saves it, in 16 bits, but with delayed scaling."""
        if not self.runs_in_fp8:
            return super().row_linear(step, x)
        weight, self.row_bias = self.linear_weights(step, step.outs[0].width, "row")
        attends = any(sibling.verb == "attention" for sibling in direct_steps(self.module_of_step[id(step)]))
        saves_wide = attends and self.rank_choices.narrow != "delayed"
        return self.quantized_linear("row_linear", x, weight, saves_wide, self.rank_choices.sequence_parallel)

    def undivided_linear(self, step: Step, x: Tensor) -> Tensor:
        if not self.runs_in_fp8 or step.about.get("kind") in ("router", "shared_expert"):
            return super().undivided_linear(step, x)
        weight, bias = self.linear_weights(step, step.outs[0].width, "matrix")
        if bias is not None:
            raise self.unsupported("no kernels for a bias of a product in 8 bits that every rank computes", step.name)
        return self.quantized_linear("linear", x, weight, False, False)

    def quantized_linear(self, name: str, x: Tensor, weight: Tensor, saves_wide: bool, divided: bool) -> Tensor:
        """whole: whether the input is saved in 16 bits. divided: whether the output's rows are, after a sum."""
        (rows, n_in), n_out = x.shape, weight.shape[0]
        quantized_input = self.quantize(rows, n_in, by_columns=not saves_wide and self.graph.enabled)
        self.quantize_weight(weight)
        in_user_buffers = self.rank_choices.user_buffers and divided
        if in_user_buffers:
            self.use_overlap_workspaces()
        else:
            self.persistent.use_engine_workspace()
        out = self.new(self.local_rows(rows) if in_user_buffers else rows, n_out)
        if divided and not in_user_buffers:
            out = self.new(self.local_rows(rows), n_out)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            if in_user_buffers:
                quantized_gradient = [self.quantize(self.local_rows(rows), n_out)]
            elif divided:
                local_gradient = [self.quantize(self.local_rows(rows), n_out, by_columns=not self.gathers_rows_alone)]
                gathered, sorting_buffers = self.gather_quantized(rows, n_out, True, True)
                quantized_gradient = [gathered]
                local_gradient.clear()
                del gathered, sorting_buffers
            else:
                quantized_gradient = [self.quantize(rows, n_out)]
            requantized = [self.quantize(rows, n_in, by_rows=self.gathers_rows_alone)] if saves_wide else []
            self.persistent.use_engine_workspace()
            input_gradient = self.new(rows, n_in)
            weight_gradient = self.weight_gradient(weight)
            requantized.clear()
            if not saves_wide:
                saved_tensors[:] = [None] * len(saved_tensors)  # clear_tensor_data(inputmat_total)
            if divided:
                quantized_gradient.clear()
            return [input_gradient, weight_gradient]

        saved = [x] if saves_wide else quantized_input.columns
        del quantized_input
        self.node(name, (x, weight), [out], backward, *saved)
        return out

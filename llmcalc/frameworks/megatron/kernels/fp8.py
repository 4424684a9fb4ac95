"""The kernels of linear layers with 8-bit inputs: one byte per element, plus scales.

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

from typing import NamedTuple

from ....algebra import Number, ceil_div, exact_div, round_up
from ....flow.program import Step
from ....simulator.strides import Shape, numel
from ....simulator.tensor import FLOAT32, UINT8, Dtype, NeedsInputGrad, Tensor
from .gated_delta import DeltaKernels
from .lowering import Gradients, SavedTensors, operations_outside_submodules
from .rank_choices import RankKernelChoices

TensorSpecs = list[tuple[Shape, Dtype]]


class QuantizedTensor(NamedTuple):
    """An 8-bit tensor and its scales in rowwise and columnwise form; both forms may share tensors."""

    rowwise: list[Tensor]
    columnwise: list[Tensor]


def quantized_specs(
    recipe: str, row_count: Number, row_width: Number, is_weight: bool = False
) -> tuple[TensorSpecs, TensorSpecs]:
    """Returns shapes and formats of an 8-bit tensor's rowwise and columnwise copies. is_weight: 2D blocks."""
    element_spec, transposed_spec = ((row_count, row_width), UINT8), ((row_width, row_count), UINT8)
    if recipe == "mxfp8":
        return (
            [element_spec, ((round_up(row_count, 128), round_up(ceil_div(row_width, 32), 4)), UINT8)],
            [element_spec, ((round_up(ceil_div(row_count, 32), 4), round_up(row_width, 128)), UINT8)],
        )
    if recipe == "blockwise":
        row_blocks, column_blocks = ceil_div(row_count, 128), ceil_div(row_width, 128)
        row_scales_shape, column_scales_shape = (
            ((row_blocks, round_up(column_blocks, 4)), (column_blocks, round_up(row_blocks, 4)))
            if is_weight
            else ((column_blocks, round_up(row_count, 4)), (row_blocks, round_up(row_width, 4)))
        )
        return [element_spec, (row_scales_shape, FLOAT32)], [transposed_spec, (column_scales_shape, FLOAT32)]
    return [element_spec, ((1,), FLOAT32)], [transposed_spec]


def weight_sizes(kernel_choices: RankKernelChoices, row_count: Number, row_width: Number) -> list[int]:
    """Returns the bytes of each tensor of an 8-bit weight: rowwise elements and scales, then columnwise ones."""
    rowwise_specs, columnwise_specs = quantized_specs(kernel_choices.fp8_recipe, row_count, row_width, is_weight=True)
    tensor_specs = [
        *rowwise_specs,
        *(
            columnwise_specs
            if kernel_choices.fp8_recipe not in PER_TENSOR_SCALE_RECIPES or kernel_choices.saves_transposed_operands
            else []
        ),
    ]
    return [int(numel(tensor_shape)) * dtype.bytes for tensor_shape, dtype in tensor_specs]


def state_sizes(kernel_choices: RankKernelChoices) -> list[int]:
    """Returns the bytes of a layer's delayed-scaling state: scales and maxima histories.

    Three belong to the input, weight and output, two to gradients.
    """
    return (
        [
            4 * tensor_count
            for direction_factor in (3, 2)
            for tensor_count in (direction_factor, direction_factor * kernel_choices.amax_history_length)
        ]
        if kernel_choices.fp8_recipe == "delayed"
        else []
    )


PER_TENSOR_SCALE_RECIPES = ("tensorwise", "delayed")
"""Quantization recipes with one scale per tensor."""

EXPERT_ROW_ALIGNMENT = 16
"""Rows per expert are a multiple of this, or of a scaling block (core/fp8_utils.py, `get_fp8_align_size`)."""

SIZE_MULTIPLE_BY_RECIPE = {"blockwise": 128, "mxfp8": 32}
"""Quantization recipe → number that must divide rows and widths; tensors of other sizes are gathered in 16 bits."""


class Fp8Kernels(DeltaKernels):
    """Transformer Engine's linear layers with 8-bit products, except in layers that stay in bf16."""

    @property
    def runs_in_fp8(self) -> bool:
        """Whether the current layer has 8-bit matrix products."""
        kernel_choices = self.rank_choices
        if kernel_choices.fp8_recipe == "none":
            return False
        layer_index = next(
            (module_call.layer_index for module_call in self.frames if module_call.layer_index is not None), None
        )
        if layer_index is None or self.is_in_multi_token_prediction:
            return True
        first_bf16_layers, last_bf16_layers = kernel_choices.bf16_layer_counts
        return first_bf16_layers <= layer_index < kernel_choices.model_layer_count - last_bf16_layers

    def quantize(
        self, row_count: Number, row_width: Number, needs_rowwise: bool = True, needs_columnwise: bool = True
    ) -> QuantizedTensor:
        """Returns an 8-bit tensor, quantized rowwise or columnwise as the products need."""
        kernel_choices = self.rank_choices
        row_specs, column_specs = quantized_specs(kernel_choices.fp8_recipe, row_count, row_width)
        if kernel_choices.fp8_recipe not in PER_TENSOR_SCALE_RECIPES:
            return QuantizedTensor(
                [self.graph.new_tensor(*tensor_spec) for tensor_spec in row_specs] if needs_rowwise else [],
                [self.graph.new_tensor(*tensor_spec) for tensor_spec in column_specs] if needs_columnwise else [],
            )
        row_tensors = (
            [self.graph.new_tensor(*row_specs[0])]
            if needs_rowwise or not kernel_choices.saves_transposed_operands
            else []
        )
        transposed_tensors = (
            [self.graph.new_tensor(*column_specs[0])]
            if needs_columnwise and kernel_choices.saves_transposed_operands
            else []
        )
        row_scale = self.graph.new_tensor(*row_specs[1])
        if not kernel_choices.saves_transposed_operands:
            return QuantizedTensor([*row_tensors, row_scale], [*row_tensors, row_scale])
        return QuantizedTensor(
            [*row_tensors, row_scale], [*transposed_tensors, row_scale] if transposed_tensors else []
        )

    def quantize_experts(
        self, row_count: Number, row_width: Number, expert_count: int, needs_columnwise: bool = True
    ) -> QuantizedTensor:
        """Returns the 8-bit inputs of several experts, each expert with the same number of rows.

        Recipes with blocks allocate one tensor by rows and one by columns for all experts
        (csrc/extensions/cast.cpp, `bulk_allocate_fp8_blockwise_tensors`).
        """
        if self.rank_choices.fp8_recipe in PER_TENSOR_SCALE_RECIPES:
            quantized_experts = [
                self.quantize(row_count, row_width, needs_columnwise=needs_columnwise) for _ in range(expert_count)
            ]
            return QuantizedTensor(
                [x for expert_tensors in quantized_experts for x in expert_tensors.rowwise],
                [x for expert_tensors in quantized_experts for x in expert_tensors.columnwise],
            )
        buffer_sizes = []
        for (data_shape, _), (scales_shape, dtype) in quantized_specs(
            self.rank_choices.fp8_recipe, row_count, row_width
        ):
            nbytes = expert_count * (round_up(numel(data_shape), 256) + round_up(numel(scales_shape) * dtype.bytes, 16))
            buffer_sizes.append(nbytes)
        row_buffers = [self.graph.new_tensor((buffer_sizes[0],), UINT8)]
        return QuantizedTensor(
            row_buffers, [self.graph.new_tensor((buffer_sizes[1],), UINT8)] if needs_columnwise else []
        )

    def gather_quantized(
        self, row_count: Number, row_width: Number, needs_rowwise: bool, needs_columnwise: bool
    ) -> tuple[QuantizedTensor, list[Tensor]]:
        """All-gathers an 8-bit tensor over sequence-parallel ranks; also returns buffers for sorting its rows."""
        row_multiple = SIZE_MULTIPLE_BY_RECIPE.get(self.rank_choices.fp8_recipe, 1)
        if exact_div(row_count, self.rank_choices.tp) % row_multiple or row_width % row_multiple:
            raise self.unsupported(
                f"{row_count} rows of {row_width} elements on {self.rank_choices.tp} ranks; "
                f"expected multiples of {row_multiple}"
            )
        quantized_tensor = self.quantize(row_count, row_width, needs_rowwise, needs_columnwise)
        if self.rank_choices.fp8_recipe != "blockwise":
            return quantized_tensor, []
        sorting_buffers = [
            self.graph.new_tensor(x.shape, x.dtype)
            for x in (*quantized_tensor.rowwise[1:], *quantized_tensor.columnwise[:1])
        ]
        return quantized_tensor, sorting_buffers

    def quantize_weight(self, weight: Tensor) -> None:
        """Allocates a weight's 8-bit copy and scales at the first use, and never frees them."""
        buffer_sizes = [] if self.rank_choices.has_fp8_weights else weight_sizes(self.rank_choices, *weight.shape)
        self.persistent.keep_quantized_weight(weight, [*buffer_sizes, *state_sizes(self.rank_choices)])

    @property
    def gathers_rowwise_only(self) -> bool:
        """Whether all-gathers send only the row-wise quantization."""
        return self.rank_choices.fp8_recipe in PER_TENSOR_SCALE_RECIPES

    def transformer_engine_column_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], deferred_norm: Step | None
    ) -> Tensor:
        """Runs Transformer Engine's LayerNormLinear or Linear; with delayed scaling the norm writes 8-bit output."""
        if not self.runs_in_fp8:
            return super().transformer_engine_column_linear(x, weight, bias, norm, deferred_norm)
        if self.saves_16_bit_input and deferred_norm is None:
            return self.column_linear_saving_16_bits(x, weight, bias)
        is_sharded = self.rank_choices.sequence_parallel
        gathers_rowwise_only = self.gathers_rowwise_only and self.rank_choices.sequence_parallel
        local_rows, input_width = x.shape
        row_count, output_width = local_rows * self.rank_choices.tp if is_sharded else local_rows, weight.shape[0]
        norm_statistics: list[Tensor] = []
        norm_output: Tensor | None = None
        if deferred_norm is not None:
            norm_output = None if self.rank_choices.fp8_recipe == "delayed" else self.empty_like(x)
            has_mean = deferred_norm.options["spec"].type == "layernorm"
            norm_statistics = [self.new_row_statistics(local_rows) for _ in range(2 if has_mean else 1)]
        quantized_input = self.quantize(
            local_rows, input_width, needs_columnwise=not gathers_rowwise_only and self.graph.is_grad_enabled
        )
        del norm_output
        self.quantize_weight(weight)
        has_user_buffers = self.rank_choices.has_user_buffers
        gathered_input = (
            self.gather_quantized(row_count, input_width, True, False) if is_sharded and not has_user_buffers else None
        )
        self.use_overlap_workspaces()
        layer_output = self.new_tensor(row_count, output_width)
        del gathered_input
        layer_inputs = [x, *norm, weight, *([] if bias is None else [bias])]
        norm_shapes, bias_shape = [tensor.shape for tensor in norm], None if bias is None else bias.shape
        shape, has_norm = x.shape, deferred_norm is not None

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            new_tensor = self.new_tensor
            bias = [] if bias_shape is None else [self.graph.new_tensor(bias_shape, output_gradient.dtype)]
            quantized_gradients = [self.quantize(row_count, output_width)]
            gathered_input = (
                [self.gather_quantized(row_count, input_width, gathers_rowwise_only, not gathers_rowwise_only)]
                if is_sharded and not has_user_buffers
                else []
            )
            self.use_overlap_workspaces()
            input_gradient: Tensor | None = None if has_user_buffers else new_tensor(row_count, input_width)
            scattered_gradient = new_tensor(local_rows, input_width) if is_sharded and not has_user_buffers else None
            transposed_copy = (
                [new_tensor(input_width, row_count, UINT8)]
                if gathers_rowwise_only and self.rank_choices.saves_transposed_operands
                else []
            )
            weight_gradient = self.weight_gradient(weight)
            if has_user_buffers:
                input_gradient = new_tensor(local_rows, input_width)
            for i in input_positions:
                saved_tensors[i] = None  # clear_tensor_data(ln_out)
            gathered_input.clear()
            transposed_copy.clear()
            if is_sharded:
                quantized_gradients.clear()
            if not has_norm:
                return [input_gradient if scattered_gradient is None else scattered_gradient, weight_gradient, *bias]
            x_gradient = self.graph.new_tensor(shape, output_gradient.dtype)
            del input_gradient, scattered_gradient
            return [
                x_gradient,
                *(self.graph.new_tensor(input_shape, output_gradient.dtype) for input_shape in norm_shapes),
                weight_gradient,
                *bias,
            ]

        saved_input = quantized_input.rowwise if gathers_rowwise_only else quantized_input.columnwise
        saved_for_backward = [*saved_input, *([x] if has_norm else []), *norm_statistics]
        input_positions = range(len(saved_input))
        del quantized_input, saved_input
        self.record_node(
            "norm_linear" if has_norm else "linear", layer_inputs, [layer_output], backward, *saved_for_backward
        )
        return layer_output

    @property
    def saves_16_bit_input(self) -> bool:
        """Whether the module is shared experts, whose input the router has already saved in 16 bits."""
        is_shared_expert = any(
            module_call.scope.node_fields.get("kind") == "shared_expert" for module_call in self.frames
        )
        return is_shared_expert and self.rank_choices.fp8_recipe != "delayed"

    def column_linear_saving_16_bits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Runs a column-parallel layer that saves its input in 16 bits, and quantizes it again in the backward pass."""
        is_sharded = self.rank_choices.sequence_parallel
        gathers_rowwise_only = self.gathers_rowwise_only and self.rank_choices.sequence_parallel
        local_rows, input_width = x.shape
        row_count, output_width = local_rows * self.rank_choices.tp if is_sharded else local_rows, weight.shape[0]
        quantized_input = self.quantize(local_rows, input_width, needs_columnwise=False)
        self.quantize_weight(weight)
        gathered_input = self.gather_quantized(row_count, input_width, True, False) if is_sharded else None
        self.persistent.use_engine_workspace()
        layer_output = self.new_tensor(row_count, output_width)
        del gathered_input, quantized_input
        bias_shape = None if bias is None else bias.shape

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            bias_gradients = [] if bias_shape is None else [self.graph.new_tensor(bias_shape, output_gradient.dtype)]
            quantized_gradients = [self.quantize(row_count, output_width)]
            requantized_inputs = [
                self.quantize(local_rows, input_width, self.gathers_rowwise_only, not gathers_rowwise_only)
            ]
            gathered_input = (
                [self.gather_quantized(row_count, input_width, gathers_rowwise_only, not gathers_rowwise_only)]
                if is_sharded
                else []
            )
            self.persistent.use_engine_workspace()
            input_gradient = self.new_tensor(row_count, input_width)
            scattered_gradient = self.new_tensor(local_rows, input_width) if is_sharded else None
            if gathers_rowwise_only and self.rank_choices.saves_transposed_operands:
                transposed_copies = [self.new_tensor(input_width, row_count, UINT8)]
            else:
                transposed_copies = []
            weight_gradient = self.weight_gradient(weight)
            requantized_inputs.clear()
            gathered_input.clear()
            transposed_copies.clear()
            if is_sharded:
                quantized_gradients.clear()
            return [
                input_gradient if scattered_gradient is None else scattered_gradient,
                weight_gradient,
                *bias_gradients,
            ]

        self.record_node("linear", [x, weight, *([] if bias is None else [bias])], [layer_output], backward, x)
        return layer_output

    def grouped_linear(self, operation: Step, x: Tensor, output_width: Number) -> Tensor:
        """Runs TEGroupedLinear on 8-bit inputs, with a scale per expert."""
        if not self.runs_in_fp8:
            return super().grouped_linear(operation, x, output_width)
        (row_count, input_width), expert_count = x.shape, self.local_expert_count
        rows_per_expert = row_count // expert_count
        row_multiple = (
            SIZE_MULTIPLE_BY_RECIPE["mxfp8"] if self.rank_choices.fp8_recipe == "mxfp8" else EXPERT_ROW_ALIGNMENT
        )
        if rows_per_expert * expert_count != row_count or rows_per_expert % row_multiple:
            raise self.unsupported(
                f"{row_count} rows of {expert_count} experts in 8 bits; expected a multiple of {row_multiple} rows of "
                "each",
                operation.name,
            )
        weights, biases = self.expert_weights(operation, input_width, output_width, "expert")
        quantized_input = self.quantize_experts(rows_per_expert, input_width, expert_count, self.graph.is_grad_enabled)
        for parameter in weights:
            self.quantize_weight(parameter)
        self.persistent.use_grouped_workspaces()
        product_output = self.new_tensor(row_count, output_width)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            bias_gradients = [self.graph.new_tensor(parameter.shape, output_gradient.dtype) for parameter in biases]
            _quantized_gradient = self.quantize_experts(rows_per_expert, output_width, expert_count)
            self.persistent.use_grouped_workspaces()
            input_gradient = self.new_tensor(row_count, input_width)
            weight_gradients = [self.weight_gradient(parameter) for parameter in weights]
            saved_tensors[:] = [None] * len(saved_tensors)  # clear_tensor_data(*inputmats)
            return [input_gradient, *weight_gradients, *bias_gradients]

        saved_for_backward = quantized_input.columnwise
        del quantized_input
        self.record_node("grouped_linear", (x, *weights, *biases), [product_output], backward, *saved_for_backward)
        return product_output

    def row_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs an 8-bit Linear. Attention's output is saved in 16 bits, except with delayed scaling."""
        if not self.runs_in_fp8:
            return super().row_linear(operation, x)
        weight, self.row_bias = self.linear_weights(operation, operation.output_values[0].width, "row")
        follows_attention = any(
            step.verb == "attention" for step in operations_outside_submodules(self.module_of_step[id(operation)])
        )
        saves_16_bits = follows_attention and self.rank_choices.fp8_recipe != "delayed"
        return self.quantized_linear("row_linear", x, weight, saves_16_bits, self.rank_choices.sequence_parallel)

    def undivided_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs an 8-bit linear layer that every rank computes in full."""
        if not self.runs_in_fp8 or operation.node_fields.get("kind") in ("router", "shared_expert"):
            return super().undivided_linear(operation, x)
        weight, bias = self.linear_weights(operation, operation.output_values[0].width, "matrix")
        if bias is not None:
            raise self.unsupported(
                "no kernels for a bias of a product in 8 bits that every rank computes", operation.name
            )
        return self.quantized_linear("linear", x, weight, False, False)

    def quantized_linear(
        self, workspace_name: str, x: Tensor, weight: Tensor, saves_16_bits: bool, is_scattered: bool
    ) -> Tensor:
        """Runs a linear layer with 8-bit inputs.

        saves_16_bits: whether the saved input has 16 bits. is_scattered: whether output rows are reduce-scattered.
        """
        (row_count, input_width), output_width = x.shape, weight.shape[0]
        quantized_input = self.quantize(
            row_count, input_width, needs_columnwise=not saves_16_bits and self.graph.is_grad_enabled
        )
        self.quantize_weight(weight)
        uses_user_buffers = self.rank_choices.has_user_buffers and is_scattered
        if uses_user_buffers:
            self.use_overlap_workspaces()
        else:
            self.persistent.use_engine_workspace()
        layer_output = self.new_tensor(self.local_rows(row_count) if uses_user_buffers else row_count, output_width)
        if is_scattered and not uses_user_buffers:
            layer_output = self.new_tensor(self.local_rows(row_count), output_width)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            if uses_user_buffers:
                quantized_gradients = [self.quantize(self.local_rows(row_count), output_width)]
            elif is_scattered:
                local_gradients = [
                    self.quantize(
                        self.local_rows(row_count), output_width, needs_columnwise=not self.gathers_rowwise_only
                    )
                ]
                gathered_gradient, sorting_buffers = self.gather_quantized(row_count, output_width, True, True)
                quantized_gradients = [gathered_gradient]
                local_gradients.clear()
                del gathered_gradient, sorting_buffers
            else:
                quantized_gradients = [self.quantize(row_count, output_width)]
            requantized_input = (
                [self.quantize(row_count, input_width, needs_rowwise=self.gathers_rowwise_only)]
                if saves_16_bits
                else []
            )
            self.persistent.use_engine_workspace()
            input_gradient = self.new_tensor(row_count, input_width)
            weight_gradient = self.weight_gradient(weight)
            requantized_input.clear()
            if not saves_16_bits:
                saved_tensors[:] = [None] * len(saved_tensors)  # clear_tensor_data(inputmat_total)
            if is_scattered:
                quantized_gradients.clear()
            return [input_gradient, weight_gradient]

        saved_for_backward = [x] if saves_16_bits else quantized_input.columnwise
        del quantized_input
        self.record_node(workspace_name, (x, weight), [layer_output], backward, *saved_for_backward)
        return layer_output

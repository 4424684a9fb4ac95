"""The kernels of norms and linear layers, of Transformer Engine and of Megatron-Core.

Sources: TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, linear.py and base.py; Megatron-LM,
megatron/core/tensor_parallel/layers.py and mappings.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import Number
from ....components.norm import Norm
from ....flow.axis import Axis, JoinedShapes
from ....flow.program import Step
from ....simulator.lowering import ModulePath
from ....simulator.tensor import NeedsInputGrad, Tensor
from .lowering import SHARDED_AXES, Gradients, RankKernels, SavedTensors


class LinearKernels(RankKernels):
    """Linear layers that tensor parallelism shards by output (column) or by input (row)."""

    # --- norms -------------------------------------------------------------------------------------------------------

    def do_norm(self, operation: Step) -> None:
        """Runs a norm; a norm that the next linear layer computes is deferred to that layer."""
        norm_input, norm_output = operation.input_values[0], operation.output_values[0]
        if self.is_fused_norm(operation):
            self.deferred_norms[id(norm_output.storage)] = operation, self.module_path()
            self.store_without_reshape(norm_output, self.tensor_read_by(operation, norm_input))
            return
        x = self.tensor_read_by(operation, norm_input)
        row_count = x.shape[0] * (norm_input.width // self.element_count(operation.options["over"]))
        self.store_without_reshape(norm_output, self.norm(x, operation, self.module_path(), row_count))

    def is_fused_norm(self, operation: Step) -> bool:
        """Whether the linear layers that read a norm's output compute the norm themselves, as in Transformer Engine."""
        is_fused = self.fused_norms.get(id(operation))
        if is_fused is None:
            next_steps = [step for step, _ in self.readers_by_storage.get(id(operation.output_values[0].storage), ())]
            is_fused = (
                self.rank_choices.uses_transformer_engine
                and bool(next_steps)
                and all(map(self.is_fused_with_norm_before, next_steps))
            )
            self.fused_norms[id(operation)] = is_fused
        return is_fused

    def norm_weights(self, operation: Step, module_path: ModulePath) -> list[Tensor]:
        """Returns the weight and bias of a norm."""
        norm_spec: Norm = operation.options["spec"]
        norm_shape = (self.element_count(operation.options["over"]),)
        weight_names = [
            name for name, is_present in (("weight", norm_spec.weight), ("bias", norm_spec.has_bias)) if is_present
        ]
        return [self.weight(f"{operation.name}.{weight_name}", norm_shape, module_path) for weight_name in weight_names]

    def norm(self, x: Tensor, operation: Step, module_path: ModulePath, row_count: Number) -> Tensor:
        """Runs an unfused norm, which saves its input, and one or two statistics per row. row_count: number of rows."""
        weights, norm_spec = self.norm_weights(operation, module_path), operation.options["spec"]
        x = self.contiguous(x)
        norm_output = self.empty_like(x)
        norm_statistics = [self.new_row_statistics(row_count) for _ in range(2 if norm_spec.type == "layernorm" else 1)]
        return self.node_with_new_gradients("norm", (x, *weights), norm_output, x, *norm_statistics)

    def is_fused_with_norm_before(self, operation: Step) -> bool:
        """Whether a column-parallel layer is fused with the norm before it.

        Cross-attention is an exception (core/models/T5/t5_spec.py).
        """
        return self.is_column_parallel(operation) and all(
            module_item.input_values[0].rows == module_item.input_values[1].rows
            for module_item in self.module_of_step[id(operation)].items
            if isinstance(module_item, Step) and module_item.verb == "attention"
        )

    # --- linear layers -----------------------------------------------------------------------------------------------

    def is_column_parallel(self, operation: Step) -> bool:
        """Whether an operation is a column-parallel linear layer."""
        return (
            operation.verb == "linear"
            and operation.weight is not None
            and is_tensor_parallel_axis(operation.weight.output_axes[0])
        )

    def is_row_parallel(self, operation: Step) -> bool:
        """Whether an operation is a row-parallel linear layer."""
        return (
            operation.verb == "linear"
            and operation.weight is not None
            and is_tensor_parallel_axis(operation.weight.input_axes[0])
        )

    def is_output_layer(self, operation: Step) -> bool:
        """Whether an operation is the output layer."""
        return operation.output_values[0].axes[0].name == "vocab"

    @property
    def is_in_multi_token_prediction(self) -> bool:
        """Whether the module that runs now belongs to a multi-token-prediction module."""
        return any(module_call.scope.node_fields.get("kind") == "mtp" for module_call in self.frames)

    def shared_embedding_weight(self, table_role: str, operation: Step) -> Tensor:
        """Returns the weight of the embedding or output layer, which may be tied."""
        assert operation.weight is not None
        table_key = "", id(operation.weight)
        if table_key not in self.weights:
            row_width = (
                operation.weight.input_axes
                if operation.weight.output_axes[0].name == "vocab"
                else operation.weight.output_axes
            )
            row_count = (
                operation.weight.output_axes
                if operation.weight.output_axes[0].name == "vocab"
                else operation.weight.input_axes
            )
            table_shape = self.element_count(row_count), self.element_count(row_width)
            self.weights[table_key] = self.with_role(
                table_role, lambda: self.weight(f"{operation.name}.weight", table_shape)
            )
        return self.weights[table_key]

    def do_linear(self, operation: Step) -> None:
        """Runs a linear layer by its sharding: column-parallel, row-parallel or unsharded."""
        layer_output = operation.output_values[0]
        if id(operation) in self.pending_outputs:
            self.store_without_reshape(layer_output, self.pending_outputs.pop(id(operation)))
            return
        x = self.tensor_read_by(operation, operation.input_values[0])
        assert operation.weight is not None
        if self.is_output_layer(operation):
            logits = self.output(operation, x)
            del x
            self.store_without_reshape(
                layer_output, self.aten.scale(logits) if self.rank_choices.scales_logits else logits
            )
        elif self.is_column_parallel(operation):
            self._run_column_layers(operation, x)
        elif self.is_row_parallel(operation):
            self.store_without_reshape(layer_output, self.row_linear(operation, x))
        else:
            self.store_without_reshape(layer_output, self.undivided_linear(operation, x))

    def fused_column_steps(self, operation: Step) -> list[Step]:
        """Returns a module's column-parallel layers with the same input, which run as one matrix product."""
        step_module = self.module_of_step[id(operation)]
        return [
            step
            for step, module in self.readers_by_storage[id(operation.input_values[0].storage)]
            if module is step_module
            and self.is_column_parallel(step)
            and step.input_values[0].rows == operation.input_values[0].rows
        ]

    def _run_column_layers(self, operation: Step, x: Tensor) -> None:
        """Runs fused column-parallel layers, and assigns an output to each layer."""
        fused_steps = self.fused_column_steps(operation)
        output_widths = [fused_step.output_values[0].width for fused_step in fused_steps]
        linear_output = self.column_linear(operation, x, sum(output_widths[1:], output_widths[0]))
        layer_outputs = (
            self.split_product(fused_steps, linear_output, output_widths) if len(fused_steps) > 1 else [linear_output]
        )
        del linear_output, x
        for fused_step, layer_output in zip(fused_steps, layer_outputs, strict=True):
            if fused_step is operation:
                self.store_without_reshape(fused_step.output_values[0], layer_output)
            else:
                self.pending_outputs[id(fused_step)] = layer_output

    def split_product(
        self, fused_operations: list[Step], linear_output: Tensor, output_widths: Sequence[Number]
    ) -> list[Tensor]:
        """Returns the output of each of several fused linear layers; by default all have the whole output."""
        return [linear_output for _ in output_widths]

    def linear_weights(self, operation: Step, output_width: Number, weight_role: str) -> tuple[Tensor, Tensor | None]:
        """Returns a linear layer's weight and bias. output_width: total outputs of all fused layers."""
        weight_shape = output_width, operation.input_values[0].width
        module_path = self.module_path()
        weight = self.with_role(weight_role, lambda: self.weight(f"{operation.name}.weight", weight_shape, module_path))
        bias_tensor = (
            self.with_role(weight_role, lambda: self.weight(f"{operation.name}.bias", (output_width,), module_path))
            if operation.options["bias"]
            else None
        )
        return weight, bias_tensor

    def column_linear(self, operation: Step, x: Tensor, output_width: Number) -> Tensor:
        """Runs a column-parallel layer, fused with a preceding norm if there is one."""
        deferred_norm = self.deferred_norms.get(id(operation.input_values[0].storage))
        norm_tensors = [] if deferred_norm is None else self.norm_weights(*deferred_norm)
        weight, bias = self.linear_weights(operation, output_width, "column")
        if not self.rank_choices.uses_transformer_engine:
            return self.megatron_core_column_linear(x, weight, bias, self.adds_bias(operation))
        deferred_bias = None if bias is None or self.adds_bias(operation) else bias
        self.activation_bias = deferred_bias
        return self.transformer_engine_column_linear(
            x,
            weight,
            bias if deferred_bias is None else None,
            norm_tensors,
            None if deferred_norm is None else deferred_norm[0],
        )

    def adds_bias(self, operation: Step) -> bool:
        """Whether a column-parallel layer adds its bias, which otherwise the next activation adds."""
        return operation.weight is None or operation.weight.output_axes[0].name != "ffn"

    def transformer_engine_column_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], deferred_norm: Step | None
    ) -> Tensor:
        """Runs Transformer Engine's LayerNormLinear or Linear, which saves its input and the norm's rows of this rank.

        The rows of a frozen weight's product are not saved. For an adapter the norm's output is returned, too
        (`return_layernorm_output`, `return_layernorm_output_gathered`).
        """
        kernel_choices, is_sharded = self.rank_choices, self.rank_choices.sequence_parallel
        local_rows, input_width = x.shape
        row_count = local_rows * kernel_choices.tp if is_sharded else local_rows
        norm_output, norm_statistics = (x, []) if deferred_norm is None else self._run_fused_norm(x, deferred_norm)
        gathered_input = (
            self.new_tensor(row_count, input_width) if is_sharded and not kernel_choices.has_user_buffers else None
        )
        self.use_overlap_workspaces()
        layer_output = self.new_tensor(row_count, weight.shape[0])
        has_norm, needs_grad = deferred_norm is not None, weight.needs_grad
        returns_norm = has_norm and self.norm_outputs is not None
        returns_gathered_input = returns_norm and is_sharded and self.adapters_read_gathered_rows
        returned_norm_output = gathered_input if returns_gathered_input else norm_output
        del gathered_input
        layer_inputs = [x, *norm, weight, *([] if bias is None else [bias])]
        norm_shapes, bias_shape = [tensor.shape for tensor in norm], None if bias is None else bias.shape
        shape = x.shape

        def backward(saved_tensors: SavedTensors, gradients: Any, needs_input_grad: NeedsInputGrad) -> Gradients:
            new_tensor, has_user_buffers = self.new_tensor, kernel_choices.has_user_buffers
            output_gradient, norm_gradient = gradients if returns_norm else (gradients, None)
            gathered_input = (
                new_tensor(row_count, input_width) if is_sharded and not has_user_buffers and needs_grad else None
            )
            self.use_overlap_workspaces()
            input_gradient: Tensor | None = (
                None if has_user_buffers or not needs_input_grad[0] else new_tensor(row_count, input_width)
            )
            if returns_gathered_input:
                input_gradient = new_tensor(row_count, input_width)  # the sum with the gradient of the returned rows
            scattered_gradient = (
                new_tensor(local_rows, input_width)
                if is_sharded and not has_user_buffers and needs_input_grad[0]
                else None
            )
            weight_gradient = self.weight_gradient(weight)
            if has_user_buffers:  # a copy of what the buffer has after the product for the weight
                input_gradient = new_tensor(local_rows, input_width)
            bias = [] if bias_shape is None else [self.graph.new_tensor(bias_shape, output_gradient.dtype)]
            if needs_grad:
                saved_tensors[1 if has_norm else 0] = None  # clear_tensor_data(ln_out)
            del gathered_input
            if not has_norm:
                return [input_gradient if scattered_gradient is None else scattered_gradient, weight_gradient, *bias]
            if norm_gradient is not None and not returns_gathered_input:
                input_gradient, scattered_gradient = new_tensor(local_rows, input_width), None
            x_gradient = self.graph.new_tensor(shape, output_gradient.dtype)
            del input_gradient, scattered_gradient
            return [
                x_gradient,
                *(self.graph.new_tensor(input_shape, output_gradient.dtype) for input_shape in norm_shapes),
                weight_gradient,
                *bias,
            ]

        saved_norm_output = [norm_output] if needs_grad or returns_norm else []
        saved_for_backward = [x, *saved_norm_output, *norm_statistics] if has_norm else saved_norm_output
        del norm_output, saved_norm_output
        layer_outputs = [layer_output]
        if returns_norm and self.norm_outputs is not None and returned_norm_output is not None:
            layer_outputs.append(returned_norm_output)
            self.norm_outputs.append(returned_norm_output)
        del returned_norm_output
        self.record_node(
            "norm_linear" if has_norm else "linear", layer_inputs, layer_outputs, backward, *saved_for_backward
        )
        return layer_output

    def _run_fused_norm(self, x: Tensor, deferred_norm: Step) -> tuple[Tensor, list[Tensor]]:
        """Returns the output and the statistics of a norm that is fused with a product."""
        norm_output, has_mean = self.empty_like(x), deferred_norm.options["spec"].type == "layernorm"
        return norm_output, [self.new_row_statistics(x.shape[0]) for _ in range(2 if has_mean else 1)]

    def megatron_core_column_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, adds_bias: bool) -> Tensor:
        """Runs Megatron-Core's ColumnParallelLinear, which gathers rows in a buffer shared by all such layers."""
        is_sharded, (local_rows, input_width) = self.rank_choices.sequence_parallel, x.shape
        row_count = local_rows * self.rank_choices.tp if is_sharded else local_rows
        if is_sharded:
            self.persistent.grow_gather_buffer(2 * row_count * input_width)
        self.persistent.use_torch_workspace("forward")
        layer_output = self.new_tensor(row_count, weight.shape[0])
        self.activation_bias = None if adds_bias else bias
        if bias is not None and adds_bias:
            layer_output = self.empty_like(layer_output)
        added_bias = bias if adds_bias else None

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            if is_sharded:
                self.persistent.grow_gather_buffer(2 * row_count * input_width)
            return self._run_megatron_core_backward(
                output_gradient, row_count, (local_rows, input_width), weight, added_bias
            )

        self.record_node(
            "column_linear", (x, weight, *([] if added_bias is None else [added_bias])), [layer_output], backward, x
        )
        return layer_output

    def _run_megatron_core_backward(
        self, output_gradient: Tensor, row_count: int, input_shape: tuple[int, int], weight: Tensor, bias: Tensor | None
    ) -> Gradients:
        """Runs the end of ColumnParallelLinear's backward pass: gradients of input, weight and bias.

        row_count: rows of the gathered input. input_shape: the shape of the rank's input.
        """
        self.persistent.use_torch_workspace("backward")
        input_gradient = self.new_tensor(row_count, input_shape[1])
        scattered_gradient = self.new_tensor(*input_shape) if self.rank_choices.sequence_parallel else None
        weight_gradient = self.weight_gradient(weight)
        bias_gradients = [] if bias is None else [self.graph.new_tensor(bias.shape, output_gradient.dtype)]
        return [input_gradient if scattered_gradient is None else scattered_gradient, weight_gradient, *bias_gradients]

    def row_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs a row-parallel layer without its bias, and reduces the output over ranks."""
        weight, self.row_bias = self.linear_weights(operation, operation.output_values[0].width, "row")
        if not self.rank_choices.uses_transformer_engine:
            return self.megatron_core_row_linear(x, weight)
        return self.transformer_engine_row_linear(x, weight)

    def transformer_engine_row_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Runs Transformer Engine's row-parallel Linear, which saves its input for the gradient of a trained weight."""
        is_sharded, (row_count, input_width), output_width = (
            self.rank_choices.sequence_parallel,
            x.shape,
            weight.shape[0],
        )
        uses_user_buffers, trains_weight = self.rank_choices.has_user_buffers, weight.needs_grad
        self.use_overlap_workspaces()
        layer_output = self.new_tensor(self.local_rows(row_count) if uses_user_buffers else row_count, output_width)
        if is_sharded and not uses_user_buffers:
            layer_output = self.new_tensor(self.local_rows(row_count), output_width)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            gathered_gradient = (
                self.new_tensor(row_count, output_width) if is_sharded and not uses_user_buffers else None
            )
            self.use_overlap_workspaces()
            input_gradient = self.new_tensor(row_count, input_width)
            if uses_user_buffers:
                self.persistent.use_engine_workspace()
            weight_gradient = self.weight_gradient(weight)
            if trains_weight:
                saved_tensors[0] = None  # clear_tensor_data(inputmat_total)
            del gathered_gradient
            return [input_gradient, weight_gradient]

        self.record_node("row_linear", (x, weight), [layer_output], backward, *([x] if trains_weight else []))
        return layer_output

    def megatron_core_row_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Runs Megatron-Core's RowParallelLinear, whose reduction over ranks is a separate graph node."""
        is_sharded, (row_count, input_width), output_width = (
            self.rank_choices.sequence_parallel,
            x.shape,
            weight.shape[0],
        )
        self.persistent.use_torch_workspace("forward")
        layer_output = self.new_tensor(row_count, output_width)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_torch_workspace("backward")
            return [self.new_tensor(row_count, input_width), self.weight_gradient(weight)]

        self.record_node("row_linear", (x, weight), [layer_output], backward, x)
        if not is_sharded:
            return layer_output
        unreduced_output, layer_output = layer_output, self.new_tensor(self.local_rows(row_count), output_width)
        return self.node_with_new_gradients("reduce_scatter", (unreduced_output,), layer_output)

    def undivided_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs a linear layer that every rank computes in full."""
        return self.unsharded_linear(x, *self.linear_weights(operation, operation.output_values[0].width, "matrix"))

    def unsharded_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Runs the product of an unsharded weight, which saves its input unless the weight is frozen."""
        (row_count, input_width), uses_engine = x.shape, self.rank_choices.uses_transformer_engine
        self.use_workspace(uses_engine, "forward")
        layer_output = self.new_tensor(row_count, weight.shape[0])

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.use_workspace(uses_engine, "backward")
            gradients = [
                self.new_tensor(row_count, input_width) if needs_input_grad[0] else None,
                self.weight_gradient(weight),
            ]
            return [*gradients, *([] if bias is None else [self.graph.new_tensor(bias.shape, output_gradient.dtype)])]

        layer_inputs = (x, weight, *([] if bias is None else [bias]))
        self.record_node("linear", layer_inputs, [layer_output], backward, *([x] if weight.needs_grad else []))
        return layer_output

    def use_overlap_workspaces(self) -> None:
        """Allocates workspaces for a product that may overlap with communication.

        Communication of the tensor group uses buffers outside of torch's allocator
        (TransformerEngine, common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp, `cuMemCreate`).
        """
        if self.rank_choices.has_user_buffers:
            self.persistent.use_overlap_workspaces()
        else:
            self.persistent.use_engine_workspace()

    def use_workspace(self, uses_engine: bool, thread_name: str) -> None:
        """Allocates the cuBLAS workspace of Transformer Engine, or torch's workspace for a thread."""
        if uses_engine:
            self.persistent.use_engine_workspace()
        else:
            self.persistent.use_torch_workspace(thread_name)

    def output(self, operation: Step, x: Tensor) -> Tensor:
        """Computes the logits of the rank's vocabulary shard with torch's product."""
        weight = self.shared_embedding_weight("head", operation)
        bias = None
        if operation.options["bias"]:
            bias = self.with_role(
                "head", lambda: self.weight(f"{operation.name}.bias", (operation.output_values[0].width,))
            )
        if not weight.needs_grad:
            return self._frozen_output(x, weight, bias)
        is_sharded, (local_rows, input_width) = self.rank_choices.sequence_parallel, x.shape
        row_count = local_rows * self.rank_choices.tp if is_sharded else local_rows
        if is_sharded:
            self.persistent.grow_gather_buffer(2 * row_count * input_width)
        self.persistent.use_torch_workspace("forward")
        logits = self.new_tensor(row_count, weight.shape[0])
        if bias is not None:
            logits = self.empty_like(logits)

        chunk_input = None if self.rank_choices.wgrad_deferral_limit is None else self.persistent.chunk_input

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            is_deferred = self.persistent.defers_gradient(self.rank_choices.wgrad_deferral_limit)
            layer_input = saved_tensors[0]
            if is_deferred and layer_input is not None:
                self.persistent.deferred_gradients.append((layer_input, output_gradient, chunk_input))
            elif is_sharded:
                self.persistent.grow_gather_buffer(2 * row_count * input_width)
            del layer_input
            return self._run_megatron_core_backward(output_gradient, row_count, (local_rows, input_width), weight, bias)

        self.record_node("output_layer", (x, weight, *([] if bias is None else [bias])), [logits], backward, x)
        return logits

    def _frozen_output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes the logits of a frozen output layer, which saves no input, from gathered rows in a new tensor.

        Source: Megatron-LM, megatron/core/tensor_parallel/layers.py, `linear_with_frozen_weight`.
        """
        local_rows, input_width = x.shape
        row_count = local_rows * self.rank_choices.tp if self.rank_choices.sequence_parallel else local_rows
        if self.rank_choices.sequence_parallel:
            x = self.copy_reordered("gather", x, (row_count, input_width))
        self.persistent.use_torch_workspace("forward")
        logits = self.new_tensor(row_count, weight.shape[0])
        if bias is not None:
            logits = self.empty_like(logits)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_torch_workspace("backward")
            return [self.new_tensor(row_count, input_width)]

        self.record_node("output_layer", (x,), [logits], backward)
        return logits


def is_tensor_parallel_axis(weight_axis: Axis | JoinedShapes) -> bool:
    """Whether tensor parallelism shards an axis, or each of several concatenated axes."""
    if isinstance(weight_axis, JoinedShapes):
        return all(is_tensor_parallel_axis(part_shape[0]) for part_shape in weight_axis.shapes)
    return weight_axis.name in SHARDED_AXES

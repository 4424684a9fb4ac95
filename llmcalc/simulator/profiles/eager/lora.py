"""Linear layers with frozen, possibly quantized weights and an adapter, as in peft, torchtune and LitGPT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....algebra import Number, are_equal, ceil_div
from ....components.base import TORCH_WITNESS
from ....evidence import compared
from ....flow.axis import element_count
from ....flow.program import Step
from ....flow.tree import CountedOp
from ....ops import ChunkedScan, Linear
from ....workload.lora import BLOCK_WEIGHTS, GATE_AND_UP, PROJECTIONS, SCAN_OUTPUT_PROJECTION
from ...autograd import record
from ...lowering import ModulePath
from ...strides import Shape, numel
from ...tensor import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    UINT8,
    Dtype,
    NeedsInputGrad,
    OptionalGradient,
    Tensor,
    empty,
)
from .fake_quantization import FakeQuantizationKernels
from .scans.module_steps import module_steps

FUSED_QKV_NAME = "qkv_proj"
"""Name of the matrix product that fuses the projections of queries, keys and values."""


class LoraKernels(FakeQuantizationKernels):
    """Kernels of linear layers with adapters and quantized weights."""

    # --- weights ----------------------------------------------------------------------------------------------------

    def linear_weight(self, operation: Step) -> Tensor:
        """Returns the weight of a linear layer, quantized for a quantized base model."""
        weight = operation.weight
        if weight is None or not self._is_quantized(operation):
            return self._trained_copy(operation, super().linear_weight(operation))
        return self._new_quantized_weight(
            operation.name, element_count(weight.output_axes), element_count(weight.input_axes)
        )

    def embedding_table(self, operation: Step) -> Tensor:
        return self._trained_copy(operation, super().embedding_table(operation))

    @compared(TORCH_WITNESS)
    def do_table(self, operation: Step) -> None:
        """Looks up embeddings; with activation checkpointing the output needs a gradient despite a frozen table.

        Source: transformers/modeling_utils.py, `enable_input_require_grads`.
        """
        super().do_table(operation)
        adapters, is_read_by_token = self.adapters, operation.options["by"] in ("ids", "known ids")
        if adapters is not None and adapters.library == "peft" and self.recompute.layers and is_read_by_token:
            embedded_rows = self.tensor_of(operation.output_values[0])
            embedded_rows.is_leaf = self.graph.is_grad_enabled and embedded_rows.node is None

    def _is_quantized(self, operation: Step) -> bool:
        """Whether a weight is quantized: each weight of a layer except a router's, and optionally the output head's.

        Mamba-2's output projection is not, whose weight the kernel of the scan reads itself.
        """
        adapters = self.adapters
        if adapters is None or adapters.base_storage == "none" or operation.node_fields.get("kind") == "router":
            return False
        if operation.name == SCAN_OUTPUT_PROJECTION and any(
            isinstance(module_operation.op, ChunkedScan) for module_operation in module_steps(self.frames[-1].scope)
        ):
            return False
        if any(module_call.layer_index is not None for module_call in self.frames):
            return True
        is_tied = ("", id(operation.weight)) in self.weights
        return adapters.quantized_head and operation.output_values[0] is self.result and not is_tied

    def expert_weight(self, operation: Step, shape: Shape, matrix_count: int = 1) -> Tensor:
        """Returns the stacked weights of all experts, dequantized from 4 bits, and with the adapters' product added.

        Sources: axolotl, monkeypatch/moe_quant.py; bitsandbytes/nn/parametrize.py, `Bnb4bitParametrization`;
        peft/tuners/lora/layer.py, `_LoraFactorsProxy`.
        """
        adapters, aten = self.adapters, self.aten
        if adapters is not None and adapters.adapts_experts:
            weight, (expert_count, row_count, column_count) = super().expert_weight(operation, shape), shape
            rank = adapters.rank * matrix_count
            lora_a = self.adapter_matrix(f"{operation.name}.lora_A.weight", (rank * expert_count, column_count))
            lora_b = self.adapter_matrix(f"{operation.name}.lora_B.weight", (row_count, rank * expert_count))
            lora_a_of_experts = aten.unflatten(lora_a, 0, (expert_count, rank))
            lora_b_of_experts = aten.permute(aten.unflatten(lora_b, 1, (rank, expert_count)), (2, 0, 1))
            return aten.baddbmm(
                weight,
                *(aten.to(adapter_matrix, weight.dtype) for adapter_matrix in (lora_b_of_experts, lora_a_of_experts)),
            )
        if adapters is None or not adapters.quantized_experts or adapters.base_storage == "none":
            return super().expert_weight(operation, shape)
        if adapters.base_storage == "int8":
            raise self.unsupported("experts in 8 bits are not modelled; expected --base nf4", operation.name)
        expert_count, row_count, column_count = shape
        self._new_quantized_weight(operation.name, expert_count * row_count, column_count)
        return self._decode_weight(shape, self.dtype)

    def _new_quantized_weight(self, parameter_name: str, row_count: Number, column_count: Number) -> Tensor:
        assert self.adapters is not None
        weight_path = self.module_path()
        codes, *_ = [
            self.parameter((*weight_path, f"{parameter_name}.weight{suffix}"), (element_count,), dtype, trained=False)
            for suffix, (element_count, dtype) in self.adapters.stored_tensors(row_count, column_count).items()
        ]
        return codes

    def _trained_copy(self, operation: Step, weight: Tensor) -> Tensor:
        """Returns the trained copy of a frozen weight (peft/utils/other.py, `ModulesToSaveWrapper`)."""
        if self.adapters is None or self.layer_name(operation) not in self.adapters.copied_modules:
            return weight
        parameter_key = (*self.module_path(), f"{operation.name}.modules_to_save.weight")
        return self.parameter(parameter_key, weight.shape, weight.dtype, trained=True)

    def layer_name(self, operation: Step) -> str:
        """Returns the name of a linear layer, or of its single-layer module."""
        return operation.name or self.frames[-1].scope.name

    def has_adapter(self, operation: Step) -> bool:
        """Whether a linear layer has an adapter."""
        return self.adapters is not None and self.layer_name(operation) in self.adapters.targets

    def unread_parameters(self, module_name: str, counted_op: CountedOp) -> list[Tensor]:
        """Returns the parameters of layers that no pass runs, with adapters, which PEFT adds by layer name."""
        adapters, tensors = self.adapters, super().unread_parameters(module_name, counted_op)
        if (
            adapters is None
            or adapters.library != "peft"
            or not isinstance(counted_op.op, Linear)
            or module_name not in adapters.targets
        ):
            return tensors
        shapes: list[Shape] = [(adapters.rank, counted_op.op.n_in), (counted_op.op.n_out, adapters.rank)]
        shapes += [(counted_op.op.n_out,)] if adapters.has_dora_magnitudes else []
        return [
            *tensors,
            *(empty(self.graph.meter, shape, adapters.dtype, is_leaf=self.has_trained_weights) for shape in shapes),
        ]

    # --- queries, keys and values as one product --------------------------------------------------------------------

    @compared(TORCH_WITNESS)
    def do_linear(self, operation: Step) -> None:
        fused_steps = self._fused_projections(operation)
        if not fused_steps:
            super().do_linear(operation)
        elif self.choices.fake_quantization is not None:
            raise self.unsupported(
                "--fake-quantize is not modelled for projections that are one product; expected none", operation.name
            )
        elif operation is fused_steps[0]:  # the others have their values from it
            if self._is_fused_by_its_class(operation):
                self._run_fused_projections(fused_steps)
            else:
                self._run_as_one_product(fused_steps)

    def _is_fused_by_its_class(self, operation: Step) -> bool:
        """Whether the transformers class of the model computes this projection and others as one product."""
        return self.choices.matches_transformers and self.adapters is None and bool(operation.options.get("fused"))

    def _joined_layer_name(self, operation: Step) -> str:
        """Returns the linear layer of the class that contains this projection; empty if adapters split the layer."""
        if self.adapters is None or operation.verb != "linear":
            return ""
        return self.adapters.joined_layers.get((self.frames[-1].scope.name, operation.name), "")

    def _fused_projections(self, operation: Step) -> list[Step]:
        """Returns, in order, the projections that run as one product with this one; empty if it runs alone."""
        joined_layer_name = self._joined_layer_name(operation)
        if joined_layer_name:
            joined_steps = self._linear_layers_of_input(
                operation, lambda step: self._joined_layer_name(step) == joined_layer_name
            )
            return joined_steps if len(joined_steps) > 1 else []
        is_litgpt = self.adapters is not None and self.adapters.library == "litgpt"
        is_fused_by_its_class = self._is_fused_by_its_class(operation)
        projection_names = GATE_AND_UP if is_fused_by_its_class and operation.name in GATE_AND_UP else PROJECTIONS
        if operation.name not in projection_names or not (is_litgpt or self.choices.fused_qkv or is_fused_by_its_class):
            return []
        projections = self._linear_layers_of_input(operation, lambda step: step.name in projection_names)
        if is_fused_by_its_class and len({bool(projection.options["bias"]) for projection in projections}) > 1:
            return []
        return projections if len(projections) > 1 and projections[0].name == projection_names[0] else []

    def _linear_layers_of_input(self, operation: Step, is_joinable: Callable[[Step], bool]) -> list[Step]:
        """Returns, in order, the running module's linear layers that read the input of this operation."""
        return [
            scope_item
            for scope_item in self.frames[-1].scope.items
            if isinstance(scope_item, Step)
            and scope_item.verb == "linear"
            and is_joinable(scope_item)
            and scope_item.input_values[0] is operation.input_values[0]
        ]

    def _run_as_one_product(self, operations: list[Step]) -> None:
        """Runs projections of one input as one matrix product, and splits the result."""
        x, output_widths = (
            self.flat_tensor(operations[0].input_values[0]),
            [operation.output_values[0].width for operation in operations],
        )
        total_width, layer_name = sum(output_widths), self._joined_layer_name(operations[0]) or FUSED_QKV_NAME
        biased_steps = [operation for operation in operations if operation.options["bias"]]
        if len(biased_steps) not in (0, len(operations)):
            raise self.unsupported("one product has a bias or none; expected a bias on all projections, or on none")
        bias = self.weight(f"{layer_name}.bias", (total_width,)) if biased_steps else None
        if self._is_quantized(operations[0]):
            weight = self._new_quantized_weight(layer_name, total_width, x.shape[-1])
        else:
            weight = self.weight(f"{layer_name}.weight", (total_width, x.shape[-1]))
        fused_product = self._with_adapters(operations, x, self.product(x, weight, bias, total_width), weight, bias)
        for operation, step_output in zip(operations, self.aten.split(fused_product, output_widths), strict=True):
            self.modules[id(operation.output_values[0])] = self.module_path(), operation.name
            self.store_tensor(operation.output_values[0], step_output)
        self._keep_gate_in_frame(operations)

    def _keep_gate_in_frame(self, operations: list[Step]) -> None:
        """Keeps the gate, a view of half of a product's output, alive until the module returns, as the class does."""
        if operations[0].name in GATE_AND_UP:
            self.frames[-1].local_tensors["gate"] = self.tensor_of(operations[0].output_values[0])

    def _run_fused_projections(self, operations: list[Step]) -> None:
        """Runs projections whose weights are stored separately as one matrix product, and splits the result.

        Source: transformers' modeling_phi3.py, whose step was measured (tests/data/gpu).
        """
        autograd_graph = self.graph
        x = self.flat_tensor(operations[0].input_values[0])
        output_widths = [operation.output_values[0].width for operation in operations]
        x = self.aten.autocast_operand(x)
        weights = [self.aten.autocast_operand(self.linear_weight(operation)) for operation in operations]
        bias_tensors = [
            self.aten.autocast_operand(self.weight(f"{operation.name}.bias", (operation.output_values[0].width,)))
            for operation in operations
            if operation.options["bias"]
        ]
        shape, weight_shapes = x.shape, [weight.shape for weight in weights]

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            needed_gradients = needs_input_grad[1 : 1 + len(weights)]
            weight_gradients = [
                autograd_graph.new_tensor(weight_shape, output_gradient.dtype) if needs_gradient else None
                for weight_shape, needs_gradient in zip(weight_shapes, needed_gradients, strict=True)
            ]
            input_gradient = autograd_graph.new_tensor(shape, output_gradient.dtype) if needs_input_grad[0] else None
            bias_gradients = [
                autograd_graph.sum_to_shape((output_width,), self.aten.slice(output_gradient, output_width))
                for output_width in output_widths[: len(bias_tensors)]
            ]
            return input_gradient, *weight_gradients, *bias_gradients

        fused_product = record(
            autograd_graph,
            "mm",
            (x, *weights, *bias_tensors),
            lambda: autograd_graph.operation_result("mm", (*shape[:-1], sum(output_widths)), x.dtype),
            backward,
            *([x] if any(weight.needs_grad for weight in weights) else []),
            *(weights if x.needs_grad else []),
        )
        for operation, step_output in zip(operations, self.aten.split(fused_product, output_widths), strict=True):
            self.modules[id(operation.output_values[0])] = self.module_path(), operation.name
            self.store_tensor(operation.output_values[0], step_output)
        self._keep_gate_in_frame(operations)

    def _with_adapters(
        self, operations: list[Step], x: Tensor, fused_product: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        adapters = self.adapters
        adapted_steps = (
            [] if adapters is None else [operation for operation in operations if operation.name in adapters.targets]
        )
        if adapters is None or not adapted_steps:
            return fused_product
        if adapters.library == "litgpt":
            return self._run_grouped_adapter(
                x, fused_product, [operation.output_values[0].width for operation in adapted_steps]
            )
        if len(adapted_steps) < len(operations):
            projections_text = ", ".join(operation.name for operation in operations)
            raise self.unsupported(
                f"one product has one adapter; expected all of {projections_text} in --lora-targets, or none"
            )
        return self._add_adapter(
            self._joined_layer_name(operations[0]) or FUSED_QKV_NAME, x, fused_product, weight, bias
        )

    def _run_grouped_adapter(self, x: Tensor, pretrained_output: Tensor, output_widths: list[Any]) -> Tensor:
        """Runs one adapter for several fused projections (lit_gpt/lora.py, `LoRAQKVLinear.forward`, `zero_pad`)."""
        aten, adapters = self.aten, self.adapters
        assert adapters is not None
        total_width = sum(output_widths)
        lora_a = self.adapter_matrix(f"{FUSED_QKV_NAME}.lora_A", (adapters.rank * len(output_widths), x.shape[-1]))
        lora_b = self.adapter_matrix(f"{FUSED_QKV_NAME}.lora_B", (total_width, adapters.rank))
        low_rank_output = aten.linear(aten.dropout(x) if adapters.dropout else x, lora_a)
        adapter_output = aten.convolution(
            aten.transpose(low_rank_output, -1, -2), aten.unsqueeze(lora_b, -1), None, x.shape[1]
        )
        adapter_output = aten.transpose(adapter_output, -1, -2)
        output_width = pretrained_output.shape[-1]
        scaled_adapter_output = aten.scale(
            adapter_output
            if are_equal(total_width, output_width)
            else self._pad_adapter_output(adapter_output, output_width)
        )
        return aten.add(pretrained_output, scaled_adapter_output)

    def _pad_adapter_output(self, x: Tensor, output_width: Number) -> Tensor:
        """Pads an adapter's output [batch, tokens, …] with zeros, and saves a copy that backward needs for its shape.

        Source: derivatives.yaml, `index_copy`.
        """
        aten = self.aten
        transposed_x = aten.transpose(x, 0, 1)
        row_count, adapter_width = transposed_x.shape[0] * transposed_x.shape[1], transposed_x.shape[2]
        padded_output = aten.new_tensor((row_count, output_width), x.dtype)
        adapter_rows = aten.reshape(transposed_x, (row_count, adapter_width))
        row_index = aten.new_tensor((adapter_width,), INT64)

        backward = aten.new_gradient((row_count, adapter_width))
        padded_output = record(
            self.graph, "index_copy", (adapter_rows,), aten.new_like(padded_output), backward, row_index, adapter_rows
        )
        del adapter_rows, row_index
        return aten.transpose(aten.reshape(padded_output, (*transposed_x.shape[:2], output_width)), 0, 1)

    # --- products ---------------------------------------------------------------------------------------------------

    def linear_output(self, operation: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes x·Wᵀ plus the adapter's output, if the layer has an adapter."""
        output_width, has_adapter = operation.output_values[0].width, self.has_adapter(operation)
        rounded_x, rounded_weight = self.fake_quantized_operands(operation, x, weight, has_adapter)
        if not has_adapter:
            return self.product(rounded_x, rounded_weight, bias, output_width)
        return self._add_adapter(
            operation.name, x, self.product(rounded_x, rounded_weight, bias, output_width), weight, bias
        )  # frees the product

    def repeat_linear(
        self, name: str, module_path: ModulePath, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        adapters = self.adapters
        if adapters is not None and adapters.library == "litgpt" and name in adapters.targets:
            raise self.unsupported("no adapters of LitGPT on a layer that runs twice", name)
        output_width = weight.shape[0]
        if self.choices.fake_quantization is not None:
            raise self.unsupported("--fake-quantize is not modelled for a layer that runs twice; expected none", name)
        if adapters is None or name not in adapters.targets:
            return self.product(x, weight, bias, output_width)
        return self._add_adapter(name, x, self.product(x, weight, bias, output_width), weight, bias, module_path)

    def _add_adapter(
        self,
        parameter_name: str,
        x: Tensor,
        base_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        module_path: ModulePath | None = None,
    ) -> Tensor:
        """Adds the adapter's output to a linear layer's output. module_path: default the current module."""
        aten, adapters = self.aten, self.adapters
        assert adapters is not None
        lora_a = self.adapter_matrix(f"{parameter_name}.lora_A.weight", (adapters.rank, x.shape[-1]), module_path)
        lora_b = self.adapter_matrix(
            f"{parameter_name}.lora_B.weight", (base_output.shape[-1], adapters.rank), module_path
        )
        if adapters.has_dora_magnitudes:
            magnitude = self.adapter_matrix(f"{parameter_name}.magnitude", (base_output.shape[-1],), module_path)
            return self._add_decomposed_adapter(x, base_output, weight, bias, lora_a, lora_b, magnitude)
        if adapters.library != "peft":  # torchtune/modules/peft/lora.py and lit_gpt/lora.py, `LoRALinear`
            lora_a_output = aten.linear(aten.dropout(x) if adapters.dropout else x, lora_a)
            lora_a_output = aten.scale(aten.linear(lora_a_output, lora_b))
            return aten.add(base_output, lora_a_output)
        dtype = base_output.dtype
        if weight.dtype is UINT8:  # peft/tuners/lora/bnb.py, `Linear8bitLt.forward` and `Linear4bit.forward`
            if adapters.base_storage != "int8":
                base_output = aten.copy(base_output)
            adapter_input = x if self.graph.autocast_dtype is not None else aten.to(x, adapters.dtype)
            summed_output = self._scaled_adapter(adapter_input, lora_a, lora_b)
            if self.graph.autocast_dtype is None:
                summed_output = aten.to(summed_output, dtype)
            return aten.add(base_output, summed_output)
        adapter_input = aten.to(x, adapters.dtype)  # peft/tuners/lora/layer.py, `Linear.forward`
        base_output = aten.add(base_output, self._scaled_adapter(adapter_input, lora_a, lora_b))
        return aten.to(base_output, dtype)

    def _add_decomposed_adapter(
        self,
        x: Tensor,
        base_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        lora_a: Tensor,
        lora_b: Tensor,
        magnitude: Tensor,
    ) -> Tensor:
        """Adds the output of a DoRA adapter, which has a trained magnitude per output (arXiv:2402.09353).

        Sources: peft/tuners/lora/variants.py, `DoraLinearVariant.forward`; peft/tuners/lora/dora.py,
        `DoraLinearLayer.forward`; torchtune/modules/peft/dora.py, `DoRALinear.forward`. The norms of the whole rows
        take several copies of the weight, which are freed at once.
        """
        aten, adapters, output_dtype = self.aten, self.adapters, base_output.dtype
        assert adapters is not None
        is_peft, casts_operands = (
            adapters.library == "peft",
            self.graph.autocast_dtype is None or weight.dtype is not UINT8,
        )
        if is_peft and weight.dtype is UINT8:
            base_output = aten.copy(base_output)
        original_output = base_output
        if is_peft and casts_operands:
            x = aten.to(x, adapters.dtype)
        if adapters.dropout:
            x = aten.dropout(x)
        low_rank_output = None if is_peft else aten.linear(aten.linear(x, lora_a), lora_b)
        identity_matrix = aten.new_tensor((x.shape[-1], x.shape[-1]), lora_a.dtype)
        lora_weight = aten.to(aten.transpose(aten.linear(aten.linear(identity_matrix, lora_a), lora_b), 0, 1), x.dtype)
        del identity_matrix
        if weight.dtype is UINT8:
            weight = self._decode_weight((base_output.shape[-1], x.shape[-1]), output_dtype)
        weight = aten.to(weight, x.dtype)
        magnitude_scale = aten.unsqueeze(aten.div(magnitude, self._row_norms(weight, lora_weight.detached())), 0)
        if low_rank_output is None:
            low_rank_output = aten.linear(aten.linear(x, lora_a), lora_b)
            if adapters.dropout:
                base_output = aten.linear(x, weight)
            elif bias is not None:
                base_output = aten.sub(base_output, bias)
        base_change = aten.mul(aten.add_number(magnitude_scale), base_output)
        dora_change = aten.add(base_change, aten.scale(aten.mul(magnitude_scale, low_rank_output)))
        del base_change, lora_weight, weight, low_rank_output, magnitude_scale, base_output, x
        output = aten.add(original_output, dora_change)
        return aten.to(output, output_dtype) if is_peft and casts_operands else output

    def _row_norms(self, weight: Tensor, lora_weight: Tensor) -> Tensor:
        """Returns the norm of each row of weight plus adapter; its gradient is not propagated (DoRA)."""
        aten = self.aten
        adapted_weight = aten.add(weight, aten.scale(lora_weight))
        weight_to_square = aten.to(adapted_weight, FLOAT32) if self.autocasts_to_float32 else adapted_weight
        return aten.to(aten.new_tensor((weight_to_square.shape[0],), weight_to_square.dtype), adapted_weight.dtype)

    def _scaled_adapter(self, x: Tensor, lora_a: Tensor, lora_b: Tensor) -> Tensor:
        """Computes lora_B(lora_A(dropout(x))) * scaling, as PEFT's layers do."""
        aten, has_dropout = self.aten, self.adapters is not None and self.adapters.dropout
        return aten.scale(aten.linear(aten.linear(aten.dropout(x) if has_dropout else x, lora_a), lora_b))

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, width: Number) -> Tensor:
        """Computes x·Wᵀ + b. A 4-bit weight is decoded first (bitsandbytes/autograd/_functions.py, `MatMul4Bit`).

        The product has a number format of its own (bitsandbytes/nn/modules.py, `Linear4bit.forward`).
        """
        if weight.dtype is not UINT8:
            return super().product(x, weight, bias, width)
        assert self.adapters is not None
        if self.adapters.base_storage == "int8":
            return self._product_in_8_bits(x, weight, width)
        autograd_graph, shape = self.graph, (width, x.shape[-1])
        input_shape, dtype, module_dtype = x.shape, self.adapters.computing_format(x.dtype), x.dtype
        x = self.aten.to(x, dtype)

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *__: Tensor) -> Sequence[OptionalGradient]:
            decoded_weight = self._decode_weight(shape, dtype)
            output = autograd_graph.new_tensor(input_shape, dtype)
            del decoded_weight
            return (output,)

        scale_tensor = self._decode_scales(shape)
        decoded_weight = self._decode_weight(shape, dtype)
        output = autograd_graph.new_tensor((*input_shape[:-1], width), dtype)
        del scale_tensor, decoded_weight
        fused_product = record(autograd_graph, "matmul_4bit", (x,), output, backward, weight)
        if self.adapters.keeps_inputs and fused_product.node is not None:
            fused_product.node.attributes.append(x.detached())
        del x, output
        return self.aten.to(fused_product, module_dtype)

    def _product_in_8_bits(self, x: Tensor, weight: Tensor, output_width: Number) -> Tensor:
        """Computes x·Wᵀ in int8. Outlier columns are left out, because their number depends on the values.

        Sources: bitsandbytes/autograd/_functions.py, `MatMul8bitLt`, which keeps its input as an attribute of the node;
        bitsandbytes/backends/cuda/ops.py, `int8_vectorwise_quant` and `int8_mm_dequant`.
        """
        aten, autograd_graph, dtype, input_shape = self.aten, self.graph, x.dtype, x.shape
        row_count, column_count = numel(x.shape[:-1]), x.shape[-1]

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *__: Tensor) -> Sequence[OptionalGradient]:
            decoded_weight = autograd_graph.new_tensor((output_width, column_count), dtype)
            scale_tensor = autograd_graph.new_tensor((output_width, 1), FLOAT32)
            del scale_tensor
            output = autograd_graph.new_tensor(input_shape, dtype)
            del decoded_weight
            return (output,)

        float16_input = aten.to(x.detached(), FLOAT16)
        row_scales, codes = aten.new_tensor((row_count,), FLOAT32), aten.new_tensor((row_count, column_count), UINT8)
        magnitudes = aten.new_like(float16_input)
        outlier_mask = aten.new_tensor((row_count, column_count), BOOL)
        del magnitudes
        del outlier_mask, float16_input
        int32_products = aten.new_tensor((row_count, output_width), INT32)
        decoded_product = aten.new_tensor((row_count, output_width), FLOAT16)
        output = decoded_product if dtype is FLOAT16 else aten.new_tensor((row_count, output_width), dtype)
        del int32_products, decoded_product, codes, row_scales
        fused_product = record(
            autograd_graph,
            "matmul_8bit",
            (x,),
            aten.reshape(output, (*input_shape[:-1], output_width)),
            backward,
            weight,
        )
        if fused_product.node is not None:
            fused_product.node.attributes.append(x.detached())
        return fused_product

    def _decode_weight(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Decodes a 4-bit weight to a number format (bitsandbytes/functional.py, `dequantize_4bit`)."""
        adapters = self.adapters
        assert adapters is not None
        scale_tensor = self._decode_scales(shape)
        output = self.graph.new_tensor(shape, FLOAT16 if adapters.decodes_to_float16 else dtype)
        del scale_tensor
        return self.aten.to(output, dtype)

    def _decode_scales(self, shape: Shape) -> Tensor | None:
        """Dequantizes the quantized scales of a 4-bit weight; the forward pass adds the scales' mean to a copy.

        Source: bitsandbytes/backends/cuda/ops.py, `_dequant_linear_fallback`.
        """
        assert self.adapters is not None
        has_quantized_scales = self.adapters.base_storage == "nf4-dq"
        return (
            self.graph.new_tensor((ceil_div(numel(shape), BLOCK_WEIGHTS),), FLOAT32) if has_quantized_scales else None
        )

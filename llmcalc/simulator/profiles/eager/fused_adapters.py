"""Low-rank adapters computed in one autograd function: of a gated network, of three projections, or of one layer.

Source: axolotl at 067b021c, kernels/lora.py (`matmul_lora`, `LoRA_MLP`, `LoRA_QKV`, `LoRA_O`), kernels/swiglu.py
(`swiglu_backward`) and monkeypatch/lora_kernels.py for the modules in which they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....algebra import Number
from ....components.base import TORCH_WITNESS
from ....evidence import compared, source_code_witness
from ....flow.program import ModuleScope, Step
from ....workload.lora import GATED_NETWORK, OUTPUT_PROJECTION, PROJECTIONS
from ...autograd import record, record_multiple_outputs
from ...tensor import UINT8, NeedsInputGrad, OptionalGradient, Tensor
from .lora import LoraKernels
from .scans.module_steps import module_steps

FUSED_ADAPTERS_WITNESS = source_code_witness("axolotl's kernels/lora.py", "tests/simulator/test_fused_adapters.py")
"""The witness of the fused adapters, whose storages are those of the source's lines."""

GATED_VERBS = ["linear", "act", "linear", "mul", "linear"]
"""The verbs of a gated network's steps."""

FUSED_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""The activations that have a kernel."""


class FusedAdapterKernels(LoraKernels):
    """Kernels that run all adapters of attention or of a gated network as one function with one saved input."""

    @property
    def _runs_fused_adapters(self) -> bool:
        """Whether the running module is a layer's submodule and its adapters run in fused functions."""
        adapters = self.adapters
        return (
            self.choices.fused_adapters
            and adapters is not None
            and not adapters.has_dora_magnitudes
            and adapters.base_storage != "int8"
            and len(self.frames) > 1
            and self.frames[-2].layer_index is not None
        )

    def _is_separately_adapted(self, operation: Step) -> bool:
        """Whether a linear layer has an adapter that it shares with no other layer."""
        return self.has_adapter(operation) and not self._joined_layer_name(operation)

    # --- gated networks ---------------------------------------------------------------------------------------------

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        gated_network = self._gated_network(module_scope) if self._runs_fused_adapters else ()
        if not gated_network:
            return super().module_kernel(module_scope)
        return lambda: self._run_gated_network(module_scope, gated_network)

    def _gated_network(self, module_scope: ModuleScope) -> Sequence[Step]:
        """Returns a gated network's gate, up and down projections if all have adapters; empty for other modules."""
        if any(not isinstance(scope_item, Step) for scope_item in module_scope.items):
            return ()
        operations = [
            operation
            for operation in module_steps(module_scope)
            if operation.verb != "dropout" or operation.options["probability"]
        ]
        linear_layers = [operation for operation in operations if operation.verb == "linear"]
        is_gated_network = (
            [operation.verb for operation in operations] == GATED_VERBS
            and tuple(layer.name for layer in linear_layers) == GATED_NETWORK
            and operations[1].options["kind"] in FUSED_ACTIVATIONS
            and all(map(self._is_separately_adapted, linear_layers))
        )
        return linear_layers if is_gated_network else ()

    @compared(FUSED_ADAPTERS_WITNESS, fused_adapters=True)
    def _run_gated_network(self, module_scope: ModuleScope, linear_layers: Sequence[Step]) -> None:
        """Runs a gated network as one function, which saves its input, the gate and the up-projection.

        Its backward pass writes the activated product and the two gradients over the gradient of that product, the gate
        and the up-projection.
        """
        autograd_graph, aten = self.graph, self.aten
        gate_layer, _, down_layer = linear_layers
        x = aten.autocast_operand(self.flat_tensor(gate_layer.input_values[0]))
        weights = [self.linear_weight(linear_layer) for linear_layer in linear_layers]
        widths = [linear_layer.output_values[0].width for linear_layer in linear_layers]
        input_widths = [x.shape[-1], x.shape[-1], widths[1]]
        matrices = [
            adapter_matrix
            for linear_layer, input_width in zip(linear_layers, input_widths, strict=True)
            for adapter_matrix in self._adapter_matrices(linear_layer, input_width)
        ]
        matrix_shapes = [adapter_matrix.shape for adapter_matrix in matrices]
        dropped_x = self._dropped_input(x)
        with autograd_graph.no_grad():
            gate = self._adapted_rows(x, weights[0], widths[0])
            up_projection = self._adapted_rows(x, weights[1], widths[1])
            activated_product = aten.new_like(gate)
            output = self._adapted_rows(activated_product, weights[2], widths[2])

        def backward(
            output_gradient: Tensor, _: NeedsInputGrad, x: Tensor, dropped_x: Tensor, gate: Tensor, *saved: Tensor
        ) -> Sequence[OptionalGradient]:
            _up_projection, *weights = saved
            product_gradient = self._adapted_rows(output_gradient, weights[2], gate.shape[-1])
            matrix_gradients = [autograd_graph.new_tensor(shape, x.dtype) for shape in matrix_shapes]
            input_gradients = self._input_gradients(x, dropped_x, [weights[1], weights[0]])
            del product_gradient
            return (*input_gradients, *matrix_gradients)

        inputs = [x, *([] if dropped_x is x else [dropped_x]), *matrices]
        output = record(
            autograd_graph, "gated_network", inputs, output, backward, x, dropped_x, gate, up_projection, *weights
        )
        del activated_product, gate, up_projection, x, dropped_x
        self.store_tensor(down_layer.output_values[0], output)
        for operation in module_steps(module_scope):
            self.release_last_reads(operation, operation.input_values)

    # --- attention --------------------------------------------------------------------------------------------------

    @compared(TORCH_WITNESS)
    def do_linear(self, operation: Step) -> None:
        projections = self._projections_of_attention(operation) if self._runs_fused_adapters else ()
        if not projections:
            super().do_linear(operation)
        elif operation is projections[0]:  # the others have their values from it
            self._run_projections(projections)

    def _projections_of_attention(self, operation: Step) -> Sequence[Step]:
        """Returns the adapted projections that run as one function: of queries, keys and values, or of the output."""
        if operation.name not in (*PROJECTIONS, OUTPUT_PROJECTION):
            return ()
        layers = {
            linear_operation.name: linear_operation
            for linear_operation in module_steps(self.frames[-1].scope)
            if linear_operation.verb == "linear"
        }
        names = PROJECTIONS if operation.name in PROJECTIONS else (OUTPUT_PROJECTION,)
        if not all(projection_name in layers for projection_name in (*PROJECTIONS, OUTPUT_PROJECTION)):
            return ()
        if any(
            self._joined_layer_name(layers[projection_name]) for projection_name in PROJECTIONS
        ):  # the class has no such layers
            return ()
        projections = [layers[projection_name] for projection_name in names]
        reads_one_input = len({id(layer.input_values[0]) for layer in projections}) == 1
        return projections if reads_one_input and all(map(self._is_separately_adapted, projections)) else ()

    @compared(FUSED_ADAPTERS_WITNESS, fused_adapters=True)
    def _run_projections(self, projections: Sequence[Step]) -> None:
        """Runs projections of one input, which is saved once and has one gradient tensor."""
        autograd_graph, reader = self.graph, projections[-1]
        x = self.aten.autocast_operand(self.flat_tensor(projections[0].input_values[0], reader))
        weights = [self.linear_weight(projection) for projection in projections]
        matrices = [
            adapter_matrix
            for projection in projections
            for adapter_matrix in self._adapter_matrices(projection, x.shape[-1])
        ]
        matrix_shapes = [adapter_matrix.shape for adapter_matrix in matrices]
        dropped_x = self._dropped_input(x)
        with autograd_graph.no_grad():
            outputs = [
                self._adapted_rows(x, weight, projection.output_values[0].width)
                for projection, weight in zip(projections, weights, strict=True)
            ]

        def backward(
            _output_gradients: object, _: NeedsInputGrad, x: Tensor, dropped_x: Tensor, *weights: Tensor
        ) -> Sequence[OptionalGradient]:
            matrix_gradients = [autograd_graph.new_tensor(shape, x.dtype) for shape in matrix_shapes]
            return (*self._input_gradients(x, dropped_x, weights), *matrix_gradients)

        inputs = [x, *([] if dropped_x is x else [dropped_x]), *matrices]
        record_multiple_outputs(
            autograd_graph, "adapted_projections", inputs, outputs, backward, x, dropped_x, *weights
        )
        del x, dropped_x
        for projection, output in zip(projections, outputs, strict=True):
            self.modules[id(projection.output_values[0])] = self.module_path(), projection.name
            self.store_tensor(projection.output_values[0], output)

    # --- products ---------------------------------------------------------------------------------------------------

    def _adapter_matrices(self, layer: Step, input_width: Number) -> list[Tensor]:
        """Returns the trained matrices of a layer's adapter, and allocates the layer's bias if it has one."""
        assert self.adapters is not None
        output_width, rank = layer.output_values[0].width, self.adapters.rank
        if layer.options["bias"]:
            self.weight(f"{layer.name}.bias", (output_width,))
        return [
            self.adapter_matrix(f"{layer.name}.lora_A.weight", (rank, input_width)),
            self.adapter_matrix(f"{layer.name}.lora_B.weight", (output_width, rank)),
        ]

    def _dropped_input(self, x: Tensor) -> Tensor:
        """Returns x after dropout, shared by all adapters of a function; x itself if the adapters have no dropout."""
        return self.aten.dropout(x) if self.adapters is not None and self.adapters.dropout else x

    def _adapted_rows(self, x: Tensor, weight: Tensor, output_width: Number) -> Tensor:
        """Decodes a quantized weight and computes x·Wᵀ, to which the adapter's output is added in place."""
        assert self.adapters is not None
        is_quantized = weight.dtype is UINT8
        decoded_weight = self._decode_weight((output_width, x.shape[-1]), x.dtype) if is_quantized else None
        output = self.graph.new_tensor((*x.shape[:-1], output_width), x.dtype)
        del decoded_weight
        self.graph.new_tensor((*x.shape[:-1], self.adapters.rank), x.dtype)
        return output

    def _input_gradients(self, x: Tensor, dropped_x: Tensor, weights: Sequence[Tensor]) -> list[OptionalGradient]:
        """Returns the gradient of x, one sum over the weights, and the gradient of x after dropout, if there is one."""
        decoded_weight = None
        input_gradient: Tensor | None = None
        for weight in weights:
            if weight.dtype is UINT8:
                decoded_weight = self._decode_weight((weight.shape[0] * 2 // x.shape[-1], x.shape[-1]), x.dtype)
            input_gradient = input_gradient or self.aten.new_like(x)
            decoded_weight = None
        del decoded_weight
        return [input_gradient, *([] if dropped_x is x or dropped_x.storage is x.storage else [self.aten.new_like(x)])]

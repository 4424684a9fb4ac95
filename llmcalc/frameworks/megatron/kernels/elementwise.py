"""The kernels of activations, residual additions with dropout, and splits.

Sources: Megatron-LM, megatron/core/fusions/ (fused_bias_dropout.py, fused_bias_gelu.py, fused_bias_swiglu.py) and
megatron/core/transformer/mlp.py. Fusions run under torch.compile: one kernel forward, one backward.
"""

from __future__ import annotations

from ....flow.program import Step
from ....flow.value import Value
from ....simulator.autograd import record
from ....simulator.tensor import NeedsInputGrad, Tensor
from .attention import AttentionKernels
from .lowering import Gradients, SavedTensors


class ElementwiseKernels(AttentionKernels):
    """Kernels of activations and residual additions."""

    def do_hold(self, operation: Step) -> None: ...

    def do_keep(self, operation: Step) -> None: ...

    def do_enter(self, operation: Step) -> None: ...

    def do_leave(self, operation: Step) -> None: ...

    def do_in_format_of(self, operation: Step) -> None:
        """Returns the tensor unchanged, since all activations have one number format."""
        self.store_output(operation, self.tensor_of(operation.input_values[-1]))

    def do_flat(self, operation: Step) -> None:
        """Returns the tensor unchanged, because every row already holds all heads of a token."""
        self.store_output(operation, self.tensor_of(operation.input_values[0]))

    # --- activations -------------------------------------------------------------------------------------------------

    def do_act(self, operation: Step) -> None:
        """Runs an activation, unless the activation is a gate's, which the multiplication runs."""
        x = self.tensor_read_by(operation, operation.input_values[0])
        if self._is_gate(operation.output_values[0]):
            self.store_output(operation, x)
            return
        bias, self.activation_bias = self.activation_bias, None
        self.store_output(operation, self.activation(x, bias))

    def _is_gate(self, program_value: Value) -> bool:
        """Whether a later operation multiplies by a value of the program."""
        return any(step.verb == "mul" for step, _ in self.readers_by_storage.get(id(program_value.storage), ()))

    def activation(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Runs an activation that saves its input. Without fusion the bias is added first."""
        is_fused = self.rank_choices.fuses_bias_and_activation and bias is not None
        if bias is not None and not is_fused:
            x = self.with_bias(x, bias)
        activation_inputs = [x, bias] if is_fused and bias is not None else [x]
        return self.node_with_new_gradients("activation", activation_inputs, self.empty_like(x), x)

    def with_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """Adds a bias."""
        shape = bias.shape
        return record(
            self.graph,
            "add",
            (x, bias),
            self.empty_like(x),
            lambda grad, _: (grad, self.graph.new_tensor(shape, grad.dtype)),
        )

    def do_mul(self, operation: Step) -> None:
        """Computes act(gate) · up from the output of one fused projection."""
        if operation.output_values[0].axes[0].name == "heads":
            self.store_output(
                operation,
                self.multiply_by_gate(
                    *(self.tensor_read_by(operation, input_value) for input_value in operation.input_values)
                ),
            )
            return
        gate_and_up_output = self.gate_and_up(operation)
        bias, self.activation_bias = self.activation_bias, None
        self.store_output(operation, self.gated_activation(gate_and_up_output, bias, operation.output_values[0].width))

    def gate_and_up(self, operation: Step) -> Tensor:
        """Returns the fused gate-and-up projection's output. Raises `UnsupportedKernel` for separate projections."""
        gate, up_output = (self.tensor_read_by(operation, input_value) for input_value in operation.input_values)
        if gate is not up_output:
            raise self.unsupported("no kernels for a product of values that are not of one layer", operation.name)
        return gate

    def multiply_by_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Multiplies x by an activated gate in one fp32 kernel, which saves both inputs."""
        return self.node_with_new_gradients("gated", (x, gate), self.empty_like(x), x, gate)

    def gated_activation(self, x: Tensor, bias: Tensor | None, output_width: int) -> Tensor:
        """Computes act(gate) · up from one tensor that contains gate and up."""
        if self.rank_choices.fuses_bias_and_activation:
            activation_inputs = [x] if bias is None else [x, bias]
            return self.node_with_new_gradients(
                "glu", activation_inputs, self.graph.new_tensor((x.shape[0], output_width), x.dtype), x
            )
        if bias is not None:
            x = self.with_bias(x, bias)
        gate, up_output = self.aten.split(x, (output_width, output_width))
        del x
        activated_gate = self.aten.elementwise_function("silu", gate)
        return self.aten.mul(activated_gate, up_output)

    # --- additions ---------------------------------------------------------------------------------------------------

    def do_dropout(self, operation: Step) -> None:
        """Postpones the dropout of a sublayer's output to the residual addition, which includes it."""
        self.store_output(operation, self.tensor_of(operation.input_values[0]))
        if operation.options["place"] in ("attention_output", "feed_forward"):
            self.dropout_outputs.add(id(operation.output_values[0]))

    def do_add(self, operation: Step) -> None:
        """Adds two tensors, with the dropout that an earlier operation has postponed."""
        dropout_output = next(
            (input_value for input_value in operation.input_values if id(input_value) in self.dropout_outputs), None
        )
        if dropout_output is None:
            self.store_output(
                operation,
                self.add(*(self.tensor_read_by(operation, input_value) for input_value in operation.input_values)),
            )
            return
        residual_value = next(
            input_value for input_value in operation.input_values if input_value is not dropout_output
        )
        bias, self.row_bias = self.row_bias, None
        sum_output = self.bias_dropout_add(
            self.tensor_read_by(operation, dropout_output), self.tensor_read_by(operation, residual_value), bias
        )
        self.store_output(operation, sum_output)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Adds two tensors of the same shape."""
        return record(
            self.graph, "add", (a, b), self.empty_like(a), lambda sum_gradient, _: (sum_gradient, sum_gradient)
        )

    def bias_dropout_add(self, x: Tensor, residual: Tensor, bias: Tensor | None) -> Tensor:
        """Computes residual + dropout(x + bias), which saves one byte per element."""
        autograd_graph, x_shape = self.graph, x.shape
        has_dropout = self.rank_choices.hidden_dropout > 0
        dropout_masks = [self.dropout_mask(x)] if has_dropout else []
        sum_output = self.empty_like(x)
        sum_inputs = [x, residual, *([] if bias is None else [bias])]
        bias_shape = None if bias is None else bias.shape

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            x_gradient = autograd_graph.new_tensor(x_shape, output_gradient.dtype) if has_dropout else output_gradient
            return [
                x_gradient,
                output_gradient,
                *([] if bias_shape is None else [autograd_graph.new_tensor(bias_shape, output_gradient.dtype)]),
            ]

        self.record_node("bias_dropout_add", sum_inputs, [sum_output], backward, *dropout_masks)
        return sum_output

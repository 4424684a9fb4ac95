"""RG-LRU (De 2024, arXiv:2402.19427), for which no library publishes a kernel: a loop over the tokens."""

from __future__ import annotations

from typing import Any

from .....algebra import exact_div
from .....components.base import PUBLISHED_KERNELS_WITNESS
from .....evidence import compared
from .....flow.program import Step
from .....ops import BlockLinear
from ....autograd import needs_autograd_node, record
from ....tensor import BOOL, FLOAT32, Tensor
from .module_steps import ModuleSteps
from .modules import ScanModuleKernels

SEQUENTIAL_TOKENS = 4
"""Number of tokens at the end of the loop that are replayed one by one."""


class RGLRUKernels(ScanModuleKernels):
    """Kernels of RG-LRU."""

    @compared(PUBLISHED_KERNELS_WITNESS)
    def module_rglru(self, module_steps: ModuleSteps, x: Tensor) -> Tensor:
        """Runs an RG-LRU block as transformers does (modeling_recurrent_gemma.py, `RecurrentGemmaRecurrentBlock`).

        No library publishes a kernel of this scan: it runs as a loop over the tokens.
        """
        aten = self.aten
        gate = self.apply_activation(self.project(module_steps["linear_y"], x), module_steps.activation_names[0])
        recurrence_input = aten.transpose(self.project(module_steps["linear_x"], x), 1, 2)
        conv_step = module_steps["conv_1d"]
        weight = self.weight("conv_1d.weight", (conv_step.output_values[0].width, 1, conv_step.options["kernel"]))
        self.state_tensors(module_steps["recurrent_state"], (conv_step.output_values[0].width,))
        self.cache_last_inputs(module_steps["conv_state"], recurrence_input)
        recurrence_input = aten.convolution(
            recurrence_input, weight, self.bias(conv_step), recurrence_input.shape[2] + conv_step.options["kernel"] - 1
        )
        recurrence_input = self._rglru(
            aten.transpose(aten.slice(recurrence_input, x.shape[1]), 1, 2), module_steps["input_gate"]
        )
        output = aten.mul(recurrence_input, gate)
        return self.project(module_steps["linear_out"], output)

    def _rglru(self, recurrence_input: Tensor, gate: Step) -> Tensor:
        """Runs the recurrence as `RecurrentGemmaRglru.forward` does."""
        aten, (batch_size, token_count, channel_count) = self.aten, recurrence_input.shape
        assert isinstance(gate.op, BlockLinear)
        block_count = gate.op.block_count
        block_width = exact_div(channel_count, block_count)
        reset_mask = aten.new_tensor((1, token_count, 1), BOOL)
        input_blocks = aten.transpose(
            aten.reshape(recurrence_input, (batch_size * token_count, block_count, block_width)), 0, 1
        )

        def sigmoid_gate(gate_name: str) -> tuple[Tensor, Tensor]:
            bias = aten.unsqueeze(self.weight(f"{gate_name}.bias", (block_count, block_width)), 1)
            gate_logits = aten.baddbmm(
                bias, input_blocks, self.weight(f"{gate_name}.weight", (block_count, block_width, block_width))
            )
            return gate_logits, aten.elementwise_function(
                "sigmoid", aten.reshape(aten.transpose(gate_logits, 0, 1), (batch_size, token_count, channel_count))
            )

        _res, input_gate = sigmoid_gate("input_gate")
        _res, recurrent_gate = sigmoid_gate("recurrent_gate")
        recurrent_param = self.weight("recurrent_param", (channel_count,))
        log_gate = aten.mul(aten.scale(recurrent_gate), aten.elementwise_function("softplus", recurrent_param))
        recurrent_gate = aten.exp(log_gate)
        squared_gate = aten.exp(aten.scale(log_gate))
        gated_inputs = aten.mul(recurrence_input, input_gate)
        input_multiplier = self._bounded_sqrt(aten.scale(squared_gate, "rsub"))
        input_multiplier = aten.add(reset_mask, aten.mul(aten.new_like(reset_mask), input_multiplier))
        x = aten.mul(gated_inputs, input_multiplier)
        return self._loop_over_tokens(x, recurrent_gate, reset_mask)

    def _bounded_sqrt(self, x: Tensor) -> Tensor:
        """Computes the square root as `SqrtBoundDerivative` does."""
        aten = self.aten

        def backward(output_gradient: Tensor, _: Any, x: Tensor) -> list[Tensor]:
            clipped_x = aten.new_like(aten.new_like(x))
            return [aten.new_like(output_gradient, aten.new_like(clipped_x))]

        return record(aten.graph, "SqrtBoundDerivative", (x,), aten.new_like(x), backward, x)

    def _loop_over_tokens(self, x: Tensor, gate: Tensor, reset_mask: Tensor) -> Tensor:
        """Runs `RecurrentGemmaRglru._rnn_scan` token by token; the module stores the last state."""
        aten, (batch_size, token_count, channel_count) = self.aten, x.shape
        gate = aten.mul(gate, aten.new_like(reset_mask))
        first_state, state_sequence = aten.new_tensor((batch_size, channel_count), FLOAT32), aten.new_like(x)
        if token_count > SEQUENTIAL_TOKENS:
            state_sequence, first_state = self._record_first_tokens(
                x, gate, state_sequence, first_state, token_count - SEQUENTIAL_TOKENS
            )
        for _ in range(min(token_count, SEQUENTIAL_TOKENS)):
            first_state = aten.mul(aten.to(aten.select(gate, 1), FLOAT32), first_state)
            first_state = aten.add(first_state, aten.to(aten.select(x, 1), FLOAT32))
            state_sequence = aten.write_into(state_sequence, aten.to(first_state, x.dtype))
        if self.cached_tensors_by_path is None:
            self.persistent_tensors[self.module_path()] = first_state
        return state_sequence

    def _record_first_tokens(
        self, x: Tensor, gate: Tensor, state_sequence: Tensor, state: Tensor, token_count: Any
    ) -> tuple[Tensor, Tensor]:
        """Records the operations on the first tokens as one autograd node with saved tensors and gradients.

        The most is held while the last tokens run, and while their gradients are computed.
        """
        autograd_graph, (batch_size, _, channel_count) = self.graph, x.shape

        def backward(output_gradient: Tensor, _: Any, *__: Tensor) -> list[Tensor]:
            return [autograd_graph.new_tensor(input_shape, dtype)]

        input_shape, dtype = x.shape, x.dtype
        view = Tensor(state_sequence.shape, state_sequence.dtype, state_sequence.storage, state_sequence.strides)
        if needs_autograd_node(autograd_graph, (x,)):
            saved_tensors = [
                autograd_graph.new_tensor((batch_size, token_count - 1, channel_count), FLOAT32) for _ in range(2)
            ]  # gates and states
            record(autograd_graph, "tokens", (x,), view, backward, state, *saved_tensors)
        return view, record(
            autograd_graph, "token", (gate,), autograd_graph.new_tensor(state.shape, state.dtype), backward
        )

"""RG-LRU (De 2024, arXiv:2402.19427), for which no library publishes a kernel: a loop over the tokens."""

from __future__ import annotations

from typing import Any

from .....algebra import exact_div
from .....components.base import PUBLISHED
from .....evidence import compared
from .....flow.program import Step
from .....ops import BlockLinear
from ....autograd import record, recorded
from ....tensor import BOOL, FLOAT32, Tensor
from .module_steps import Steps
from .modules import ScanModules

ONE_BY_ONE = 4
"""The tokens at the end of a loop that run one after the other."""


class RgLruKernels(ScanModules):
    """Kernels of RG-LRU."""

    @compared(PUBLISHED)
    def module_rglru(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs `RecurrentGemmaRecurrentBlock.forward` (transformers, modeling_recurrent_gemma.py).

        No library publishes a kernel of this scan: it runs as a loop over the tokens.
        """
        t = self.t
        y = self.apply_activation(self.project(steps["linear_y"], x), steps.acts[0])
        u = t.transpose(self.project(steps["linear_x"], x), 1, 2)
        conv = steps["conv_1d"]
        weight = self.weight("conv_1d.weight", (conv.outs[0].width, 1, conv.options["kernel"]))
        self.states(steps["recurrent_state"], (conv.outs[0].width,))
        self.keep_inputs(steps["conv_state"], u)
        u = t.convolution(u, weight, self.bias(conv), u.shape[2] + conv.options["kernel"] - 1)
        u = self._rglru(t.transpose(t.slice(u, x.shape[1]), 1, 2), steps["input_gate"])
        out = t.mul(u, y)
        return self.project(steps["linear_out"], out)

    def _rglru(self, u: Tensor, gate: Step) -> Tensor:
        """Runs `RecurrentGemmaRglru.forward`."""
        t, (batch, tokens, width) = self.t, u.shape
        assert isinstance(gate.op, BlockLinear)
        blocks = gate.op.blocks
        size = exact_div(width, blocks)
        reset = t.new((1, tokens, 1), BOOL)
        input_blocks = t.transpose(t.reshape(u, (batch * tokens, blocks, size)), 0, 1)

        def gated(name: str) -> tuple[Tensor, Tensor]:
            bias = t.unsqueeze(self.weight(f"{name}.bias", (blocks, size)), 1)
            gate_logits = t.baddbmm(bias, input_blocks, self.weight(f"{name}.weight", (blocks, size, size)))
            return gate_logits, t.function("sigmoid", t.reshape(t.transpose(gate_logits, 0, 1), (batch, tokens, width)))

        _res, input_gate = gated("input_gate")
        _res, recurrent_gate = gated("recurrent_gate")
        param = self.weight("recurrent_param", (width,))
        log_gate = t.mul(t.scale(recurrent_gate), t.function("softplus", param))
        recurrent_gate = t.exp(log_gate)
        square = t.exp(t.scale(log_gate))
        gated_inputs = t.mul(u, input_gate)
        multiplier = self._bounded_sqrt(t.scale(square, "rsub"))
        multiplier = t.add(reset, t.mul(t.like(reset), multiplier))
        x = t.mul(gated_inputs, multiplier)
        return self._loop_over_tokens(x, recurrent_gate, reset)

    def _bounded_sqrt(self, x: Tensor) -> Tensor:
        """Runs `SqrtBoundDerivative`."""
        t = self.t

        def backward(g: Tensor, _: Any, x: Tensor) -> list[Tensor]:
            clipped_x = t.like(t.like(x))
            return [t.like(g, t.like(clipped_x))]

        return record(t.graph, "SqrtBoundDerivative", (x,), t.like(x), backward, x)

    def _loop_over_tokens(self, x: Tensor, gate: Tensor, reset: Tensor) -> Tensor:
        """Runs `RecurrentGemmaRglru._rnn_scan`: one token after the other. The module keeps the last state."""
        t, (batch, tokens, width) = self.t, x.shape
        gate = t.mul(gate, t.like(reset))
        state, states = t.new((batch, width), FLOAT32), t.like(x)
        if tokens > ONE_BY_ONE:
            states, state = self._first_tokens(x, gate, states, state, tokens - ONE_BY_ONE)
        for _ in range(min(tokens, ONE_BY_ONE)):
            state = t.mul(t.to(t.select(gate, 1), FLOAT32), state)
            state = t.add(state, t.to(t.select(x, 1), FLOAT32))
            states = t.write_into(states, t.to(state, x.dtype))
        if self.store is None:
            self.left[self.module_path()] = state
        return states

    def _first_tokens(
        self, x: Tensor, gate: Tensor, states: Tensor, state: Tensor, tokens: Any
    ) -> tuple[Tensor, Tensor]:
        """Records the loop's first tokens as one node, with their saved tensors and gradients.

        The most is held while the last tokens run, and while their gradients are computed.
        """
        graph, (batch, _, width) = self.graph, x.shape

        def backward(g: Tensor, _: Any, *__: Tensor) -> list[Tensor]:
            return [graph.new(input_shape, dtype)]

        input_shape, dtype = x.shape, x.dtype
        view = Tensor(states.shape, states.dtype, states.storage, states.strides)
        if recorded(graph, (x,)):
            saved_tensors = [graph.new((batch, tokens - 1, width), FLOAT32) for _ in range(2)]  # gates and states
            record(graph, "tokens", (x,), view, backward, state, *saved_tensors)
        return view, record(graph, "token", (gate,), graph.new(state.shape, state.dtype), backward)

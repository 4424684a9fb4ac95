"""Convolutions along the rows."""

from __future__ import annotations

from ....algebra import Number, is_zero
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ....ops import Conv1d
from ...lowering import Lowering
from ...strides import is_size_one
from ...tensor import Tensor


class ConvolutionKernels(Lowering):
    """Convolutions, which torch computes with channels before rows."""

    @compared(BY_TORCH)
    def do_conv(self, step: Step) -> None:
        out = step.outs[0]
        op = step.op
        if not isinstance(op, Conv1d) or not is_zero(op.padding):
            raise self.unsupported("no kernels for a causal convolution", step.name)
        filters_of_heads = not is_size_one(step.options["shared"])  # then [batch, rows, heads, size]
        x = self.t.transpose(self.get(step.ins[0]) if filters_of_heads else self.flat(step.ins[0]), 1, 2)
        result = self.convolve(x, step, self.run_config.new(out.rows))
        self.set(out, self.t.transpose(result, 1, 2))

    def convolve(self, x: Tensor, step: Step, length: Number) -> Tensor:
        """Convolves [batch, channels, rows, …] → [batch, out, length, …]."""
        options, width = step.options, step.outs[0].width
        weight = self.weight(
            f"{step.name}.weight", (width // options["shared"], x.shape[1] // options["groups"], options["kernel"])
        )
        bias = self.weight(f"{step.name}.bias", (width,)) if options["bias"] else None
        return self.t.convolution(x, weight, bias, length)

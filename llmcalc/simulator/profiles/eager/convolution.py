"""Convolutions along the rows of a tensor."""

from __future__ import annotations

from ....algebra import Number, is_zero
from ....components.base import TORCH_WITNESS
from ....evidence import compared
from ....flow.program import Step
from ....ops import Conv1d
from ...lowering import Lowering
from ...strides import is_size_one
from ...tensor import Tensor


class ConvolutionKernels(Lowering):
    """Convolutions, which torch computes with channels before rows."""

    @compared(TORCH_WITNESS)
    def do_conv(self, operation: Step) -> None:
        output = operation.output_values[0]
        op = operation.op
        if not isinstance(op, Conv1d) or not is_zero(op.padding):
            raise self.unsupported("no kernels for a causal convolution", operation.name)
        has_filters_per_head = not is_size_one(operation.options["shared"])  # then [batch, rows, heads, size]
        x = self.aten.transpose(
            self.tensor_of(operation.input_values[0])
            if has_filters_per_head
            else self.flat_tensor(operation.input_values[0]),
            1,
            2,
        )
        convolution_output = self.convolve(x, operation, self.run_config.new_rows(output.rows))
        self.store_tensor(output, self.aten.transpose(convolution_output, 1, 2))

    def convolve(self, x: Tensor, operation: Step, output_length: Number) -> Tensor:
        """Convolves [batch, channels, rows, …] → [batch, out, length, …]."""
        conv_options, channel_count = operation.options, operation.output_values[0].width
        weight = self.weight(
            f"{operation.name}.weight",
            (channel_count // conv_options["shared"], x.shape[1] // conv_options["groups"], conv_options["kernel"]),
        )
        bias = self.weight(f"{operation.name}.bias", (channel_count,)) if conv_options["bias"] else None
        return self.aten.convolution(x, weight, bias, output_length)

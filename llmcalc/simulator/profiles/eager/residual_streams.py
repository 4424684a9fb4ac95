"""Models with several residual streams, such as AltUp and hyper-connections."""

from __future__ import annotations

from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ...lowering import Lowering
from ...tensor import FLOAT32, INT64, Tensor


@kernels_compared(TORCH_WITNESS, unchecked_kernels=("do_received",))
class ResidualStreamKernels(Lowering):
    """Kernels that split, mix and merge residual streams, [batch, rows, streams, width]."""

    def do_take(self, operation: Step) -> None:
        stream_value, output = operation.input_values[0], operation.output_values[0]
        x = self.tensor_of(stream_value)
        if len(output.axes) < len(stream_value.axes):
            self.store_tensor(output, self.aten.select(x, 2))
        else:
            self.store_tensor(output, self.aten.slice(x, output.axes[0].size, 2))

    def do_received(self, operation: Step) -> None:
        """Allocates hidden states that another model computed, which need no gradient."""
        x_dtype = self.tensor_of(operation.input_values[0]).dtype
        dtype = self.dtype if x_dtype is INT64 else x_dtype  # token ids of a draft that reads no embedding
        self.store_tensor(
            operation.output_values[0], self.aten.new_tensor(self.shape(operation.output_values[0]), dtype)
        )

    def do_copies(self, operation: Step) -> None:
        x, output = self.aten.unsqueeze(self.tensor_of(operation.input_values[0]), 2), operation.output_values[0]
        self.store_tensor(output, self.aten.expand(x, self.shape(output)))

    def do_stack(self, operation: Step) -> None:
        first_stream, other_streams = operation.input_values
        outputs = self.stacked_outputs.pop(id(other_streams))
        self.store_tensor(operation.output_values[0], self.aten.stack([self.tensor_of(first_stream), *outputs], 2))

    def core_Product(self, operation: Step) -> None:
        """Multiplies each token's streams by a per-token weight matrix, or by shared vectors."""
        aten, (left_operand, right_operand) = self.aten, map(self.tensor_of, operation.input_values)
        if len(right_operand.shape) == 1:
            self.store_tensor(
                operation.output_values[0], aten.select(aten.linear(left_operand, aten.unsqueeze(right_operand, 0)), 3)
            )
        elif len(right_operand.shape) == 2:
            self.store_tensor(
                operation.output_values[0], aten.transpose(aten.linear(left_operand, right_operand), -1, -2)
            )
        else:
            self.store_tensor(operation.output_values[0], aten.matmul(left_operand, right_operand))

    def core_ResidualStreamMix(self, operation: Step) -> None:
        matrix, x = map(self.tensor_of, operation.input_values)
        self.store_tensor(operation.output_values[0], self.aten.matmul(self.aten.transpose(matrix, -1, -2), x))

    def core_ResidualStreamOffsets(self, operation: Step) -> None:
        """Applies one scale per kind of weight and one offset per weight (Offsets.forward)."""
        aten, part_sizes = self.aten, [output.width for output in operation.output_values]
        weight_parts = aten.split(self.tensor_of(operation.input_values[0]), part_sizes)
        base_weight = self.weight(f"{operation.name}.base", (sum(part_sizes),))
        scale_vector = self.weight(f"{operation.name}.scale", (len(part_sizes),))
        for output, weight_logits, scale_element, stream_offset in zip(
            operation.output_values,
            weight_parts,
            aten.unbind(scale_vector),
            aten.split(base_weight, part_sizes),
            strict=True,
        ):
            self.store_tensor(output, aten.add(aten.mul(weight_logits, scale_element), stream_offset))

    def do_delayed_weights(self, operation: Step) -> None:
        """Returns the previous sublayer's stream weights; the first sublayer's weights select the first stream."""
        x, output, weights_key = (
            self.tensor_of(operation.input_values[0]),
            operation.output_values[0],
            operation.options["slot"],
        )
        self.refuse_recomputed_module(operation)
        if weights_key not in self.pass_memo:
            stream_count = x.shape[-1]
            first_stream = self.aten.select(self.aten.new_tensor((stream_count, stream_count), x.dtype), 0)
            self.pass_memo[weights_key] = self.aten.expand(first_stream, x.shape)
        self.store_tensor(output, self.pass_memo[weights_key])
        if operation.options["keeps"]:
            self.pass_memo[weights_key] = x

    def do_root_mean_square(self, operation: Step) -> None:
        aten, x = self.aten, self.tensor_of(operation.input_values[0])
        root_mean_square = aten.sqrt(aten.clamp(aten.mean(aten.square(aten.to(x, FLOAT32)))))
        self.store_tensor(operation.output_values[0], aten.to(root_mean_square, x.dtype))

    def do_sinkhorn(self, operation: Step) -> None:
        """Divides a mixing matrix by its row and column sums in turn; each division allocates a new matrix."""
        matrix = self.tensor_read_by(operation, operation.input_values[0])
        matrix = self._divide_by_sums(matrix, -2)
        for _ in range(operation.options["steps"] - 1):
            matrix = self._divide_by_sums(matrix, -1)
            matrix = self._divide_by_sums(matrix, -2)
        self.store_tensor(operation.output_values[0], matrix)

    def _divide_by_sums(self, matrix: Tensor, axis: int) -> Tensor:
        aten = self.aten
        return aten.div(matrix, aten.add_number(aten.sum(matrix, axis, keepdim=True)))

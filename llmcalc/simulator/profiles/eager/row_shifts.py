"""Padding of causal convolutions, and the shift of each sequence by one token."""

from __future__ import annotations

from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ...lowering import Lowering


@kernels_compared(TORCH_WITNESS)
class RowShiftKernels(Lowering):
    """Kernels that pad the inputs of causal convolutions, and shift rows by one token."""

    def do_padded(self, operation: Step) -> None:
        """Pads the input of a causal convolution, and caches the rows that the next pass needs."""
        aten = self.aten
        output = operation.output_values[0]
        padding_row_count = operation.options["more"]
        state_name = operation.options["state"]
        x = aten.transpose(self.flat_tensor(operation.input_values[0]), 1, 2)
        cached_rows = self.frames[-1].local_tensors["held"] = self.cached_tensors(state_name)
        padded_input = (
            aten.pad(x, x.shape[2] + padding_row_count) if cached_rows is None else aten.cat([cached_rows[0], x])
        )
        self.store_in_cache(state_name, aten.slice(padded_input, padding_row_count))
        self.store_tensor(output, aten.transpose(padded_input, 1, 2))

    def do_zeros(self, operation: Step) -> None:
        output = operation.output_values[0]
        cached_rows = self.frames[-1].local_tensors["held"] = self.cached_tensors(operation.options["state"])
        if cached_rows is not None:
            self.absent_value_ids.add(id(output))
        else:
            self.store_tensor(
                output, self.aten.new_tensor(self.shape(output), self.tensor_of(operation.input_values[0]).dtype)
            )

    def do_resumed(self, operation: Step) -> None:
        cached_rows, output = self.cached_tensors(operation.options["state"]), operation.output_values[0]
        if cached_rows is not None:
            self.store_without_reshape(output, self.aten.unsqueeze(cached_rows[operation.options["index"]], 1))
        elif self.is_from_earlier_pass(operation.input_values[0]):
            self.absent_value_ids.add(id(output))
        else:
            self.store_without_reshape(output, self.tensor_of(operation.input_values[0]))

    def do_delayed(self, operation: Step) -> None:
        x, previous_row = map(self.tensor_of, operation.input_values)
        self.store_tensor(
            operation.output_values[0], self.aten.cat([previous_row, self.aten.slice(x, x.shape[1] - 1, 1)], 1)
        )

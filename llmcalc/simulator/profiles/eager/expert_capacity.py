"""Experts with a fixed capacity: equal row counts, one batched product per linear layer."""

from __future__ import annotations

from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.axis import element_count
from ....flow.program import Step
from ....flow.value import Value
from ....workload.expert_capacity import expert_rows
from ....workload.rows import RoutedRows
from ...tensor import Tensor
from .experts import ExpertKernels


@kernels_compared(TORCH_WITNESS)
class ExpertCapacityKernels(ExpertKernels):
    """Kernels of experts with a fixed capacity, which run the operations of the reference with `expert_capacity`."""

    def store_tensor(self, recorded_value: Value, tensor: Tensor) -> None:
        """Stores the tensor of a value, in the shape [experts, rows, width] if its rows are rows of experts."""
        if (
            self.choices.expert_capacity is not None
            and isinstance(recorded_value.rows, RoutedRows)
            and len(tensor.shape) == 3
        ):
            self.store_without_reshape(recorded_value, tensor)
        else:
            super().store_tensor(recorded_value, tensor)

    def do_dispatch(self, operation: Step) -> None:
        """Selects for each expert the rows with the highest weights, up to its capacity."""
        capacity_factor, input_value = self.choices.expert_capacity, operation.input_values[0]
        if capacity_factor is None:
            super().do_dispatch(operation)
            return
        aten, local_tensors, expert_count = self.aten, self.frames[-1].local_tensors, operation.options["experts"].size
        expert_weights, chosen_experts = (
            aten.flatten(local_tensors[tensor_name], 0, 1) for tensor_name in ("weights", "chosen")
        )
        token_count, top_k = chosen_experts.shape
        zero_weights = aten.new_tensor((token_count, expert_count), expert_weights.dtype)
        weights_by_expert = aten.scatter(zero_weights, chosen_experts, expert_weights)
        del zero_weights, expert_weights, chosen_experts
        sent_weights, token_indices = aten.topk(
            weights_by_expert, expert_rows(token_count, top_k, expert_count, capacity_factor), 0
        )
        del weights_by_expert
        local_tensors["weight"] = aten.transpose(sent_weights, 0, 1)
        local_tensors["token"] = aten.flatten(aten.transpose(token_indices, 0, 1))
        del sent_weights, token_indices
        sent_rows = aten.index_select(aten.flatten(self.tensor_of(input_value), 0, -2), local_tensors["token"])
        self.store_output(operation, aten.unflatten(sent_rows, 0, local_tensors["weight"].shape))

    def do_to_tokens(self, operation: Step) -> None:
        if self.choices.expert_capacity is not None:
            raise self.unsupported("experts inside attention have no capacity; expected --moe dropless")
        super().do_to_tokens(operation)

    def do_experts(self, operation: Step) -> None:
        if self.choices.expert_capacity is None:
            super().do_experts(operation)
            return
        if operation.options["identities"]:
            raise self.unsupported("identity experts have no capacity; expected --moe dropless", operation.name)
        aten, expert_count, row_count = self.aten, *self.expert_row_index("weight").shape
        x = self._expert_rows(self.tensor_of(operation.input_values[0]), expert_count, row_count)
        output_width, input_width = element_count(operation.output_values[0].axes), x.shape[-1]
        weight = self.weight(f"{operation.name}.weight", (expert_count, output_width, input_width))
        expert_outputs = aten.matmul(x, aten.transpose(weight, 1, 2))
        if operation.options["bias"]:
            expert_outputs = aten.add(
                expert_outputs, aten.unsqueeze(self.weight(f"{operation.name}.bias", (expert_count, output_width)), 1)
            )
        self.store_output(operation, expert_outputs)

    def _expert_rows(self, x: Tensor, expert_count: int, row_count: int) -> Tensor:
        """Returns a tensor in the shape [experts, rows, width], which an earlier operation may have changed."""
        return (
            x
            if len(x.shape) == 3 and x.shape[0] == expert_count
            else self.aten.reshape(x, (expert_count, row_count, x.shape[-1]))
        )

    def do_combine(self, operation: Step) -> None:
        if self.choices.expert_capacity is None:
            super().do_combine(operation)
            return
        aten, token_weights, sent_weights = (
            self.aten,
            self.tensor_of(operation.input_values[1]),
            self.expert_row_index("weight"),
        )
        weighted_outputs = self._expert_rows(
            self.tensor_read_by(operation, operation.input_values[0]), *sent_weights.shape
        )
        weighted_outputs = aten.flatten(
            aten.mul(weighted_outputs, aten.unsqueeze(aten.to(sent_weights, weighted_outputs.dtype), 2)), 0, 1
        )
        self.store_tensor(
            operation.output_values[0],
            aten.index_add(
                token_weights.shape[0] * token_weights.shape[1], weighted_outputs, self.expert_row_index("token")
            ),
        )

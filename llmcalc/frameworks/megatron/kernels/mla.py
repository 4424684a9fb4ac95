"""The kernels of multi-head latent attention on a rank: unsharded latent projections, partial rotary embeddings.

Sources: Megatron-LM, megatron/core/transformer/multi_latent_attention.py and
megatron/core/fusions/fused_mla_yarn_rope_apply.py.
"""

from __future__ import annotations

from ....flow.program import Step
from ....flow.value import Value
from ....simulator.tensor import BFLOAT16, NeedsInputGrad, OptionalGradient, Tensor
from .experts import ExpertKernels
from .lowering import Gradients, SavedTensors


class LatentAttentionKernels(ExpertKernels):
    """Kernels that split and join the rotary and non-rotary parts of heads."""

    def do_split(self, operation: Step) -> None:
        """Splits a latent vector into views. Heads are not split, because one kernel reads all parts of a head."""
        x = self.tensor_of(operation.input_values[0])
        if len(operation.input_values[0].axes) == 1:
            for part_value, part_view in zip(
                operation.output_values,
                self.split_columns(x, [part_value.width for part_value in operation.output_values]),
                strict=True,
            ):
                self.store_without_reshape(part_value, part_view)
            return
        self.split_outputs[id(operation.input_values[0])] = operation.output_values
        for part_value in operation.output_values:
            self.store_without_reshape(part_value, x)

    def do_rope(self, operation: Step) -> None:
        """Rotates the rotary part of queries, or of the key shared by all heads."""
        input_value = operation.input_values[0]
        if input_value.view_source is None:
            super().do_rope(operation)
        elif len(input_value.axes) == 1:
            self.store_output(operation, self._gather_shared_key(self.tensor_of(input_value)))
        else:
            self.store_output(operation, self.tensor_of(input_value))  # in place, or by what joins the parts

    def _gather_shared_key(self, x: Tensor) -> Tensor:
        """All-gathers the rotary part of the key, which all heads share, over ranks that divide the tokens."""
        if self.rank_choices.sequence_parallel:
            x = self.copy_reordered("gather", x, (x.shape[0] * self.rank_choices.tp, x.shape[1]))
        return x if self.rank_choices.fuses_latent_rope else self.copy_reordered("rope", x, x.shape)

    def do_cat(self, operation: Step) -> None:
        """Joins the rotary and non-rotary parts of queries or keys."""
        if len(operation.input_values) != 2:
            raise self.unsupported("no kernels for joining these values", operation.name)
        first_value, second_value = operation.input_values
        first_part, second_part = self.tensor_of(first_value), self.tensor_of(second_value)
        if first_part is second_part:
            self.store_output(operation, self._rotate_query(first_part))
            return
        if len(operation.output_values[0].axes) == 1:
            self.store_output(operation, self.aten.cat([first_part, second_part]))
            return
        if first_value.view_source is None or id(first_value.view_source) not in self.split_outputs:
            raise self.unsupported("no kernels for joining these values", operation.name)
        remaining_outputs = [
            output_value
            for output_value in self.split_outputs.pop(id(first_value.view_source))
            if output_value is not first_value
        ]
        key, value = self._assemble_key_and_value(
            first_part, second_part, operation.output_values[0], remaining_outputs[0]
        )
        del first_part, second_part
        self.free_value(first_value.view_source.storage)
        for output_value in remaining_outputs:
            self.store_without_reshape(output_value, value)
        self.store_output(operation, key)

    def _rotate_query(self, x: Tensor) -> Tensor:
        """Applies rotary embeddings to a part of each query head, in place in one kernel or in a copy."""
        return x if self.rank_choices.fuses_latent_rope else self.copy_reordered("cat", x, x.shape)

    def _assemble_key_and_value(
        self, x: Tensor, shared_key: Tensor, key_output: Value, value_output: Value
    ) -> tuple[Tensor, Tensor]:
        """Assembles keys, with the rotary part shared by all heads, and values from one projection."""
        autograd_graph, row_count, input_shapes = self.graph, x.shape[0], (x.shape, shared_key.shape)
        key_and_value = self.new_tensor(row_count, key_output.width), self.new_tensor(row_count, value_output.width)

        def backward(
            saved_tensors: SavedTensors, gradients: list[OptionalGradient], needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            return [autograd_graph.new_tensor(shape, BFLOAT16) for shape in input_shapes]

        self.record_node("key_and_value", (x, shared_key), key_and_value, backward)
        return key_and_value

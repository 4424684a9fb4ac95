"""Low-rank adapters of a rank's frozen linear layers, as mcore-bridge and Megatron-Bridge run them.

Sources: modelscope/mcore-bridge at 02fb038, src/mcore_bridge/tuners/lora.py, `LoraParallelLinear`; Megatron-Bridge at
067f987, src/megatron/bridge/peft/utils.py, `ParallelLinearAdapter`, and lora_layers.py, `LoRALinear`; what frozen
weights save: TransformerEngine, module/layernorm_linear.py and linear.py, `backward_needs_input`.
"""

from __future__ import annotations

from functools import partial

from ....algebra import Number
from ....flow.program import Step
from ....simulator.strides import Shape
from ....simulator.tensor import NeedsInputGrad, Tensor
from ..parallel_adapters import ParallelAdapters
from .lowering import Gradients, SavedTensors
from .recompute import DiscardedOutputKernels


class AdapterKernels(DiscardedOutputKernels):
    """Linear layers with adapters, sharded by tensor parallelism like the layers. Fused layers share an adapter."""

    def adapters_of_step(self, operation: Step) -> ParallelAdapters | None:
        """Returns a linear layer's adapters, if any."""
        adapters = self.rank_choices.adapters
        return adapters if adapters is not None and operation.name in adapters.targets else None

    # --- layers with an adapter ---------------------------------------------------------------------------------------

    def column_linear(self, operation: Step, x: Tensor, output_width: Number) -> Tensor:
        """Runs a column-parallel layer with its adapter, which reads the norm's output if the norm is fused."""
        adapters = self.adapters_of_step(operation)
        if adapters is None:
            return super().column_linear(operation, x, output_width)
        self.norm_outputs = []
        layer_output = super().column_linear(operation, x, output_width)
        x = self.norm_outputs.pop() if self.norm_outputs else x
        self.norm_outputs = None
        lora_a, lora_b = self._adapter_weights(operation, adapters, "column", x.shape[1], output_width)
        if adapters.library == "mcore-bridge":
            low_rank_output = self.unsharded_linear(self._with_dropout(x, adapters), lora_a)
            del x
            lora_output = self.transformer_engine_column_linear(low_rank_output, lora_b, None, [], None)
        else:
            low_rank_output = self._gather_columns(self._megatron_core_linear(self._with_dropout(x, adapters), lora_a))
            del x
            lora_output = self._megatron_core_linear(low_rank_output, lora_b)
        del low_rank_output
        return self._add_scaled(layer_output, lora_output)

    def row_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs a row-parallel layer with its adapter."""
        adapters = self.adapters_of_step(operation)
        if adapters is None:
            return super().row_linear(operation, x)
        layer_output, bias = super().row_linear(operation, x), self.row_bias
        lora_a, lora_b = self._adapter_weights(operation, adapters, "row", x.shape[1], layer_output.shape[1])
        x = self._with_dropout(x, adapters)
        if adapters.library == "mcore-bridge":
            lora_output = self.unsharded_linear(self.transformer_engine_row_linear(x, lora_a), lora_b)
        else:
            lora_output = self._gather_columns(
                self._megatron_core_linear(self._megatron_core_linear(x, lora_a), lora_b)
            )
            if self.rank_choices.sequence_parallel:  # a view of this rank's rows
                received_rows = [self.local_rows(lora_output.shape[0])] * self.rank_choices.tp
                lora_output = self.aten.split(lora_output, received_rows, 0)[0]
        del x
        self.row_bias = bias
        return self._add_scaled(layer_output, lora_output)

    def undivided_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs a layer that every rank computes in full, with its adapter."""
        adapters, layer_output = self.adapters_of_step(operation), super().undivided_linear(operation, x)
        if adapters is None:
            return layer_output
        lora_a, lora_b = self._adapter_weights(operation, adapters, "matrix", x.shape[1], layer_output.shape[1])
        x = self._with_dropout(x, adapters)
        if adapters.library == "mcore-bridge":
            low_rank_x = self.unsharded_linear(x, lora_a)
            lora_output = self.unsharded_linear(low_rank_x, lora_b)
        else:
            low_rank_x = self._gather_columns(self._megatron_core_linear(x, lora_a))
            lora_output = self._gather_columns(self._megatron_core_linear(low_rank_x, lora_b))
        del x, low_rank_x
        return self._add_scaled(layer_output, lora_output)

    def grouped_linear(self, operation: Step, x: Tensor, output_width: Number) -> Tensor:
        """Runs the experts' linear layer: mcore-bridge has an adapter per expert, Megatron-Bridge one per rank."""
        adapters, layer_output = self.adapters_of_step(operation), super().grouped_linear(operation, x, output_width)
        if adapters is None:
            return layer_output
        x = self._with_dropout(x, adapters)
        was_in_expert, self.is_in_expert = self.is_in_expert, self.rank_choices.ep > 1
        if adapters.library == "mcore-bridge":
            adapter_weights = [
                self._adapter_weights(operation, adapters, "expert", x.shape[1], output_width, str(i))
                for i in range(self.local_expert_count)
            ]
            low_rank_x = self.grouped_product(x, [lora_a for lora_a, _ in adapter_weights])
            lora_output = self.grouped_product(low_rank_x, [lora_b for _, lora_b in adapter_weights])
        else:
            lora_a, lora_b = self._adapter_weights(operation, adapters, "expert", x.shape[1], output_width)
            low_rank_x = self._megatron_core_linear(x, lora_a)
            lora_output = self._megatron_core_linear(low_rank_x, lora_b)
        self.is_in_expert = was_in_expert
        del x, low_rank_x
        return self._add_scaled(layer_output, lora_output)

    # --- what they consist of -----------------------------------------------------------------------------------------

    def _adapter_weights(
        self,
        operation: Step,
        adapters: ParallelAdapters,
        linear_role: str,
        input_width: Number,
        output_width: Number,
        expert_index: str = "",
    ) -> tuple[Tensor, Tensor]:
        """Returns this rank's shard of an adapter's weights A and B. expert_index: the expert; empty for other layers.

        The mcore-bridge divides the weight whose side is divided in the layer, Megatron-Bridge also the other one.
        """
        tp = self.rank_choices.tp if adapters.library == "megatron-bridge" and linear_role != "expert" else 1
        lora_rank = adapters.rank // tp if linear_role in ("column", "matrix") else adapters.rank
        local_width = output_width // tp if linear_role in ("row", "matrix") else output_width
        shapes_by_name: dict[str, Shape] = {"lora_A": (lora_rank, input_width), "lora_B": (local_width, adapters.rank)}
        self.is_in_adapter = True
        lora_a, lora_b = (
            self.with_role(
                linear_role, partial(self.weight, f"{operation.name}.{weight_name}.weight{expert_index}", shape)
            )
            for weight_name, shape in shapes_by_name.items()
        )
        self.is_in_adapter = False
        return lora_a, lora_b

    def _with_dropout(self, x: Tensor, adapters: ParallelAdapters) -> Tensor:
        """Returns the input of a low-rank adapter after dropout; the dropout mask is saved."""
        return self.dropout(x) if adapters.dropout else x

    def _megatron_core_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Runs a Megatron-Core linear layer on rows that no rank divides, with all-reduces in place."""
        self.persistent.use_torch_workspace("forward")
        linear_output, input_shape = self.new_tensor(x.shape[0], weight.shape[0]), x.shape

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_torch_workspace("backward")
            return [self.new_tensor(*input_shape) if needs_input_grad[0] else None, self.weight_gradient(weight)]

        self.record_node("linear", (x, weight), [linear_output], backward, x)
        return linear_output

    def _gather_columns(self, x: Tensor) -> Tensor:
        """Returns the columns of all tensor-parallel ranks (mappings.py, `_gather_along_last_dim`)."""
        tp, input_shape = self.rank_choices.tp, x.shape
        if tp == 1:
            return x
        gathered_columns = self.new_tensor(input_shape[0] * tp, input_shape[1])
        gathered_output = self.new_tensor(input_shape[0], input_shape[1] * tp)
        del gathered_columns
        return self.node_with_new_gradients("gather", (x,), gathered_output)

    def _add_scaled(self, layer_output: Tensor, lora_output: Tensor) -> Tensor:
        """Adds the scaled output of an adapter to the layer's output."""
        return self.add(layer_output, self.aten.scale(lora_output))

"""The kernels of selective recomputation, which free layer outputs after the last read.

Sources: Megatron-LM, megatron/core/tensor_parallel/random.py, `CheckpointWithoutOutput`, and in core/transformer
transformer_layer.py (`layernorm`), moe/experts.py (`moe_act`) and multi_latent_attention.py (`mla_up_proj`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ....flow.program import AlternativeBranches, ModuleScope, ProgramItem, Step
from ....flow.value import Value
from ....simulator.autograd import AutogradGraph, backward, needs_autograd_node
from ....simulator.tensor import BFLOAT16, AutogradNode, NeedsInputGrad, OptionalGradient, Storage, Tensor, empty
from .lowering import Gradients, SavedTensors, UncountedMeter, detached_copy_of_argument
from .sparse_attention import SparseAttentionKernels

DiscardableFunction: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]

DOWN_PROJECTION_STEPS = ("q_a_proj", "kv_a_proj", "q_a_norm", "kv_a_norm")
"""Names of the steps of latent attention that run before the up-projections of latents."""


class DiscardedOutputs:
    """Outputs that are freed after the forward pass and recomputed from the saved arguments in the backward pass.

    storages: storages of the outputs until they are recomputed.
    input_storage_id: the storage of the value that the part read.
    recomputed_outputs: the recomputed outputs.
    argument_gradients: argument → its gradient.
    """

    def __init__(
        self,
        autograd_graph: AutogradGraph,
        discardable_function: DiscardableFunction,
        arguments: Sequence[Tensor],
        discarded_tensors: Sequence[Tensor],
        input_storage_id: int,
    ) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.discardable_function: DiscardableFunction = discardable_function
        self.input_storage_id: int = input_storage_id
        self.arguments: list[Tensor] = list(arguments)
        self.storages: list[Storage] = [discarded_tensor.storage for discarded_tensor in discarded_tensors]
        self.recomputed_outputs: list[Tensor] = []
        self.argument_gradients: dict[int, Tensor] = {}

    def recompute(self) -> None:
        """Recomputes the freed outputs with autograd, and puts the results into the outputs' storages."""
        autograd_graph, argument_gradients = self.graph, self.argument_gradients
        was_enabled, autograd_graph.is_grad_enabled = autograd_graph.is_grad_enabled, True
        outer_position = autograd_graph.meter.place
        self.recomputed_outputs = self.discardable_function(
            [detached_copy_of_argument(autograd_graph, argument_gradients, i, x) for i, x in enumerate(self.arguments)]
        )
        autograd_graph.is_grad_enabled, autograd_graph.meter.place = was_enabled, outer_position
        for discarded_storage, recomputed_tensor in zip(self.storages, self.recomputed_outputs, strict=True):
            discarded_storage.share(recomputed_tensor.storage)
        self.storages = []

    def backward(
        self,
        saved_tensors: SavedTensors,
        gradients: OptionalGradient | list[OptionalGradient],
        needs_input_grad: NeedsInputGrad,
    ) -> Gradients:
        """Runs the backward pass of the recomputed graph."""
        autograd_graph, argument_gradients = self.graph, self.argument_gradients
        was_enabled, autograd_graph.is_grad_enabled = autograd_graph.is_grad_enabled, True
        outer_position = autograd_graph.meter.place
        output_gradients = gradients if isinstance(gradients, list) else [gradients]
        node_output = empty(UncountedMeter(), (1,), BFLOAT16)
        node_output.node = AutogradNode(
            autograd_graph, "outputs", tuple(self.recomputed_outputs), lambda g, needs_input_grad: output_gradients
        )
        self.recomputed_outputs = []
        backward(autograd_graph, node_output, empty(UncountedMeter(), (1,), BFLOAT16))
        del node_output
        autograd_graph.is_grad_enabled, autograd_graph.meter.place = was_enabled, outer_position
        return [argument_gradients.get(i) for i in range(len(saved_tensors))]


class DiscardedOutputKernels(SparseAttentionKernels):
    """Recomputation of norms, expert activations, and latent projections."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.discarded_norms: dict[int, DiscardedOutputs] = {}
        self.discarded_activation: DiscardedOutputs | None = None

    def run_discardable(
        self, discardable_function: DiscardableFunction, arguments: Sequence[Tensor], input_storage_id: int = 0
    ) -> tuple[list[Tensor], DiscardedOutputs | None]:
        """Runs a function that saves only its arguments, and returns the outputs and `DiscardedOutputs`."""
        graph = self.graph
        if not needs_autograd_node(graph, arguments):
            return discardable_function(arguments), None
        with graph.no_grad():
            function_outputs = discardable_function(arguments)
        discarded_outputs = DiscardedOutputs(graph, discardable_function, arguments, function_outputs, input_storage_id)
        self.record_node("checkpoint", arguments, function_outputs, discarded_outputs.backward, *arguments)
        return function_outputs, discarded_outputs

    def discard_outputs(self, hook_tensor: Tensor, discarded_outputs: DiscardedOutputs) -> Tensor:
        """Frees a function's outputs, and recomputes them when the backward pass has the gradient of `hook_tensor`."""
        for discarded_storage in discarded_outputs.storages:
            discarded_storage.release()
        hook_output = Tensor(hook_tensor.shape, hook_tensor.dtype, hook_tensor.storage, hook_tensor.strides)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            discarded_outputs.recompute()
            return [output_gradient]

        self.record_node("recompute", (hook_tensor,), [hook_output], backward)
        return hook_output

    # --- shared experts ----------------------------------------------------------------------------------------------

    def _index_operations(self, module_scope: ModuleScope, module: ModuleScope) -> None:
        """Marks the input and output of shared experts for recomputation."""
        for module_item in module_scope.items if "shared_expert" in self.rank_choices.recomputed_module_kinds else ():
            if isinstance(module_item, ModuleScope) and module_item.node_fields.get("kind") == "shared_expert":
                module_steps = [operation for operation in module_item.items if isinstance(operation, Step)]
                module_item.module_argument = module_steps[0].input_values[0]
                module_item.output = module_steps[-1].output_values[0]
        super()._index_operations(module_scope, module)

    # --- norms of a layer --------------------------------------------------------------------------------------------

    def do_norm(self, operation: Step) -> None:
        """Runs a norm. Norms before a sublayer are recomputed, unless fused with a linear layer."""
        if not self.rank_choices.recomputes_norms or self.is_fused_norm(operation) or not self._is_sublayer_norm():
            super().do_norm(operation)
            return
        input_value, module_path = operation.input_values[0], self.module_path()
        x = self.tensor_read_by(operation, input_value)
        row_count = x.shape[0] * (input_value.width // self.element_count(operation.options["over"]))
        norm_outputs, discarded_outputs = self.run_discardable(
            lambda input_tensors: [self.norm(input_tensors[0], operation, module_path, row_count)],
            [x],
            input_storage_id=id(input_value.storage),
        )
        del x
        if discarded_outputs is not None:
            self.discarded_norms[id(self.frames[-2])] = discarded_outputs
        self.store_output(operation, norm_outputs[0])

    def _is_sublayer_norm(self) -> bool:
        """Whether the current norm is the norm before a sublayer (attention or feed-forward network)."""
        return self.frames[-1].scope.name.endswith("_pre_norm")

    def do_add(self, operation: Step) -> None:
        """Runs a residual addition, after which a recomputed norm's outputs are freed."""
        discarded_norm = self.discarded_norms.pop(id(self.frames[-1]), None)
        if discarded_norm is not None:
            sum_input = next(
                input_value
                for input_value in operation.input_values
                if id(input_value.storage) != discarded_norm.input_storage_id
            )
            self.store_without_reshape(sum_input, self.discard_outputs(self.tensor_of(sum_input), discarded_norm))
        super().do_add(operation)

    # --- activations of experts --------------------------------------------------------------------------------------

    def _recomputes_activation(self, operation: Step) -> bool:
        """Whether an operation is an expert activation that is recomputed."""
        return (
            self.rank_choices.recomputes_expert_activations
            and self.rank_choices.uses_grouped_gemm
            and self.has_expert_rows(operation)
        )

    def do_act(self, operation: Step) -> None:
        """Runs an activation, with optional recomputation in the backward pass."""
        if not self._recomputes_activation(operation) or self._is_gate(operation.output_values[0]):
            super().do_act(operation)
            return
        output_width = operation.output_values[0].width

        def run_activation(input_tensors: Sequence[Tensor]) -> list[Tensor]:
            x, probs = input_tensors
            if self.rank_choices.fuses_weighted_activation:
                return [self.weighted_glu(x, probs, output_width)]
            return [self.multiply_by_probabilities(self.activation(x, None), probs)]

        self._run_discardable_activation(
            operation, run_activation, self.tensor_read_by(operation, operation.input_values[0])
        )

    def do_mul(self, operation: Step) -> None:
        """Runs a gated activation, with optional recomputation in the backward pass."""
        if not self._recomputes_activation(operation):
            super().do_mul(operation)
            return
        gate = self.gate_and_up(operation)
        output_width = operation.output_values[0].width

        def run_gated_activation(input_tensors: Sequence[Tensor]) -> list[Tensor]:
            x, probs = input_tensors
            if self.rank_choices.fuses_bias_and_activation:
                return [self.weighted_glu(x, probs, output_width)]
            return [self.multiply_by_probabilities(self.gated_activation(x, None, output_width), probs)]

        self._run_discardable_activation(operation, run_gated_activation, gate)

    def _run_discardable_activation(
        self, operation: Step, discardable_function: DiscardableFunction, x: Tensor
    ) -> None:
        """Runs an activation whose output can be freed and recomputed."""
        activation_outputs, self.discarded_activation = self.run_discardable(discardable_function, [x, self.row_probs])
        self.store_output(operation, activation_outputs[0])

    def do_experts(self, operation: Step) -> None:
        """Runs an expert layer, and frees an input that the backward pass recomputes."""
        discarded_outputs = self.discarded_activation
        x = self.tensors_by_value.get(id(operation.input_values[0]))
        reads_discarded_output = (
            discarded_outputs is not None and x is not None and x.storage is discarded_outputs.storages[0]
        )
        del x
        super().do_experts(operation)
        if reads_discarded_output and discarded_outputs is not None:
            self.discarded_activation = None
            self.store_output(
                operation, self.discard_outputs(self.tensor_of(operation.output_values[0]), discarded_outputs)
            )

    # --- projections of latents --------------------------------------------------------------------------------------

    def run_items(self, items: Sequence[ProgramItem]) -> None:
        """Runs a module's operations, and frees and recomputes the up-projections of latents (`mla_up_proj`)."""
        if not (self.rank_choices.recomputes_up_projections and self.graph.is_grad_enabled):
            super().run_items(items)
            return
        alternative_items = [module_item for module_item in items if isinstance(module_item, AlternativeBranches)]
        if not alternative_items or all(item.name != "kv_a_proj" for item in items if isinstance(item, Step)):
            super().run_items(items)
            return
        branches_index = items.index(alternative_items[0])
        branch_items = self.choose_branch(alternative_items[0]).items
        attention_index = next(
            i for i, item in enumerate(branch_items) if isinstance(item, Step) and item.verb == "attention"
        )
        attention_step = branch_items[attention_index]
        assert isinstance(attention_step, Step)
        preceding_steps = [module_item for module_item in items[:branches_index] if isinstance(module_item, Step)]
        down_projections = [
            operation
            for operation in preceding_steps
            if operation.name in DOWN_PROJECTION_STEPS
            or (operation.verb == "split" and self._splits_latent(operation, preceding_steps))
        ]
        up_projections = [
            operation
            for operation in (*preceding_steps, *branch_items[:attention_index])
            if isinstance(operation, Step) and operation not in down_projections
        ]
        new_storage_ids: set[int] = set()
        values_read: dict[int, Value] = {}
        for operation in up_projections:
            values_read |= {
                id(input_value): input_value
                for input_value in operation.input_values
                if id(input_value.storage) not in new_storage_ids
            }
            new_storage_ids |= {id(output_value.storage) for output_value in operation.output_values}
        tensors_by_value_id = {
            value_id: self.tensors_by_value[value_id] for value_id in values_read if value_id in self.tensors_by_value
        }
        super().run_items(down_projections)
        inputs_by_value = [
            (input_value, tensors_by_value_id.get(value_id) or self.tensor_of(input_value))
            for value_id, input_value in values_read.items()
        ]
        tensors_by_value_id.clear()
        input_values, tensors = (
            [input_value for input_value, _ in inputs_by_value],
            [tensor for _, tensor in inputs_by_value],
        )
        del inputs_by_value
        outer_frames = self._copy_frames()
        attention_inputs = attention_step.input_values[:3]

        def run_up_projections(input_tensors: Sequence[Tensor]) -> list[Tensor]:
            """Runs the up-projections on argument tensors, without access to the caller's other tensors."""
            caller_state = self.tensors_by_value, self.view_ids, self.frames, self.pass_memo
            tensors_by_value = {id(input_value): x for input_value, x in zip(input_values, input_tensors, strict=True)}
            self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = (
                tensors_by_value,
                {},
                list(outer_frames),
                {},
            )
            try:
                for operation in up_projections:
                    self.run_step(operation)
                return [self.tensor_of(input_value) for input_value in attention_inputs]
            finally:
                self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = caller_state

        projection_outputs, discarded_outputs = self.run_discardable(run_up_projections, tensors)
        del tensors
        for input_value in input_values:
            self.free_value(input_value.storage)
        for input_value, output_tensor in zip(attention_inputs, projection_outputs, strict=True):
            self.store_without_reshape(input_value, output_tensor)
        del projection_outputs
        self.run_step(attention_step)
        if discarded_outputs is not None:
            attention_output = attention_step.output_values[0]
            self.store_without_reshape(
                attention_output, self.discard_outputs(self.tensor_of(attention_output), discarded_outputs)
            )
        super().run_items([*branch_items[attention_index + 1 :], *items[branches_index + 1 :]])

    def _splits_latent(self, operation: Step, module_operations: list[Step]) -> bool:
        """Whether an operation splits the output of the latent down-projection."""
        down_projection = next(linear_step for linear_step in module_operations if linear_step.name == "kv_a_proj")
        return operation.input_values[0] is down_projection.output_values[0]

"""The kernels of mixtures of experts on a rank: router, token dispatchers, and the rank's expert networks.

The router is taken to spread tokens evenly: every expert gets as many rows, or its capacity.

Sources: Megatron-LM, megatron/core/transformer/moe/ (moe_layer.py, router.py, moe_utils.py, token_dispatcher.py,
experts.py); TransformerEngine, transformer_engine/pytorch/module/grouped_linear.py and permutation.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....algebra import Number
from ....flow.program import ModuleScope, ProgramItem, Step
from ....ops import Weight as VectorWeight
from ....simulator.autograd import record
from ....simulator.tensor import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Dtype,
    NeedsInputGrad,
    OptionalGradient,
    Tensor,
    empty,
)
from .head import HeadKernels
from .lowering import Gradients, SavedTensors, UncountedMeter


class ExpertKernels(HeadKernels):
    """Kernels of mixtures of experts. `local_tensors`: the local variables of `MoELayer.forward`."""

    def _index_operations(self, module_scope: ModuleScope, module: ModuleScope) -> None:
        """Moves the shared experts' operations before the router's; before 2025-10-11, after the dispatch."""
        shared_experts = _shared_expert_operations(module_scope)
        if shared_experts:
            remaining_items = [module_item for module_item in module_scope.items if module_item not in shared_experts]
            router_position = 0
            if not self.rank_choices.runs_shared_experts_first:
                router_position = 1 + next(
                    item_index
                    for item_index, item in enumerate(remaining_items)
                    if isinstance(item, Step) and item.verb == "dispatch"
                )
            module_scope.items = [
                *remaining_items[:router_position],
                *shared_experts,
                *remaining_items[router_position:],
            ]
        super()._index_operations(module_scope, module)

    # --- the router --------------------------------------------------------------------------------------------------

    @property
    def router_dtype(self) -> Dtype:
        """The number format in which the router computes."""
        return FLOAT32 if self.rank_choices.runs_router_in_fp32 else BFLOAT16

    def undivided_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs the router, the gate of shared experts, or another unsharded linear layer."""
        if operation.node_fields.get("kind") == "shared_expert":
            return self.shared_expert_gate(operation, x)
        if operation.node_fields.get("kind") == "router":
            return self.router_linear(operation, x)
        return super().undivided_linear(operation, x)

    def shared_expert_gate(self, operation: Step, x: Tensor) -> Tensor:
        """Runs the gate of shared experts (SharedExpertMLP.forward), with one logit per token."""
        first_parameter_index, (row_count, input_width) = len(self.ordered_parameters), x.shape
        weight, _ = self.linear_weights(operation, operation.output_values[0].width, "")
        self.deferred_parameters += self.ordered_parameters[first_parameter_index:]
        del self.ordered_parameters[first_parameter_index:]
        self.persistent.use_torch_workspace("forward")
        gate_logits = self.new_tensor(row_count, weight.shape[0])

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_torch_workspace("backward")
            return [
                self.new_tensor(row_count, input_width),
                self.graph.new_tensor(weight.shape, BFLOAT16) if needs_grad else None,
            ]

        needs_grad = weight.needs_grad
        self.record_node("linear", (x, weight), [gate_logits], backward, *([x] if needs_grad else []))
        return gate_logits

    def router_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs RouterGatingLinearFunction, always as a matrix product of Transformer Engine."""
        weight, bias = self.linear_weights(operation, operation.output_values[0].width, "router")
        dtype, (row_count, row_width) = self.router_dtype, x.shape
        self.persistent.use_engine_workspace()
        router_logits = self.graph.new_tensor((row_count, weight.shape[0]), dtype)
        is_fp32 = dtype is FLOAT32

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            autograd_graph = self.graph
            weight_copy = autograd_graph.new_tensor(weight.shape, dtype) if is_fp32 else None
            input_gradient = autograd_graph.new_tensor((row_count, row_width), dtype)
            del weight_copy
            input_copy = autograd_graph.new_tensor((row_count, row_width), dtype) if is_fp32 else None
            weight_gradient = autograd_graph.new_tensor(weight.shape, dtype)
            del input_copy
            if is_fp32:
                input_gradient = self.aten.to(input_gradient, BFLOAT16)
                weight_gradient = self.aten.to(weight_gradient, BFLOAT16)
            return [
                input_gradient,
                weight_gradient,
                *([] if bias is None else [autograd_graph.new_tensor(bias.shape, BFLOAT16)]),
            ]

        self.record_node("router", (x, weight, *([] if bias is None else [bias])), [router_logits], backward, x)
        return router_logits

    def do_vector(self, operation: Step) -> None:
        """Creates a small vector of parameters: the experts' score bias, or xIELU's learned numbers.

        xIELU: swiss-ai/Megatron-LM, megatron/core/activations.py, one compiled kernel that saves its input.
        """
        assert isinstance(operation.op, VectorWeight)
        vector = operation.output_values[0]
        readers = self.readers_by_storage.get(id(vector.storage), ())
        if operation.op.is_frozen:  # a buffer there, whatever the class of transformers has
            self.do_buffer(operation)
        elif readers and all(consumer_step.options.get("kind") == "xielu" for consumer_step, _ in readers):
            self.store_without_reshape(vector, self.weight(operation.name, (vector.width,), self.module_path()))
        else:
            raise self.unknown_verb_error(operation, operation.verb)

    def do_buffer(self, operation: Step) -> None:
        """Creates the bias of the experts' scores, whose few bytes are not counted."""
        self.store_output(operation, empty(UncountedMeter(), self.shape(operation.output_values[0]), FLOAT32))

    def do_route(self, operation: Step) -> None:
        """Runs topk_routing_with_score_function: probabilities and a routing mask per token and expert."""
        logits = self.tensor_read_by(operation, operation.input_values[0])
        top_k = operation.options["top_k"]
        autograd_graph = self.graph
        row_count, expert_count = logits.shape
        dtype = logits.dtype
        expert_indices = autograd_graph.new_tensor((row_count, top_k), INT64)
        saved_scores = [autograd_graph.new_tensor((row_count, top_k), FLOAT32)]
        if operation.options["scoring"] != "softmax of chosen":
            saved_scores.append(autograd_graph.new_tensor((row_count, expert_count), FLOAT32))
        position_map = autograd_graph.new_tensor((row_count, expert_count), INT32)
        routing_mask = autograd_graph.new_tensor((row_count, expert_count), BOOL)
        del position_map
        router_probs = autograd_graph.new_tensor((row_count, expert_count), dtype)
        tensors_to_save = [expert_indices, *saved_scores]
        if self.rank_choices.capacity_factor is not None:
            tensors_to_save.append(autograd_graph.new_tensor((row_count, expert_count), BOOL))
            router_probs = autograd_graph.new_tensor((row_count, expert_count), dtype)
        if self.rank_choices.has_auxiliary_loss:
            tensors_to_save.append(autograd_graph.new_tensor((row_count, expert_count), FLOAT32))
        if self.rank_choices.has_z_loss:  # logsumexp
            tensors_to_save += [logits, autograd_graph.new_tensor((row_count, 1), dtype)]
        has_aux_loss = self.rank_choices.has_auxiliary_loss

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            aux_gradient = autograd_graph.new_tensor((row_count, expert_count), FLOAT32) if has_aux_loss else None
            logits_gradient = autograd_graph.new_tensor((row_count, expert_count), dtype)
            del aux_gradient
            return [logits_gradient]

        self.record_node("routing", (logits,), [router_probs], backward, routing_mask, *tensors_to_save)
        local_tensors = self.frames[-1].local_tensors
        local_tensors["probs"], local_tensors["routing_map"] = router_probs, routing_mask

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def do_dispatch(self, operation: Step) -> None:
        """Sends tokens to their experts with the token dispatcher of the training run."""
        local_tensors, x = self.frames[-1].local_tensors, self.tensor_read_by(operation, operation.input_values[0])
        self.top_k: int = operation.options["top_k"]
        self.expert_count: int = operation.options["experts"].size
        dispatch_functions = {
            "allgather": self._all_gather_tokens,
            "alltoall": self._send_rows_by_all_to_all,
            "hybridep": self._send_rows_by_hybridep,
        }
        expert_rows = dispatch_functions[self.rank_choices.dispatcher](x, local_tensors)
        del x
        self.store_output(operation, expert_rows)

    def do_combine(self, operation: Step) -> None:
        """Returns expert outputs to their tokens with the token dispatcher of the training run."""
        local_tensors, y = self.frames[-1].local_tensors, self.tensor_read_by(operation, operation.input_values[0])
        expert_outputs = [y]
        del y
        combine_functions = {
            "allgather": self._reduce_scatter_tokens,
            "alltoall": self._return_rows_by_all_to_all,
            "hybridep": self._return_rows_by_hybridep,
        }
        combined_output = combine_functions[self.rank_choices.dispatcher](expert_outputs, local_tensors)
        if not self.rank_choices.combines_in_one_function:
            local_tensors["output"] = combined_output
        self.store_output(operation, combined_output)

    @property
    def local_expert_count(self) -> int:
        """The number of experts on the current rank."""
        expert_count: int = self.expert_count // self.rank_choices.ep
        return expert_count

    def received_rows(self, row_count: Number) -> Number:
        """Returns the number of token rows that this rank's experts receive. row_count: tokens of each rank."""
        return self.sent_rows(row_count) * self.rank_choices.etp

    def sent_rows(self, token_count: Number) -> Number:
        """Returns the number of token rows that a rank sends to experts. token_count: the rank's tokens."""
        if self.rank_choices.capacity_factor is None:
            return token_count * self.top_k
        return self.expert_count * math.ceil(
            token_count * self.top_k / self.expert_count * self.rank_choices.capacity_factor
        )

    def move_rows(self, operation_name: str, x: Tensor, row_count: Number) -> Tensor:
        """Copies token rows to other ranks or into another order, and the gradient back in the backward pass."""
        return self.copy_reordered(operation_name, x, (row_count, *x.shape[1:]))

    def keep_in_dispatcher(self, *tensors: Tensor) -> None:
        """Keeps tensors alive in the token dispatcher until the layer's next forward pass.

        The graph of its probabilities refers to the layer's detached input.
        """
        self.persistent.tensors_by_module[(id(self), "layer", *self.module_path())] = self.detached_input
        self.persistent.tensors_by_module[(id(self), *self.module_path())] = [tensor.detached() for tensor in tensors]

    def _all_gather_tokens(self, x: Tensor, local_tensors: dict[str, Tensor]) -> Tensor:
        """Runs MoEAllGatherTokenDispatcher: gathers all ranks' tokens and selects the tokens of local experts."""
        kernel_choices, autograd_graph, (row_count, row_width) = self.rank_choices, self.graph, x.shape
        group_size = kernel_choices.ep * kernel_choices.etp
        probs = local_tensors["probs"]
        routing_mask = local_tensors["routing_map"]
        gathered_row_count, local_expert_count, dtype = (
            row_count * group_size,
            self.local_expert_count,
            local_tensors["probs"].dtype,
        )
        expert_row_count = self.received_rows(row_count)
        if group_size > 1:
            routing_mask = autograd_graph.new_tensor((gathered_row_count, self.expert_count), BOOL)
            probs = self.move_rows("gather", probs, gathered_row_count)
            self.persistent.grow_gather_buffer(2 * gathered_row_count * row_width)
            x = self.node_with_new_gradients(
                "gather", (x,), Tensor((gathered_row_count, row_width), x.dtype, self.empty_storage)
            )
        local_routing_map = autograd_graph.new_tensor((gathered_row_count, local_expert_count), BOOL)
        local_probs = self.node_with_new_gradients(
            "slice", (probs,), autograd_graph.new_tensor((gathered_row_count, local_expert_count), dtype)
        )
        del probs, routing_mask
        expert_rows, row_map = self.permute(x, expert_row_count, gathered_row_count, local_expert_count, None)
        transposed_probs = autograd_graph.new_tensor((local_expert_count, gathered_row_count), dtype)
        row_probs = autograd_graph.new_tensor((expert_row_count, 1), dtype)
        self.node_with_new_gradients("masked_select", (local_probs,), row_probs, transposed_probs)
        del transposed_probs, local_probs
        self.keep_in_dispatcher(row_map, local_routing_map, row_probs)
        local_tensors["routing_map"] = local_routing_map
        local_tensors["index"], local_tensors["local_probs"], local_tensors["hidden_states"] = row_map, row_probs, x
        self.row_probs: Tensor = row_probs
        return expert_rows

    def permute(
        self, x: Tensor, row_count: Number, token_count: Number, expert_count: Number, probs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Sorts token rows by expert, and returns the sorted rows and the position map."""
        autograd_graph, row_width = self.graph, x.shape[1]
        if self.rank_choices.fuses_permutation:
            row_map = autograd_graph.new_tensor((token_count, 2 * expert_count + 1), INT32)
        else:
            transposed_map = autograd_graph.new_tensor((expert_count, token_count), BOOL)
            row_order = autograd_graph.new_tensor((expert_count * token_count,), INT64)
            row_map = autograd_graph.new_tensor((row_count,), INT64)
            del transposed_map, row_order
        sorted_rows = autograd_graph.new_tensor((row_count, row_width), x.dtype)
        if probs is None:
            return self.node_with_new_gradients("permute", (x,), sorted_rows, row_map), row_map
        input_shape = x.shape
        row_probs, probs_shape, dtype = autograd_graph.new_tensor((row_count, 1), probs.dtype), probs.shape, probs.dtype
        self.record_node(
            "permute",
            (x, probs),
            [sorted_rows, row_probs],
            lambda saved_tensors, gradients, needs_input_grad: [
                autograd_graph.new_tensor(input_shape, BFLOAT16),
                autograd_graph.new_tensor(probs_shape, dtype),
            ],
            row_map,
        )
        self.row_probs = row_probs
        return sorted_rows, row_map

    def unpermute(self, expert_outputs: list[Tensor], token_count: Number, row_index: Tensor) -> Tensor:
        """Sums the expert outputs of each token."""
        autograd_graph, y = self.graph, expert_outputs.pop()
        outputs_shape, dtype = y.shape, y.dtype
        token_sums = autograd_graph.new_tensor((token_count, outputs_shape[1]), dtype)
        if not self.rank_choices.fuses_permutation and self.rank_choices.is_deterministic:
            # made twice (moe_utils.py, `unpermute`)
            token_sums = autograd_graph.new_tensor((token_count, outputs_shape[1]), dtype)
        saved_for_backward = (
            [row_index, y]
            if self.rank_choices.is_deterministic and not self.rank_choices.fuses_permutation
            else [row_index]
        )
        return self.node_with_new_gradients("unpermute", (y,), token_sums, *saved_for_backward)

    def _reduce_scatter_tokens(self, expert_outputs: list[Tensor], local_tensors: dict[str, Tensor]) -> Tensor:
        """Sums expert outputs per token and reduce-scatters the sums to the tokens' ranks."""
        kernel_choices, row_width = self.rank_choices, expert_outputs[0].shape[1]
        x = local_tensors["hidden_states"]
        group_size, gathered_row_count = kernel_choices.ep * kernel_choices.etp, x.shape[0]
        del x
        summed_outputs = self.unpermute(expert_outputs, gathered_row_count, local_tensors["index"])
        if group_size == 1:
            return summed_outputs
        combined_rows = self.aten.to(summed_outputs, self.router_dtype)
        row_count = gathered_row_count // group_size
        del row_width
        reduced_rows = self.move_rows("reduce_scatter", combined_rows, row_count)
        return self.aten.to(reduced_rows, BFLOAT16)

    def _send_rows_by_all_to_all(self, x: Tensor, local_tensors: dict[str, Tensor]) -> Tensor:
        """Runs MoEAlltoAllTokenDispatcher: sorts rows by expert, sends them to the experts' ranks, sorts them again."""
        kernel_choices, (token_count, _) = self.rank_choices, x.shape
        probs, routing_mask = local_tensors["probs"], local_tensors["routing_map"]
        row_count = self.sent_rows(token_count)
        expert_rows, row_map = self.permute(x, row_count, token_count, self.expert_count, probs)
        self.keep_in_dispatcher(row_map, routing_mask, probs)
        local_tensors["index"] = row_map
        local_tensors["hidden_states"] = expert_rows
        if kernel_choices.ep > 1:
            expert_rows = self.move_rows("all_to_all", expert_rows, row_count)
            self.row_probs = self.move_rows("all_to_all", self.row_probs, row_count)
            local_tensors["dispatched_input"] = expert_rows
        if kernel_choices.etp > 1:
            row_count = row_count * kernel_choices.etp
            expert_rows = self.move_rows("gather", expert_rows, row_count)
            self.row_probs = self.move_rows("gather", self.row_probs, row_count)
        if self.local_expert_count > 1:
            expert_rows = self.move_rows("sort", expert_rows, row_count)
            self.row_probs = self.move_rows("sort", self.row_probs, row_count)
        self.dispatched_token_count = token_count
        return expert_rows

    def _send_rows_by_hybridep(self, x: Tensor, local_tensors: dict[str, Tensor]) -> Tensor:
        """Runs MoEFlexTokenDispatcher with HybridEP: one kernel sends rows and sorts them by expert.

        Its communication buffers lie outside of torch's allocator; both directions keep its handle.

        Source: DeepEP, hybrid-ep at 94a9f8f, csrc/hybrid_ep/executor/executor.cu, `metadata_preprocess_core`, and
        hybrid_ep.cu, `dispatch_with_permute`.
        """
        kernel_choices, autograd_graph, (token_count, row_width) = self.rank_choices, self.graph, x.shape
        rank_count, local_expert_count, probs = (
            kernel_choices.ep * kernel_choices.etp,
            self.local_expert_count,
            local_tensors["probs"],
        )
        if probs.dtype is not FLOAT32:
            probs = self.aten.to(probs, FLOAT32)
        row_count, column_count = self.received_rows(token_count), self.expert_count * kernel_choices.etp
        if kernel_choices.etp > 1:  # the map and the probabilities, for each rank that divides an expert
            self.keep_in_dispatcher(autograd_graph.new_tensor((token_count, column_count), BOOL))
            probs = self.copy_reordered("expand", probs, (token_count, column_count))
        dispatch_handle = [
            autograd_graph.new_tensor((token_count, rank_count), INT32),
            autograd_graph.new_tensor((token_count, 1), BOOL),
            autograd_graph.new_tensor((token_count * rank_count, local_expert_count), BOOL),
            autograd_graph.new_tensor((token_count * rank_count, local_expert_count), INT32),
        ]
        expert_rows = autograd_graph.new_tensor((row_count, row_width), x.dtype)
        row_probs = autograd_graph.new_tensor((row_count, 1), FLOAT32)
        x_shape = x.shape

        def backward(
            saved_tensors: SavedTensors, gradients: list[OptionalGradient], needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            return [
                autograd_graph.new_tensor(x_shape, BFLOAT16),
                autograd_graph.new_tensor((token_count, column_count), FLOAT32),
            ]

        self.record_node("dispatch", (x, probs), [expert_rows, row_probs], backward, *dispatch_handle)
        self.keep_in_dispatcher(local_tensors["routing_map"], probs, row_probs)
        layer_indices = [module_call.layer_index for module_call in self.frames]
        self.persistent.tensors_by_module[(id(self), "handle", *self.module_path(), *layer_indices)] = (
            dispatch_handle  # the graph of its probabilities
        )
        local_tensors["hidden_states"], local_tensors["dispatched_input"] = x, expert_rows
        self.row_probs = row_probs
        self.dispatched_token_count = token_count
        self.dispatch_handle: list[Tensor] = dispatch_handle
        return expert_rows

    def _return_rows_by_hybridep(self, expert_outputs: list[Tensor], local_tensors: dict[str, Tensor]) -> Tensor:
        """Returns expert outputs to their tokens with HybridEP's kernel."""
        autograd_graph, y, dispatch_handle = self.graph, expert_outputs.pop(), self.dispatch_handle
        self.dispatch_handle = []
        output_shape, dtype = y.shape, y.dtype
        local_tensors["output"] = y
        combined_output = autograd_graph.new_tensor((self.dispatched_token_count, output_shape[1]), dtype)
        return self.node_with_new_gradients("combine", (y,), combined_output, *dispatch_handle)

    def _return_rows_by_all_to_all(self, expert_outputs: list[Tensor], local_tensors: dict[str, Tensor]) -> Tensor:
        """Returns expert outputs to their tokens by all-to-all."""
        kernel_choices, row_count = self.rank_choices, expert_outputs[0].shape[0]
        if self.local_expert_count > 1:
            expert_outputs.append(self.move_rows("unsort", expert_outputs[0], row_count))
            expert_outputs.pop(0)
        if kernel_choices.etp > 1:
            row_count = row_count // kernel_choices.etp
            unreduced_rows = self.aten.to(expert_outputs.pop(), local_tensors["probs"].dtype)
            expert_outputs.append(self.aten.to(self.move_rows("reduce_scatter", unreduced_rows, row_count), BFLOAT16))
            del unreduced_rows
        local_tensors["output"] = expert_outputs[0]
        if kernel_choices.ep > 1:
            expert_outputs.append(self.move_rows("all_to_all", expert_outputs.pop(), row_count))
            # otherwise the caller's variable still names what came from the experts
            if not kernel_choices.combines_in_one_function:
                local_tensors["output"] = expert_outputs[0]
        return self.unpermute(expert_outputs, self.dispatched_token_count, local_tensors["index"])

    # --- experts -----------------------------------------------------------------------------------------------------

    def do_experts(self, operation: Step) -> None:
        """Runs one grouped linear layer of the experts."""
        output_value = operation.output_values[0]
        if id(operation) in self.pending_outputs:
            self.store_without_reshape(output_value, self.pending_outputs.pop(id(operation)))
            return
        if self.rank_choices.uses_grouped_gemm:
            fused_operations = self.fused_expert_steps(operation)
            expert_output = self.grouped_linear(
                operation,
                self.tensor_read_by(operation, operation.input_values[0]),
                sum(expert_step.output_values[0].width for expert_step in fused_operations),
            )
            for expert_step in fused_operations:
                if expert_step is operation:
                    self.store_without_reshape(output_value, expert_output)
                else:
                    self.pending_outputs[id(expert_step)] = expert_output
            return
        raise self.unsupported("no kernels for an expert's layer outside of experts", operation.name)

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs experts one after another (SequentialMLP); None for grouped products."""
        expert_steps = [item for item in module_scope.items if isinstance(item, Step) and item.verb == "experts"]
        if self.rank_choices.uses_grouped_gemm or not expert_steps:
            return super().module_kernel(module_scope)
        return lambda: self._run_sequential_experts(module_scope, expert_steps)

    def _run_sequential_experts(self, module_scope: ModuleScope, layer_operations: list[Step]) -> None:
        """Runs the network of each expert in turn, and concatenates the outputs."""
        autograd_graph = self.graph
        input_layers, output_layer = layer_operations[:-1], layer_operations[-1]
        has_gate = any(isinstance(scope_item, Step) and scope_item.verb == "mul" for scope_item in module_scope.items)
        expert_count, inner_width = self.local_expert_count, sum(layer.output_values[0].width for layer in input_layers)
        hidden_width, output_width = output_layer.input_values[0].width, output_layer.output_values[0].width
        x, probs = self.tensor_of(input_layers[0].input_values[0]), self.row_probs
        row_count = x.shape[0]
        rows_per_expert = row_count // expert_count
        expert_inputs = [x] if expert_count == 1 else self.aten.split(x, [rows_per_expert] * expert_count, 0)
        row_probs = [probs] if expert_count == 1 else self.aten.split(probs, [rows_per_expert] * expert_count, 0)
        input_width = x.shape[1]
        self.free_value(input_layers[0].input_values[0].storage)
        del x, probs
        expert_outputs: list[Tensor] = []
        for i, (expert_input, expert_probs) in enumerate(zip(expert_inputs, row_probs, strict=True)):
            expert_output = self.expert_linear(input_layers[0], expert_input, i, input_width, inner_width, "column")
            if has_gate:
                if self.rank_choices.fuses_bias_and_activation:
                    activation = self.weighted_glu(expert_output, expert_probs, hidden_width)
                else:
                    activation = self.multiply_by_probabilities(
                        self.gated_activation(expert_output, None, hidden_width), expert_probs
                    )
            else:
                activation = self.multiply_by_probabilities(self.activation(expert_output, None), expert_probs)
            del expert_output
            expert_outputs.append(self.expert_linear(output_layer, activation, i, hidden_width, output_width, "row"))
            del activation
        combined_output = expert_outputs[0]
        if expert_count > 1:
            output_shapes = [tensor.shape for tensor in expert_outputs]
            combined_output = record(
                autograd_graph,
                "cat",
                expert_outputs,
                autograd_graph.new_tensor((row_count, output_width), BFLOAT16),
                lambda g, _: [Tensor(tensor_shape, g.dtype, g.storage, g.strides) for tensor_shape in output_shapes],
            )
        del expert_outputs
        self.store_without_reshape(output_layer.output_values[0], combined_output)

    def expert_linear(
        self, operation: Step, x: Tensor, expert_index: int, input_width: Number, output_width: Number, weight_role: str
    ) -> Tensor:
        """Runs the linear layer of a single expert."""
        was_in_expert, self.is_in_expert = self.is_in_expert, self.rank_choices.ep > 1
        expert_path = (*self.module_path(), expert_index)
        weight = self.with_role(
            weight_role, lambda: self.weight(f"{operation.name}.weight", (output_width, input_width), expert_path)
        )
        bias = (
            self.with_role(weight_role, lambda: self.weight(f"{operation.name}.bias", (output_width,), expert_path))
            if operation.options["bias"]
            else None
        )
        self.is_in_expert = was_in_expert
        uses_transformer_engine, row_count = self.rank_choices.uses_transformer_engine, x.shape[0]
        self.use_workspace(uses_transformer_engine, "forward")
        expert_output = self.new_tensor(row_count, output_width)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.use_workspace(uses_transformer_engine, "backward")
            input_gradient = self.new_tensor(row_count, input_width)
            weight_gradient = self.weight_gradient(weight)
            if uses_transformer_engine:
                saved_tensors[0] = None
            return [input_gradient, weight_gradient]

        self.record_node("linear", (x, weight), [expert_output], backward, x)
        return expert_output if bias is None else self.with_bias(expert_output, bias)

    def fused_expert_steps(self, operation: Step) -> list[Step]:
        """Returns the experts' linear layers with one common input, which run as a single grouped product."""
        output_readers = self.readers_by_storage[id(operation.input_values[0].storage)]
        return [
            consumer_step
            for consumer_step, module in output_readers
            if module is self.module_of_step[id(operation)] and consumer_step.verb == "experts"
        ]

    def expert_weights(
        self, operation: Step, input_width: Number, output_width: Number, weight_role: str
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns this rank's weights and biases of one linear layer of all its experts."""
        was_in_expert, self.is_in_expert = self.is_in_expert, self.rank_choices.ep > 1
        previous_role, self.role = self.role, weight_role
        expert_weights = [
            self.weight(f"{operation.name}.weight{i}", (output_width, input_width))
            for i in range(self.local_expert_count)
        ]
        biases: list[Tensor] = []
        if operation.options["bias"]:
            biases = [self.weight(f"{operation.name}.bias{i}", (output_width,)) for i in range(self.local_expert_count)]
        self.is_in_expert, self.role = was_in_expert, previous_role
        return expert_weights, biases

    def grouped_linear(self, operation: Step, x: Tensor, output_width: Number) -> Tensor:
        """Runs TEGroupedLinear: each expert's rows times that expert's weight."""
        return self.grouped_product(x, *self.expert_weights(operation, x.shape[1], output_width, "expert"))

    def grouped_product(self, x: Tensor, weights: list[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
        """Runs a grouped product, which saves its input for the gradients of trained weights."""
        (row_count, input_width), trains_weights = x.shape, weights[0].needs_grad
        self.persistent.use_grouped_workspaces()
        product_output = self.new_tensor(row_count, weights[0].shape[0])

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_grouped_workspaces()
            bias_gradients = [self.graph.new_tensor(parameter.shape, output_gradient.dtype) for parameter in biases]
            input_gradient = self.new_tensor(row_count, input_width)
            weight_gradients = [self.weight_gradient(parameter) for parameter in weights]
            if trains_weights:
                saved_tensors[0] = None  # clear_tensor_data(*inputmats)
            return [input_gradient, *weight_gradients, *bias_gradients]

        self.record_node(
            "grouped_linear", (x, *weights, *biases), [product_output], backward, *([x] if trains_weights else [])
        )
        return product_output

    def do_act(self, operation: Step) -> None:
        """Runs an activation, which on expert rows also multiplies by the router probabilities."""
        if not self.has_expert_rows(operation) or self._is_gate(operation.output_values[0]):
            super().do_act(operation)
            return
        x = self.tensor_read_by(operation, operation.input_values[0])
        if self.rank_choices.fuses_weighted_activation:
            self.store_output(operation, self.weighted_glu(x, self.row_probs, operation.output_values[0].width))
            return
        activation_output = self.node_with_new_gradients("activation", (x,), self.empty_like(x), x)
        del x
        self.store_output(operation, self.multiply_by_probabilities(activation_output, self.row_probs))

    def do_mul(self, operation: Step) -> None:
        """Multiplies by a gate, and on expert rows also by the router probabilities."""
        if operation.input_values[0].width == 1:  # a number for each token
            logits, y = (self.tensor_read_by(operation, input_value) for input_value in operation.input_values)
            self.store_output(operation, self.aten.mul(y, self.aten.elementwise_function("sigmoid", logits)))
            return
        if not self.has_expert_rows(operation):
            super().do_mul(operation)
            return
        gate = self.gate_and_up(operation)
        output_width = operation.output_values[0].width
        if not self.rank_choices.fuses_bias_and_activation:
            activation_output = self.gated_activation(gate, None, output_width)
            del gate
            self.store_output(operation, self.multiply_by_probabilities(activation_output, self.row_probs))
            return
        self.store_output(operation, self.weighted_glu(gate, self.row_probs, output_width))

    def weighted_glu(self, x: Tensor, probs: Tensor, output_width: Number) -> Tensor:
        """Computes act(gate) · up · probability in one kernel, or act(x) · probability without a gate."""
        autograd_graph, shape = self.graph, x.shape
        weighted_output = autograd_graph.new_tensor((shape[0], output_width), x.dtype)
        probs_spec = (probs.shape, probs.dtype)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            return [autograd_graph.new_tensor(shape, output_gradient.dtype), autograd_graph.new_tensor(*probs_spec)]

        self.record_node("weighted_glu", (x, probs), [weighted_output], backward, x, probs)
        return weighted_output

    def has_expert_rows(self, operation: Step) -> bool:
        """Whether an operation computes on token rows that were sent to experts."""
        return any(axis.name == "expert_ffn" for axis in operation.input_values[0].axes)

    def multiply_by_probabilities(self, x: Tensor, probs: Tensor) -> Tensor:
        """Multiplies expert rows by routing probabilities, in the probabilities' number format."""
        autograd_graph, input_shape = self.graph, x.shape
        dtype, probs_shape = probs.dtype, probs.shape
        scaled_x = autograd_graph.new_tensor(input_shape, dtype)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            x_gradient = autograd_graph.new_tensor(input_shape, output_gradient.dtype)
            probs_product = autograd_graph.new_tensor(input_shape, output_gradient.dtype)
            probs_gradient = autograd_graph.new_tensor(probs_shape, dtype)
            del probs_product
            return [x_gradient, probs_gradient]

        self.record_node("mul", (x, probs), [scaled_x], backward, x, probs)
        return self.aten.to(scaled_x, BFLOAT16)


def _shared_expert_operations(module_scope: ModuleScope) -> list[ProgramItem]:
    """Returns the operations of a module's shared experts, including the output gate."""
    scope_items = module_scope.items
    scope_positions = [
        i
        for i, scope_item in enumerate(scope_items)
        if isinstance(scope_item, ModuleScope) and scope_item.node_fields.get("kind") == "shared_expert"
    ]
    if not scope_positions:
        return []
    end_position = scope_positions[-1] + 1
    gate_positions = [
        i
        for i, scope_item in enumerate(scope_items)
        if isinstance(scope_item, Step) and scope_item.node_fields.get("kind") == "shared_expert"
    ]
    if gate_positions:
        end_position = 1 + next(
            i for i in range(gate_positions[0], len(scope_items)) if _operation_name(scope_items[i]) == "mul"
        )
    return scope_items[scope_positions[0] : end_position]


def _operation_name(module_item: ProgramItem) -> str:
    """Returns the name of an operation in the program; empty for a module's scope."""
    return module_item.verb if isinstance(module_item, Step) else ""

"""The kernels of the input embedding, of recomputed groups of layers, and of the losses on a rank.

Sources: Megatron-LM, megatron/core/models/common/embeddings/language_model_embedding.py and
megatron/core/tensor_parallel/cross_entropy.py; TransformerEngine, transformer_engine/pytorch/cross_entropy.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.program import ModuleScope, Step
from ....flow.value import Value
from ....simulator.autograd import record
from ....simulator.checkpoint import RegionFunction
from ....simulator.layer_pattern import shortened_layers, types_of_layers
from ....simulator.lowering import ModuleFrame
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, INT64, NeedsInputGrad, Tensor
from .elementwise import ElementwiseKernels
from .lowering import Gradients, SavedTensors


class HeadKernels(ElementwiseKernels):
    """Kernels of embedding tables, layer stacks, the output layer and losses."""

    def do_table(self, operation: Step) -> None:
        """Looks up embeddings of tokens, positions or segments."""
        index_kind, table_output = operation.options["by"], operation.output_values[0]
        table = (
            self.shared_embedding_weight("table", operation) if index_kind == "ids" else self.position_table(operation)
        )
        row_count = self.rows(table_output)
        token_ids = self.graph.new_tensor((row_count, 1), INT64) if index_kind == "ids" else None
        embeddings = self.new_tensor(row_count, table.shape[1])
        saved_for_backward = [] if token_ids is None else [token_ids]
        self.node_with_new_gradients("embedding", (table,), embeddings, *saved_for_backward)
        del saved_for_backward
        self.store_without_reshape(
            table_output, self.enter_layers(embeddings) if self.is_in_multi_token_prediction else embeddings
        )

    def do_unread_table(self, operation: Step) -> None:
        """Allocates an embedding table that no pass reads."""
        self.shared_embedding_weight("table", operation)

    def position_table(self, operation: Step) -> Tensor:
        """Returns the table of learned positions, which encoder and decoder share (t5_model.py, `embedding`)."""
        assert operation.weight is not None
        table_key = (
            "",
            "positions",
            self.element_count(operation.weight.input_axes),
            self.element_count(operation.weight.output_axes),
        )
        if table_key not in self.weights:
            self.weights[table_key] = self.with_role("positions", lambda: self.embedding_table(operation))
        return self.weights[table_key]

    def run_layers(self, layer_scopes: list[ModuleScope]) -> None:
        """Runs a stack of layers, and transposes the embedding before the first layer to [tokens, batch]."""
        stack_input = layer_scopes[0].first_input
        assert stack_input is not None
        if not self.has_stage_input:
            x = self.tensor_of(stack_input)
            self._free_layer_input(stack_input)
            embeddings = self.enter_layers(x)
            del x
            embeddings.is_leaf |= self.layers_input_takes_gradient
            self.tensors_by_value[id(stack_input)] = embeddings
            del embeddings
        if layer_scopes[0].node_fields.get("kind") != "mtp":
            self.run_layers_with_recompute(layer_scopes)
            if self.weight_gathering is not None:
                self.weight_gathering.gather(None)
            return
        last_hidden, storage = self.tensor_of(stack_input), stack_input.storage
        super().run_layers(layer_scopes)
        self.store_without_reshape(storage, last_hidden)  # the output layer reads it after them

    @property
    def layers_input_takes_gradient(self) -> bool:
        """Whether embeddings of a frozen table need a gradient, as for recomputed layers.

        Sources: modelscope/mcore-bridge, model/gpt_model.py, always; Megatron-Bridge, peft/recompute.py, only then.
        """
        adapters, is_recomputed = self.rank_choices.adapters, self.rank_choices.recompute != "none"
        return (
            adapters is not None
            and self.graph.is_grad_enabled
            and (adapters.library == "mcore-bridge" or is_recomputed)
        )

    def enter_layers(self, x: Tensor) -> Tensor:
        """Returns embeddings transposed to [tokens, batch], with only this rank's tokens, after dropout."""
        if self.run_config.batch != 1:
            x = record(self.graph, "transpose", (x,), self.empty_like(x), lambda g, _: (g,))
        if self.rank_choices.sequence_parallel:
            x = self.copy_reordered("scatter", x, (self.local_rows(x.shape[0]), x.shape[1]))
        return self.dropout(x) if self.rank_choices.hidden_dropout > 0 else x

    def run_layers_with_recompute(self, layer_scopes: list[ModuleScope]) -> None:
        """Runs layers, and recomputes the selected layers in the backward pass.

        The method `uniform` recomputes groups of equal size, `block` the first layers.
        """
        recompute_method, group_size = self.rank_choices.recompute, self.rank_choices.recompute_layer_count
        if recompute_method == "none":
            super().run_layers(layer_scopes)
            return
        stack_input, stack_output = layer_scopes[0].first_input, layer_scopes[-1].output
        assert stack_input is not None
        assert stack_output is not None
        if any(
            encoder_value.rows != stack_input.rows
            for layer_scope in layer_scopes
            for operation in layer_scope.steps()
            for encoder_value in self._encoder_inputs(operation)
        ):
            raise self.unsupported(
                "no kernels for layers that run again and read an encoder; expected no recomputation"
            )
        hidden_states = self.tensor_of(stack_input)
        self._free_layer_input(stack_input)
        layer_order = shortened_layers(types_of_layers(layer_scopes), self.run_repeats_by_stack.get(self.stack_number))
        self.stack_number += 1
        group_start = 0
        while group_start < len(layer_order):
            is_recomputed = recompute_method == "uniform" or group_start < group_size
            group_end = min(len(layer_order), group_start + (group_size if recompute_method == "uniform" else 1))
            group_frames = [
                ModuleFrame(
                    layer_order[i], layer_index=self.first_layer_index + i, owner_layer_index=self.first_layer_index + i
                )
                for i in range(group_start, group_end)
            ]
            layer_input = hidden_states
            del hidden_states
            if is_recomputed:
                hidden_states = self.checkpoint(self._layer_group_function(group_frames), [layer_input])
            else:
                hidden_states = self.run_layer(group_frames[0], layer_input)
            del layer_input
            group_start = group_end
        self.tensors_by_value[id(stack_output)] = hidden_states

    def run_layer(self, module_call: ModuleFrame, x: Tensor) -> Tensor:
        """Runs a layer; if the run needs it, first detaches the layer's input and gathers the layer's weights."""
        if self.rank_choices.detaches_layer_inputs:
            x = self._detach_input(x)
        if self.weight_gathering is None or module_call.layer_index is None:
            return super().run_layer(module_call, x)
        run_layer = super().run_layer
        return self.weight_gathering.run_layer(
            self.graph, module_call.layer_index, x, lambda layer_input: run_layer(module_call, layer_input)
        )

    def _detach_input(self, x: Tensor) -> Tensor:
        """Returns a detached copy of a layer's input, whose gradient the backward pass passes on.

        Source: Megatron-LM, core/pipeline_parallel/utils.py, `ScheduleNode`.
        """
        self.detached_input = input_and_gradient = [x.detached()]

        def store_gradient(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> Gradients:
            input_and_gradient.append(output_gradient.detached())
            return [output_gradient]

        return record(self.graph, "layer_input", (x,), x.detached(), store_gradient)

    def _encoder_inputs(self, operation: Step) -> list[Value]:
        """Returns the tensors from the encoder that cross-attention reads."""
        return list(operation.input_values[1:2]) if operation.verb == "attention" else []

    def _layer_group_function(self, layer_frames: list[ModuleFrame]) -> RegionFunction:
        """Returns a function that runs these layers, in the forward pass or as a recomputation."""
        outer_frames = self._copy_frames()

        def run_group(arguments: Sequence[Tensor]) -> Tensor:
            """Runs the layers on an argument tensor, without access to the caller's other tensors."""
            caller_state = self.tensors_by_value, self.view_ids, self.frames, self.pass_memo
            self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = {}, {}, list(outer_frames), {}
            try:
                hidden_states = arguments[0]
                for layer_frame in layer_frames:
                    layer_input = hidden_states
                    del hidden_states
                    hidden_states = self.run_layer(layer_frame.without_tensors(), layer_input)
                    del layer_input
                return hidden_states
            finally:
                self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = caller_state

        return run_group

    # --- tokens further ahead ----------------------------------------------------------------------------------------

    def _index_operations(self, module_scope: ModuleScope, module: ModuleScope) -> None:
        """Moves the operations of multi-token-prediction modules and their losses before those of the output layer."""
        mtp_modules = [
            scope_item
            for scope_item in module_scope.items
            if isinstance(scope_item, ModuleScope) and scope_item.node_fields.get("kind") == "mtp"
        ]
        if mtp_modules:
            output_modules = [
                module_item
                for module_item in module_scope.items
                if isinstance(module_item, ModuleScope) and module_item.node_fields.get("kind") == "lm_head"
            ]
            moved_modules = [*mtp_modules, *output_modules]
            module_scope.items = [
                *(module_item for module_item in module_scope.items if module_item not in moved_modules),
                *moved_modules,
            ]
        super()._index_operations(module_scope, module)

    def do_add_output(self, operation: Step) -> None:
        """Computes the loss of a multi-token-prediction module, and keeps its logits until the main loss."""
        logits = self.tensor_of(operation.input_values[0])
        self.further_outputs.append(self.token_losses(logits))
        self.logits = [logits.detached()]

    def do_linear(self, operation: Step) -> None:
        """Runs a linear layer, or the input projection of a multi-token-prediction module."""
        if (
            self.is_in_multi_token_prediction
            and self.frames[-1].scope.node_fields.get("kind") == "mtp"
            and not self.is_output_layer(operation)
        ):
            self.store_output(
                operation,
                self._project_embedding_and_hidden(
                    operation, self.tensor_read_by(operation, operation.input_values[0])
                ),
            )
        else:
            super().do_linear(operation)

    def _project_embedding_and_hidden(self, operation: Step, x: Tensor) -> Tensor:
        """Projects the concatenated embedding and hidden state of a token, and gathers the sharded outputs.

        Source: multi_token_prediction.py, `_concat_embeddings`. A rank's tokens are a view of all tokens.
        """
        kernel_choices, output_width, row_count = self.rank_choices, operation.output_values[0].width, x.shape[0]
        weight, _ = self.linear_weights(operation, output_width // kernel_choices.tp, "column")
        projected_input = self.transformer_engine_column_linear(x, weight, None, [], None)
        if kernel_choices.tp > 1:
            projected_input = self.copy_reordered("gather", projected_input, (projected_input.shape[0], output_width))
        if not kernel_choices.sequence_parallel:
            return projected_input
        return self.node_with_new_gradients(
            "scatter",
            (projected_input,),
            Tensor((row_count, output_width), projected_input.dtype, projected_input.storage),
        )

    def output(self, operation: Step, x: Tensor) -> Tensor:
        """Computes the logits. The losses of multi-token prediction join the graph before the output layer."""
        if self.is_in_multi_token_prediction or self.further_outputs:
            x = self.dense_copy(x)
        if self.further_outputs and not self.is_in_multi_token_prediction:
            mtp_losses, self.further_outputs = self.further_outputs, []
            scaled_hidden, loss_shapes = Tensor(x.shape, x.dtype, x.storage), [tensor.shape for tensor in mtp_losses]
            new_tensor = self.graph.new_tensor
            self.record_node(
                "loss_scaler",
                (x, *mtp_losses),
                [scaled_hidden],
                lambda saved_tensors, g, needs_input_grad: [g, *(new_tensor(shape, FLOAT32) for shape in loss_shapes)],
            )
            del mtp_losses
            x = scaled_hidden
            del scaled_hidden
        return super().output(operation, x)

    # --- losses ------------------------------------------------------------------------------------------------------

    def token_losses(self, logits: Tensor) -> Tensor:
        """Computes the loss of each token, which the caller sums."""
        if self.rank_choices.loss_implementation == "te":
            return self._transformer_engine_loss(logits)
        return self._megatron_core_loss(logits)

    def _transformer_engine_loss(self, logits: Tensor) -> Tensor:
        """Runs Transformer Engine's loss, whose forward pass overwrites the logits with the gradient."""
        row_count = logits.shape[0]
        loss, softmax_sums = self.new_tensor(row_count, 1, FLOAT32), self.new_tensor(row_count, 3, FLOAT32)
        del softmax_sums

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            return [saved_tensors[0]]

        self.record_node("cross_entropy", (logits,), [loss], backward, logits)
        return loss

    def _megatron_core_loss(self, logits: Tensor) -> Tensor:
        """Runs Megatron-Core's loss on a float32 copy of the logits, with softmax and gradient in place."""
        autograd_graph, (row_count, vocab_width) = self.graph, logits.shape
        is_fused = self.rank_choices.loss_implementation == "native"
        logits_fp32 = autograd_graph.new_tensor((row_count, vocab_width), FLOAT32)
        row_max = self.new_row_statistics(row_count)
        target_mask = autograd_graph.new_tensor((row_count, 1), BOOL)
        masked_target = autograd_graph.new_tensor((row_count, 1), INT64)
        masked_target_1d = autograd_graph.new_tensor((row_count, 1), INT64)
        target_logits = self.new_row_statistics(row_count)
        exp_sums = self.new_row_statistics(row_count)
        del row_max, masked_target_1d
        loss = self.new_row_statistics(row_count)
        del target_logits, exp_sums

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            if is_fused:
                logits_copy = autograd_graph.new_tensor((row_count, vocab_width), FLOAT32)
                logits_gradient = autograd_graph.new_tensor((row_count, vocab_width), BFLOAT16)
                del logits_copy
                return [logits_gradient]
            return [saved_tensors[0]]

        self.record_node("cross_entropy", (logits,), [loss], backward, logits_fp32, target_mask, masked_target)
        return loss

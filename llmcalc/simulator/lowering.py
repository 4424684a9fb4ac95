"""The base class of all sets of kernels: runs a program, and recomputes parts of it in the backward pass.

A profile has a method per verb, `do_<verb>`. `ProgramLowering` calls them in the program's order, knows the tensor of
every value, and drops it after the last step that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..flow.program import ModuleScope, Step
from ..flow.value import Value
from ..workload.recompute import check_node_names
from .checkpoint import RegionFunction, checkpoint, checkpoint_reentrant
from .liveness import is_stack_layer, is_view_of, module_scopes_below, nearest_base_id
from .module_frame import (
    CARRIED_KEY,
    STAGE_INPUT_KEY,
    ModuleFrame,
    ModulePath,
    ParameterSet,
    RecomputedModule,
    UnsupportedKernel,
)
from .program_lowering import ProgramLowering
from .tensor import Tensor

__all__ = [
    "CARRIED_KEY",
    "STAGE_INPUT_KEY",
    "Lowering",
    "ModuleFrame",
    "ModulePath",
    "ParameterSet",
    "RecomputedModule",
    "UnsupportedKernel",
]


class Lowering(ProgramLowering):
    """Runs a model's recorded operations with the kernels of one implementation, such as eager torch or DTensor.

    graph: the graph that records operations.
    run_config: the run.
    dtype: number format of weights and activations.
    has_trained_weights: whether weights get gradients, default true.
    recompute: the modules that are recomputed in the backward pass, default none.
    included_parts: names of the optional parts that run (`llmcalc.optional`), default none.
    choices: the kernels that run, default the eager ones.
    adapters: the adapters that are trained instead of the weights; default none.
    first_trained_layer: index of the first layer that is trained, where the last layers alone are; None (default) for
        all weights.
    trained_dtype: number format of weights in trained layers; by default that of all.
    inputs: the program's inputs by their rows, and the input of a pipeline stage.
    result: the value that the program computes.
    head_of_loss: the step of the output layer with its weight and bias, if the loss computes the logits.
    logits: logits of the last run that the training loop still refers to.
    further_outputs: additional results of the last run, such as the logits of multi-token-prediction modules.
    buffers: paths of the buffers that are read.
    scales_of_quantizers: path → scales and zero points that a module of fake quantization keeps between passes.
    known_parameters: the parameters of the program, None before `allocate_parameters`, or set from an equal program.
    cached_tensors_by_path: path → the tensors of a cache or state between passes; None if no pass follows.
    has_earlier_tokens: whether an earlier pass has filled the store.
    absent_value_ids: ids of the values that such a pass does not compute.
    only_finds_parameters: whether the run only finds the parameters.
    has_skipped_steps: whether the first pass has left out a step, and with it parameters.
    run_repeats_by_stack: stack → repeats of its pattern that run; stacks that are not there run whole.
    first_layer_index: layers of the model before the first layer of the program.
    has_block_pool: whether caches lie in a pool that exists before the passes and is not counted.
    shared_value_ids: ids of the values that several layers read.
    last_reader_ids: id of a value's storage → id of its last reader, of the program `analyzed_program` in the run
        `analyzed_run`.
    recomputed_modules: id of a scope → its recomputation, for modules that are recomputed by themselves.
    """

    @property
    def autocasts_to_float32(self) -> bool:
        """Whether autocast runs powers and softmax in float32, as on a GPU (aten/src/ATen/autocast_mode.h)."""
        return self.graph.autocast_dtype is not None and self.choices.is_on_gpu

    def find_layer_dataflow(self, root_scope: ModuleScope) -> None:
        """Finds the tensors that each layer reads and returns, and the modules that the backward pass recomputes."""
        if self.recompute.nodes:
            self._find_recomputed_modules(root_scope)
        if not self.recompute.layers:
            return
        self.carries_tensors: bool = any(
            operation.verb == "carry" and len(operation.input_values) > 1
            for operation in root_scope.steps(includes_idle=False)
        )
        for module_scope in root_scope.scopes():
            if module_scope.first_input is not None:
                operations = list(module_scope.steps(includes_idle=False))
                computed_value_ids = {
                    id(output_value) for operation in operations for output_value in operation.output_values
                }
                read_storage_ids = {
                    id(input_value.storage) for operation in operations for input_value in operation.input_values
                }
                layer_input_ids = {id(module_scope.first_input.storage)} - self.shared_value_ids
                self.computed_value_ids[id(module_scope)] = computed_value_ids
                self.read_storage_ids[id(module_scope)] = read_storage_ids - computed_value_ids - layer_input_ids

    def refuse_recomputed_module(self, operation: Step) -> None:
        """Raises `UnsupportedKernel` for an operation in a module that the backward pass recomputes."""
        if self.recompute.layers or any(
            id(module_call.scope) in self.recomputed_modules for module_call in self.frames
        ):
            raise self.unsupported(
                "it reads what a layer below has kept, and runs again after those above; expected --recompute none",
                operation.name,
            )

    def _find_recomputed_modules(self, root_scope: ModuleScope) -> None:
        """Finds the modules selected for recomputation. Raises `InputError` for an unknown module."""
        modules = [
            module for scope in root_scope.scopes() if is_stack_layer(scope) for module in module_scopes_below(scope)
        ]
        check_node_names(self.recompute.nodes, (module_path for module_path, _ in modules))
        for module_path, module_scope in modules:
            if module_path in self.recompute.nodes:
                self.recomputed_modules[id(module_scope)] = self._recomputed_module(module_scope, root_scope)

    def _recomputed_module(self, module_scope: ModuleScope, root_scope: ModuleScope) -> RecomputedModule:
        """Returns the inputs and outputs of a module that the backward pass recomputes."""
        operations = list(module_scope.steps(includes_idle=False))
        step_ids = {id(operation) for operation in operations}
        computed_value_ids = {id(output_value) for operation in operations for output_value in operation.output_values}
        values_read = {
            id(input_value): input_value
            for operation in operations
            for input_value in operation.input_values
            if nearest_base_id(input_value, computed_value_ids) is None
        }
        values_read_outside = (
            input_value
            for operation in root_scope.steps(includes_idle=False)
            if id(operation) not in step_ids
            for input_value in operation.input_values
        )
        return RecomputedModule(
            tuple(
                recorded_value
                for recorded_value in values_read.values()
                if not is_view_of(recorded_value, module_scope.module_argument)
            ),
            frozenset(
                nearest_base_id(recorded_value, computed_value_ids) or 0 for recorded_value in values_read_outside
            )
            - {0, id(module_scope.output)},
            tuple(
                recorded_value
                for recorded_value in values_read.values()
                if self.last_reader_ids.get(id(recorded_value.storage)) in step_ids
            ),
        )

    def _checkpointed_module(self, module_scope: ModuleScope, recomputed_module: RecomputedModule) -> None:
        """Runs a module with activation checkpointing, which saves its inputs and recomputes it in the backward pass.

        The other tensors that it reads stay as they are now until the backward pass, as do those that all layers read,
        which the reference passes to every module.
        """
        module_input, module_output = module_scope.input_and_output_values
        frames_outside_region, memoized_values = self._copy_frames(), self.pass_memo
        shared_tensors = {
            value_id: self.tensors_by_value[value_id]
            for value_id in self.shared_value_ids
            if value_id in self.tensors_by_value
        }
        shared_tensors |= {
            id(read_value): self.tensors_by_value[id(read_value)]
            for recorded_value in recomputed_module.values_read
            if (read_value := self._value_with_tensor(recorded_value)) is not None
        }

        def run_module(arguments: Sequence[Tensor]) -> Tensor:
            caller_state = self.tensors_by_value, self.view_ids, self.frames, self.pass_memo
            self.tensors_by_value, self.view_ids = {**shared_tensors, id(module_input): arguments[0]}, {}
            self.frames, self.pass_memo = list(frames_outside_region), memoized_values
            try:
                self._run_module_items(ModuleFrame(module_scope))
                caller_state[0].update(
                    {
                        value_id: self.tensors_by_value[value_id]
                        for value_id in recomputed_module.ids_read_outside
                        if value_id in self.tensors_by_value
                    }
                )
                return self.tensor_of(module_output)
            finally:
                self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = caller_state

        output = self.run_checkpointed(run_module, [self.tensor_of(module_input)])
        for recorded_value in recomputed_module.values_to_free:
            self.free_value(recorded_value.storage)
        self.store_without_reshape(module_output, output)

    @property
    def carried_tensors(self) -> dict[Any, Tensor]:
        """The tensors that a layer passes to the next layer in addition to its output."""
        return {key: tensor for key, tensor in self.pass_memo.items() if self.carries_tensors and key[0] == CARRIED_KEY}

    def replace_carried_tensors(self, tensors: dict[Any, Tensor]) -> None:
        """Replaces the tensors that the running layer passes to the next layer in addition to its output."""
        for memo_key in self.carried_tensors:
            del self.pass_memo[memo_key]
        self.pass_memo.update(tensors)

    def layer_runner(self, module_call: ModuleFrame, layer_input: Value, layer_output: Value) -> RegionFunction:
        """Returns a function that runs a layer in the forward pass, or again as a recomputation.

        Its arguments are x and the tensors that the layer before carries. The other tensors that it reads stay as they
        are now.
        """
        frames_outside_region, memoized_values = self._copy_frames(), self.pass_memo
        carried_keys, is_first_run = tuple(self.carried_tensors), True
        shared_tensors = {
            value_id: self.tensors_by_value[value_id]
            for value_id in self.read_storage_ids[id(module_call.scope)]
            if value_id in self.tensors_by_value
        }
        shared_output_ids = (self.shared_value_ids & self.computed_value_ids[id(module_call.scope)]) - {
            id(layer_output.storage)
        }

        def run_layer(input_tensors: Sequence[Tensor]) -> Tensor:
            """Runs the layer with its own copy of the stack of running modules; the caller's stack does not change."""
            nonlocal is_first_run
            caller_state = self.tensors_by_value, self.view_ids, self.frames, self.pass_memo
            self.tensors_by_value = {**shared_tensors, id(layer_input): input_tensors[0]}
            self.view_ids = {}
            self.frames = list(frames_outside_region)
            self.pass_memo = memoized_values
            carried_tensors, is_recomputed, is_first_run = self.carried_tensors, not is_first_run, False
            self.replace_carried_tensors(dict(zip(carried_keys, input_tensors[1:], strict=True)))
            try:
                self.run_module(module_call.without_tensors())
                output_tensor = self.tensor_of(layer_output)
                caller_state[0].update(
                    {
                        value_id: self.tensors_by_value[value_id]
                        for value_id in shared_output_ids
                        if value_id in self.tensors_by_value
                    }
                )
                return output_tensor
            finally:
                if is_recomputed:
                    self.replace_carried_tensors(carried_tensors)
                self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = caller_state

        return run_layer

    def run_checkpointed(self, run_region: RegionFunction, input_tensors: Sequence[Tensor]) -> Tensor:
        """Runs a function whose activations are recomputed in the backward pass."""
        if self.recompute.reentrant:
            return checkpoint_reentrant(self.graph, run_region, input_tensors)
        recompute, is_compiled = self.recompute, self.choices.compiled
        return checkpoint(
            self.graph,
            run_region,
            input_tensors,
            kept_operations=recompute.saved_operations,
            alternate_operations=recompute.alternate,
            compiled=is_compiled,
        )

    def run_module(self, module_call: ModuleFrame) -> None:
        """Runs a module, with activation checkpointing if selected."""
        recomputed_module = self.recomputed_modules.get(id(module_call.scope))
        if recomputed_module is None:
            super().run_module(module_call)
        else:
            self._checkpointed_module(module_call.scope, recomputed_module)

    def run_layer(self, module_call: ModuleFrame, x: Tensor) -> Tensor:
        """Runs one layer; if the layer is recomputed in the backward pass, only its input is saved.

        The first trained layer's input wants a gradient, and no frozen layer is checkpointed
        (llamafactory/model/model_utils/checkpointing.py, `get_custom_gradient_checkpointing_func`).
        """
        module_scope, recompute = module_call.scope, self.recompute
        layer_index, first_trained_layer = module_call.layer_index, self.first_trained_layer
        if layer_index is not None and first_trained_layer is not None and recompute.layers:
            if layer_index < first_trained_layer:
                return super().run_layer(module_call, x)
            x.is_leaf = x.is_leaf or (
                layer_index == first_trained_layer and self.graph.is_grad_enabled and x.node is None
            )
        if layer_index is None or not recompute.includes_layer(layer_index) or not is_stack_layer(module_scope):
            return super().run_layer(module_call, x)
        layer_runner = self.layer_runner(module_call, *module_scope.layer_values)
        return self.run_checkpointed(layer_runner, [x, *self.carried_tensors.values()])

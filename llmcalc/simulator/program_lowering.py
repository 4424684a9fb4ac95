"""Runs the modules and operations of a program on tensors without values.

A profile has a method per verb, `do_<verb>`, which this class calls in the program's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from ..components.base import TORCH_WITNESS
from ..components.stack import BASE_LAYER_NAME, SHARED_LABEL_SUFFIX
from ..evidence import compared, kernels_compared, torch_witness
from ..flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from ..flow.record import Flow
from ..flow.value import Value
from .autograd import AutogradGraph
from .cache_tensors import CacheTensors
from .layer_pattern import shortened_layers, types_of_layers
from .liveness import last_readers
from .meter import NoMeter
from .module_frame import STAGE_INPUT_KEY, TOKEN_ID_ROWS, ModuleFrame, ParameterSet
from .simulated_work import SIMULATED_WORK, UNITS_PER_OPERATION
from .tensor import INT64, Tensor, count_storages_as, empty
from .value_tensors import method_name


@kernels_compared(TORCH_WITNESS, unchecked_kernels=("module_kernel",))
class ProgramLowering(CacheTensors):
    """Runs the modules and operations of a program in order, without recomputation."""

    def run(self, program: Flow) -> Tensor:
        """Runs a program and returns the result. All other tensors are freed."""
        assert program.result is not None
        self.result: Value = program.result
        self.has_earlier_tokens: bool = bool(self.cached_tensors_by_path)
        self.absent_value_ids = set()
        run_settings = self.run_config, self.included_parts
        if (
            self.analyzed_program is not program or self.analyzed_run != run_settings
        ):  # else an earlier pass has found the same
            self.last_reader_ids, self.shared_value_ids = last_readers(
                program.root, self.choose_branch, self.skips_module
            )
            self.last_reader_ids.pop(id(program.result.storage), None)
            self.analyzed_program, self.analyzed_run = program, run_settings
        self.further_outputs = []
        self.find_layer_dataflow(program.root)
        self.stack_number: int = 0
        if program.stage_input is not None:
            self.store_without_reshape(program.stage_input, self.inputs.pop(STAGE_INPUT_KEY))
        self.run_module(ModuleFrame(program.root))
        program_result = self.tensor_of(program.result)
        self.tensors_by_value.clear()
        self.view_ids.clear()
        self.pass_memo = {}
        return program_result

    def find_layer_dataflow(self, root_scope: ModuleScope) -> None:
        """Does nothing; a subclass with recomputation finds the tensors that layers read and return."""

    def allocate_parameters(self, program: Flow) -> None:
        """Allocates all parameters, in the order in which the program first uses them."""
        if self.known_parameters is None:
            self.known_parameters = self._find_parameters(program)
        parameters: dict[int, Tensor] = {}
        weights, self.buffers = self.known_parameters
        with count_storages_as(self.graph.meter, "weights"):
            for parameter_key, weight in weights.items():  # a shared parameter has several keys
                if id(weight) not in parameters:
                    self.graph.meter.parameter_path = parameter_key
                    parameters[id(weight)] = self.create_parameter(parameter_key, weight)
                self.weights[parameter_key] = parameters[id(weight)]
            self.graph.meter.parameter_path = None
        self.allocate_unread_parameters(program)

    def _find_parameters(self, program: Flow) -> ParameterSet:
        """Returns the parameters of a program, from a run of the program that counts no bytes."""
        parameter_lowering = type(self)(
            AutogradGraph(NoMeter()),
            self.run_config,
            self.dtype,
            self.has_trained_weights,
            included_parts=self.included_parts,
            choices=self.choices,
            adapters=self.adapters,
        )
        parameter_lowering.graph.is_grad_enabled, parameter_lowering.only_finds_parameters = False, True
        parameter_lowering.run_repeats_by_stack, parameter_lowering.first_layer_index = (
            self.run_repeats_by_stack,
            self.first_layer_index,
        )
        parameter_lowering.first_trained_layer, parameter_lowering.trained_dtype = (
            self.first_trained_layer,
            self.trained_dtype,
        )
        parameter_lowering.inputs = {
            row_axis: empty(
                parameter_lowering.graph.meter, (self.run_config.batch, self.run_config.new_rows(row_axis)), INT64
            )
            for row_axis in TOKEN_ID_ROWS
        }
        parameter_lowering.create_input_frames(program)
        parameter_lowering.create_stage_input(program)
        parameter_lowering.run(program)
        return parameter_lowering.weights, parameter_lowering.buffers

    def create_input_frames(self, program: Flow) -> None:
        """Allocates the optional input frames of an encoder, by default stored as [batch, values per frame, frames]."""
        if program.audio_frames is None:
            return
        batch, frame_count, values_per_frame = self.shape(program.audio_frames)
        if program.frames_by_row:
            self.inputs[program.audio_frames.rows] = self.graph.new_tensor(
                (batch, frame_count, values_per_frame), self.dtype
            )
        else:
            input_frames = self.graph.new_tensor((batch, values_per_frame, frame_count), self.dtype)
            self.inputs[program.audio_frames.rows] = self.aten.transpose(input_frames, 1, 2)

    def create_stage_input(self, program: Flow) -> Tensor | None:
        """Allocates the input of a later pipeline stage; None for programs with the first layers."""
        if program.stage_input is None:
            return None
        with count_storages_as(self.graph.meter, "communication"):
            stage_input = empty(
                self.graph.meter, self.shape(program.stage_input), self.dtype, is_leaf=self.has_trained_weights
            )
        self.inputs[STAGE_INPUT_KEY] = stage_input
        return stage_input

    # --- modules and layers -----------------------------------------------------------------------------------------

    def run_module(self, module_call: ModuleFrame) -> None:
        """Runs a module, while the caller still references the module's input."""
        self._run_module_items(module_call)

    def _run_module_items(self, module_call: ModuleFrame) -> None:
        """Runs a module's operations and submodules, with the module on the stack of running modules."""
        scope = module_call.scope
        module_input = None if scope.module_argument is None else self.tensor_of(scope.module_argument)
        self.frames.append(module_call)
        memory_meter = self.graph.meter
        outer_place, memory_meter.place = memory_meter.place, self.place
        outer_memo, self.pass_memo = self.pass_memo, {} if scope.is_separate_model else self.pass_memo
        outer_value_ids = set(self.tensors_by_value) if scope.is_separate_model else set()
        module_kernel = self.module_kernel(scope)
        with self.graph.no_grad() if scope.node_fields.get("role") == "no_grad" else nullcontext():
            if module_kernel is None:
                self.run_items(scope.items)
            else:
                module_kernel()
        if scope.is_separate_model and scope.output is not None:  # what its layers read goes with it
            for value_id in set(self.tensors_by_value) - outer_value_ids - {id(scope.output), id(scope.output.storage)}:
                self.tensors_by_value.pop(value_id)
        self.pass_memo = outer_memo
        self.frames.pop()
        memory_meter.place = outer_place
        del module_input

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel of a whole module; None if the module's operations run one by one."""
        return None

    def run_items(self, program_items: Sequence[ProgramItem]) -> None:
        """Runs the operations and submodules of a module in order."""
        layer_scopes: list[ModuleScope] = []
        for scope_item in program_items:
            if isinstance(scope_item, ModuleScope):
                if self.skips_module(scope_item) or self.has_run(scope_item):
                    self._mark_output_as_absent(scope_item)
                    continue
                if scope_item.first_input is not None:
                    layer_scopes.append(scope_item)
                    continue
            if layer_scopes:
                self.run_layers(layer_scopes)
                layer_scopes = []
            if isinstance(scope_item, Step):
                if not self.is_excluded(scope_item):
                    self.run_step(scope_item)
            elif isinstance(scope_item, AlternativeBranches):
                self.run_alternatives(scope_item)
            elif scope_item.first_layer_output is not None:
                self.module_after_first_layer = scope_item
            elif scope_item.stacked_axis is not None:
                self.run_side_by_side(scope_item)
            else:
                self.run_module(ModuleFrame(scope_item))
        if layer_scopes:
            self.run_layers(layer_scopes)

    def skips_module(self, module_scope: ModuleScope) -> bool:
        """Whether a module does not run: an optional part that the run excludes, or a part that no run has."""
        return self.is_excluded(module_scope) or module_scope.node_fields.get("role") in UNEXECUTED_ROLES

    def is_excluded(self, program_item: ModuleScope | Step) -> bool:
        """Whether a module (or a stage's copy of an embedding) belongs to an optional part that the run excludes."""
        optional_part = program_item.node_fields.get("optional")
        return bool(optional_part) and optional_part not in self.included_parts

    def has_run(self, module_scope: ModuleScope) -> bool:
        """Whether a module is a separate model, such as an encoder, whose output an earlier pass has computed."""
        return (
            module_scope.is_separate_model
            and module_scope.output is not None
            and self.is_computed_earlier(module_scope.output.rows)
        )

    def _mark_output_as_absent(self, module_scope: ModuleScope) -> None:
        """Records that a skipped module has no output, so that later operations treat the output as missing."""
        if module_scope.output is not None:
            self.absent_value_ids.add(id(module_scope.output.storage))
        if not self.skips_module(module_scope):
            self.stack_number += self._count_layer_stacks(module_scope)

    def _count_layer_stacks(self, module_scope: ModuleScope) -> int:
        """Counts the layer stacks in a module."""
        stack_count, is_in_stack = 0, False
        for scope_item in module_scope.items:
            if isinstance(scope_item, ModuleScope) and self.skips_module(scope_item):
                continue
            is_layer_scope = isinstance(scope_item, ModuleScope) and scope_item.first_input is not None
            stack_count += is_layer_scope and not is_in_stack
            is_in_stack = is_layer_scope
            if isinstance(scope_item, ModuleScope) and not is_layer_scope:
                stack_count += self._count_layer_stacks(scope_item)
        return stack_count

    def choose_branch(self, alternatives: AlternativeBranches) -> ModuleScope:
        """Returns the branch that runs, of a step that has alternative branches."""
        return alternatives.branches[
            self.run_config.execution.choose_form(alternatives.branches, self.run_config.workload)
        ]

    def run_alternatives(self, alternatives: AlternativeBranches) -> None:
        """Runs the chosen branch of an alternative; its result takes the place of the first branch's result."""
        first_branch, *_ = alternatives.branches.values()
        executed_branch = self.choose_branch(alternatives)
        self.run_items(executed_branch.items)
        assert first_branch.output is not None
        assert executed_branch.output is not None
        if executed_branch is not first_branch:
            self.store_tensor(first_branch.output, self.tensor_of(executed_branch.output))
            self.free_value(executed_branch.output.storage)

    def run_side_by_side(self, module_scope: ModuleScope) -> None:
        """Runs equal modules in sequence, and collects their outputs for stacking."""
        assert module_scope.stacked_axis is not None
        module_input, module_output = module_scope.input_and_output_values
        outputs: list[Tensor] = []
        slices = None if module_scope.argument_slice is None else self.aten.unbind(self.tensor_of(module_input), 2)
        for copy_index in range(module_scope.stacked_axis.size):
            if slices is not None and module_scope.argument_slice is not None:
                self.tensors_by_value[id(module_scope.argument_slice)] = slices[copy_index]
            self.run_module(ModuleFrame(module_scope, layer_index=copy_index, owner_layer_index=copy_index))
            outputs.append(self.tensor_of(module_output))
            self.free_value(module_output.storage)
        if module_scope.argument_slice is not None:
            self.tensors_by_value.pop(id(module_scope.argument_slice))
        self.stacked_outputs[id(module_output)] = outputs
        self.release_last_reads(
            module_scope, (input_value for operation in module_scope.steps() for input_value in operation.input_values)
        )

    def run_layers(self, layer_scopes: list[ModuleScope]) -> None:
        """Runs a stack of layers in the model's order."""
        (first_input, _), (_, last_output) = layer_scopes[0].layer_values, layer_scopes[-1].layer_values
        hidden_states = self.tensor_of(first_input)
        self._free_layer_input(first_input)
        owners_of_layers: dict[str, int] = {}
        executed_layers = shortened_layers(
            types_of_layers(layer_scopes), self.run_repeats_by_stack.get(self.stack_number)
        )
        self.stack_number += 1
        module_after_first_layer, self.module_after_first_layer = self.module_after_first_layer, None
        for layer_index, layer_scope in enumerate(executed_layers, self.first_layer_index):
            layer_name = layer_scope.node_fields.get("label", "").removesuffix(SHARED_LABEL_SUFFIX)
            owner_index = owners_of_layers.setdefault("" if layer_name == BASE_LAYER_NAME else layer_name, layer_index)
            layer_input = hidden_states
            del hidden_states
            hidden_states = self.run_layer(
                ModuleFrame(layer_scope, layer_index=layer_index, owner_layer_index=owner_index), layer_input
            )
            if module_after_first_layer is not None and layer_index == self.first_layer_index:
                hidden_states = self.run_after_layer(module_after_first_layer, layer_input, hidden_states)
            del layer_input  # the stack's frame names a layer's input while the layer runs
        self.tensors_by_value[id(last_output)] = hidden_states

    def run_after_layer(self, module_scope: ModuleScope, layer_input: Tensor, layer_output: Tensor) -> Tensor:
        """Runs the module between a stack's first and second layer. layer_input, layer_output: the first layer's."""
        (module_input, module_output), first_layer_output = (
            module_scope.input_and_output_values,
            module_scope.first_layer_output,
        )
        self.tensors_by_value[id(module_input)], self.tensors_by_value[id(first_layer_output)] = (
            layer_input,
            layer_output,
        )
        self.run_module(ModuleFrame(module_scope))
        output_tensor = self.tensor_of(module_output)
        for recorded_value in (module_input, first_layer_output):
            self.tensors_by_value.pop(id(recorded_value), None)
        self.free_value(module_output.storage)
        return output_tensor

    def _free_layer_input(self, layer_input: Value) -> None:
        """Frees a layer's input, or only the layer's reference if other layers read the input."""
        self.tensors_by_value.pop(id(layer_input), None)
        if id(layer_input.storage) not in self.shared_value_ids:
            self.free_value(layer_input.storage)

    def run_layer(self, module_call: ModuleFrame, x: Tensor) -> Tensor:
        """Runs one layer on the output of the previous layer."""
        layer_input, layer_output = module_call.scope.layer_values
        self.tensors_by_value[id(layer_input)] = x
        self.run_module(module_call)
        output_tensor = self.tensor_of(layer_output)
        self._free_layer_input(layer_input)
        self.free_value(layer_output.storage)
        return output_tensor

    # --- steps -----------------------------------------------------------------------------------------------------

    def run_step(self, operation: Step) -> None:
        """Runs an operation with the profile's method of the same name, unless the results are cached."""
        if (self.has_earlier_tokens or self.absent_value_ids) and self.is_cached_step(operation):
            self.absent_value_ids.update(map(id, operation.output_values))
            self.has_skipped_steps: bool = self.has_skipped_steps or not self.has_earlier_tokens
            self.release_last_reads(operation, operation.input_values)
            return
        kernel = self.kernel_of(operation)
        if kernel is None:
            raise self.unknown_verb_error(operation, operation.verb)
        SIMULATED_WORK.units += UNITS_PER_OPERATION
        kernel(operation)
        self.release_last_reads(operation, operation.input_values)

    def kernel_of(self, operation: Step) -> Callable[[Step], None] | None:
        """Returns the profile's method for an operation; None if the profile has none."""
        return getattr(self, method_name("do", operation.verb), None)

    def is_cached_step(self, operation: Step) -> bool:
        """Whether an operation can be skipped because the cache already has everything that is read of its results."""
        if operation.verb in SKIPPED_WITHOUT_NEW_ROWS:
            return False
        if any(map(self.is_from_earlier_pass, operation.input_values)):
            return True
        return (
            not operation.input_values
            and bool(operation.output_values)
            and all(self.is_computed_earlier(output_value.rows) for output_value in operation.output_values)
        )

    def release_last_reads(self, last_reader: Step | ModuleScope, recorded_values: Iterable[Value]) -> None:
        """Frees the tensors that no later operation reads."""
        last_reader_ids, reader_id = self.last_reader_ids, id(last_reader)
        for recorded_value in recorded_values:
            base_value = recorded_value.storage
            if last_reader_ids.get(id(base_value)) == reader_id:
                self.free_value(base_value)

    # --- steps that need no kernels ---------------------------------------------------------------------------------

    def do_hold(self, operation: Step) -> None:
        """Keeps tensors alive in local variables of the running module, until the module returns."""
        module_frame = self.frames[-2 if operation.options["outside"] else -1]
        for operation_name, recorded_value in zip(operation.options["names"], operation.input_values, strict=True):
            if not self.is_from_earlier_pass(recorded_value):
                module_frame.local_tensors[operation_name] = self.tensor_of(recorded_value)

    def do_keep(self, operation: Step) -> None:
        """Stores tensors under names, for operations later in the pass."""
        for operation_name, recorded_value in zip(operation.options["names"], operation.input_values, strict=True):
            self.pass_memo[operation_name] = self.tensor_of(recorded_value)

    def do_enter(self, operation: Step) -> None:
        """Enters a function inside a module's code; the function has local variables of its own."""
        module_frame = self.frames[-1]
        module_frame.caller_variables.append(module_frame.local_tensors)
        module_frame.local_tensors = {}

    def do_leave(self, operation: Step) -> None:
        """Leaves a function inside a module's code: frees its local variables, and restores the module's."""
        module_frame = self.frames[-1]
        module_frame.local_tensors = module_frame.caller_variables.pop()

    def do_add_output(self, operation: Step) -> None:
        """Adds a second result to the program's results."""
        self.further_outputs.append(self.tensor_of(operation.input_values[0]))

    @compared(torch_witness("tests/simulator/test_dropout.py"))
    def do_dropout(self, operation: Step) -> None:
        """Runs dropout in training, if the model's dropout probability is not 0."""
        self.store_tensor(
            operation.output_values[0],
            self.apply_dropout(self.tensor_of(operation.input_values[0]), operation.options["probability"]),
        )

    def apply_dropout(self, x: Tensor, probability: float) -> Tensor:
        """Returns a tensor after dropout, or unchanged outside of training or with probability 0."""
        return self.aten.dropout(x) if probability and self.run_config.workload.phase == "training" else x


SKIPPED_WITHOUT_NEW_ROWS = frozenset({"cache", "resumed", "keep_entries", "hold", "keep"})
"""Verbs of operations that may read cached tensors instead of values computed in this pass."""

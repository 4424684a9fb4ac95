"""The base class of a rank's kernels, with parameters in module order and persistent tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ....algebra import Number
from ....flow.axis import element_count
from ....flow.program import AlternativeBranches, ModuleScope, Step
from ....flow.record import Flow
from ....flow.value import Value
from ....simulator.autograd import AutogradGraph, backward, needs_autograd_node, record, record_multiple_outputs
from ....simulator.checkpoint import RegionFunction
from ....simulator.lowering import STAGE_INPUT_KEY, Lowering, ModuleFrame, ModulePath
from ....simulator.meter import Block, NoMeter
from ....simulator.strides import Shape
from ....simulator.tensor import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    AutogradNode,
    Dtype,
    Meter,
    NeedsInputGrad,
    OptionalGradient,
    Storage,
    Tensor,
    count_storages_as,
    empty,
)
from ....workload.run_config import RunConfig
from .rank_choices import RankKernelChoices

SavedTensors: TypeAlias = list[Tensor | None]

Gradients: TypeAlias = Sequence[OptionalGradient]

BackwardFunction: TypeAlias = Callable[[SavedTensors, Any, NeedsInputGrad], Gradients]
"""backward(saved_tensors, gradient, needs_input_grad) → a gradient per input.

It frees a saved tensor by setting its place to None.
"""

SHARDED_AXES = frozenset({"heads", "kv_heads", "key_heads", "ffn", "inner", "groups"})
"""Axes that tensor parallelism divides: each rank has a part of a linear layer's outputs along such an axis."""


EMBEDDING_ROLES = ("table", "positions", "segments")
"""Roles of the weights of embedding tables."""


LINEAR_ROLES = ("column", "row", "matrix", "expert")
"""Roles of the weights of linear layers."""


def operations_by_name(module_scope: ModuleScope) -> dict[str, Step]:
    """Returns name → operation, for the named operations of a module outside its submodules."""
    return {step.name: step for step in module_scope.items if isinstance(step, Step) and step.name}


class Parameter(NamedTuple):
    """A parameter as one rank stores it, after tensor and expert parallelism.

    path: the path of its module, and its name.
    tensor: a tensor with the parameter's shape and number format.
    is_expert: whether the parameter belongs to an expert that only some ranks have.
    role: `table` of an embedding, `head` of the output layer, `column`, `row` or `matrix` of a linear layer, or empty.
    is_fp8: whether its elements have 8 bits; false by default.

    A parameter is frozen if its tensor takes no gradient.
    """

    path: ModulePath
    tensor: Tensor
    is_expert: bool
    role: str
    is_fp8: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether the parameter is trained."""
        return self.tensor.needs_grad

    @property
    def element_count(self) -> int:
        """The number of elements of the parameter."""
        size: int = self.tensor.numel
        return size


class UncountedMeter(NoMeter):
    """A meter that returns memory blocks without counting bytes, for weights whose buffers are counted elsewhere."""

    def allocate(self, byte_count: Number) -> Any:
        """Returns a block without counting its bytes."""
        return Block(byte_count, "weights")


GATHER_BUFFER_KEY = "gather buffer"
"""Key, in `PersistentTensors.shared_block_by_key`, of the buffer that all gathered tensors share."""


def detached_copy_of_argument(
    autograd_graph: AutogradGraph,
    argument_gradients: dict[int, Tensor],
    argument_index: int,
    saved_argument: Tensor | None,
) -> Tensor:
    """Returns a detached argument of a recomputed function, whose gradient is stored in `argument_gradients`."""
    assert saved_argument is not None
    detached_tensor = saved_argument.detached()

    def store_gradient(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> Gradients:
        argument_gradients[argument_index] = output_gradient
        return (None,)

    leaf_tensor = empty(UncountedMeter(), (), BFLOAT16, is_leaf=True)
    detached_tensor.node = AutogradNode(autograd_graph, "argument", (leaf_tensor,), store_gradient)
    return detached_tensor


class WeightGatherer(Protocol):
    """Gathers the weights of layers that data-parallel ranks shard."""

    def gather(self, layer_index: int | None) -> None:
        """Gathers the weights of a layer, or with None the weights outside of layers."""

    def run_layer(
        self,
        autograd_graph: AutogradGraph,
        layer_index: int,
        layer_input: Tensor,
        run_modules: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Runs a layer between gathering and freeing its weights, in both passes."""


class PersistentTensors:
    """Tensors that stay allocated after their first use, such as workspaces and communication buffers.

    cublas_workspace_bytes: bytes of a workspace of torch's products.
    engine_workspace_bytes: bytes of a workspace of Transformer Engine's products.
    workspaces: name → workspace.
    gather_buffer: the buffer that gathered tensors share; None before its first use.
    drain_buffers: buffers in which inputs of the output layer are gathered when deferred gradients are computed.
    deferred_gradients: per deferred weight gradient of the output layer, its input, the gradient of its output, and the
        input of the chunk, to which the graph of the output layer's input refers.
    chunk_input: the input of the chunk whose forward pass runs.
    dummy_gradients: shape of a weight → the tensor that stands for its gradient, which the product adds to the main
        gradient.
    tensors_by_module: module → tensors to which it refers until its next forward pass.
    quantized_weights: weight → its 8-bit copy and scales.
    shared_block_by_key: name of a workspace, shape of a weight with a dummy gradient, or `GATHER_BUFFER_KEY` → its
        memory so far. The first chunk that needs such a tensor allocates it.
    """

    def __init__(self, memory_meter: Meter, cublas_bytes: int = 0, engine_bytes: int = 0) -> None:
        self.meter: Meter = memory_meter
        self.cublas_workspace_bytes: int = cublas_bytes
        self.engine_workspace_bytes: int = engine_bytes
        self.workspaces: dict[str, Storage] = {}
        self.gather_buffer: Storage | None = None
        self.drain_buffers: dict[str, Storage] = {}
        self.deferred_gradients: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.chunk_input: Tensor | None = None
        self.dummy_gradients: dict[Shape, Tensor] = {}
        self.tensors_by_module: dict[Any, list[Tensor]] = {}
        self.quantized_weights: dict[int, list[Storage]] = {}
        self.shared_block_by_key: dict[str | Shape, list[Block]] = {}

    def use_torch_workspace(self, thread_name: str) -> None:
        """Allocates torch's cuBLAS workspace for a thread."""
        self._keep_workspace(f"cuBLAS, {thread_name}", self.cublas_workspace_bytes)

    def use_engine_workspace(self) -> None:
        """Allocates Transformer Engine's cuBLAS workspace."""
        self._keep_workspace("Transformer Engine", self.engine_workspace_bytes)

    def use_overlap_workspaces(self) -> None:
        """Allocates the workspaces of products that overlap with communication (`_NUM_MAX_UB_STREAMS`)."""
        self._keep_workspace("Transformer Engine, overlapped", 3 * self.engine_workspace_bytes)

    def use_grouped_workspaces(self) -> None:
        """Allocates the workspaces of grouped products, which use four streams (`get_num_compute_streams`)."""
        for stream_number in range(4):
            self._keep_workspace(f"Transformer Engine, stream {stream_number}", self.engine_workspace_bytes)

    def _keep_workspace(self, workspace_name: str, workspace_bytes: Number) -> None:
        """Allocates the workspace `workspace_name` on first use."""
        if workspace_bytes and workspace_name not in self.workspaces:
            with count_storages_as(self.meter, "overhead"):
                self.workspaces[workspace_name] = Storage(self.meter, workspace_bytes)
            self.shared_block_by_key[workspace_name] = [self.workspaces[workspace_name].block]

    def grow_gather_buffer(self, buffer_bytes: Number) -> None:
        """Enlarges the all-gather buffer to `buffer_bytes` or more; it never shrinks (`GlobalMemoryBuffer`)."""
        if self.gather_buffer is None or self.gather_buffer.bytes < buffer_bytes:
            with count_storages_as(self.meter, "communication"):
                self.gather_buffer = Storage(self.meter, buffer_bytes)
            self.shared_block_by_key.setdefault(GATHER_BUFFER_KEY, []).append(self.gather_buffer.block)

    def defers_gradient(self, deferral_limit: int | None) -> bool:
        """Whether the weight gradient of one more output layer's pass may be deferred (to the end of the step).

        deferral_limit: `RankKernelChoices.wgrad_deferral_limit`.
        """
        return deferral_limit is not None and (deferral_limit == 0 or len(self.deferred_gradients) < deferral_limit)

    def drain_deferred_gradients(self, rank_count: int) -> None:
        """Computes the weight gradients that were deferred (core/utils.py, `drain_embedding_wgrad_compute`).

        Inputs are gathered in two buffers in turn. rank_count: ranks that divide the tokens; 1 if they are not divided.
        """
        for layer_index in range(len(self.deferred_gradients)):
            layer_input, output_gradient, _ = self.deferred_gradients.pop(0)
            buffer_name, buffer_bytes = f"mpu_{layer_index % 2}", layer_input.bytes * rank_count
            if rank_count > 1 and buffer_name not in self.drain_buffers:
                with count_storages_as(self.meter, "communication"):
                    self.drain_buffers[buffer_name] = Storage(self.meter, buffer_bytes)
            del layer_input, output_gradient

    def allocate_causal_mask(self, token_count: Number) -> None:
        """Allocates the causal mask of `token_count` tokens, which stays allocated."""
        self._keep_workspace(f"mask of {token_count}", token_count * token_count)

    def keep_quantized_weight(self, weight: Tensor, buffer_sizes: Sequence[int]) -> None:
        """Allocates a weight's 8-bit copy and scales. buffer_sizes: bytes of each tensor."""
        if id(weight) not in self.quantized_weights:
            with count_storages_as(self.meter, "weights"):
                self.quantized_weights[id(weight)] = [
                    Storage(self.meter, buffer_bytes) for buffer_bytes in buffer_sizes
                ]

    def dummy_gradient(self, weight: Tensor, autograd_graph: AutogradGraph) -> Tensor:
        """Returns the dummy gradient of a weight, which all weights of a shape share.

        Source: Transformer Engine, module/base.py, `get_dummy_wgrad`.
        """
        gradient = self.dummy_gradients.get(weight.shape)
        if gradient is None:
            with count_storages_as(self.meter, "gradients"):
                gradient = self.dummy_gradients[weight.shape] = empty(self.meter, weight.shape, BFLOAT16)
            self.shared_block_by_key[weight.shape] = [gradient.storage.block]
        return gradient


class RankKernels(Lowering):
    """Runs the model's program on one rank. Every tensor is two-dimensional: rows × row elements.

    rank_choices: which kernels run.
    persistent: tensors that stay between passes.
    ordered_parameters: the parameters in the order in which the framework creates them.
    role, is_in_expert, is_in_adapter: role of the parameter that is created, and whether it belongs to an expert or
        adapter.
    norm_outputs: outputs of norms fused with products, which adapters read; None without adapters.
    module_of_step: step → the module in which it runs.
    pending_outputs: step → its output, which a fused product has computed already.
    deferred_norms: value → the norm that the next column product computes.
    fused_norms: id of a norm's step → whether the products that read it compute it.
    modules_without_kernel: id of a module → a module whose operations run one by one.
    deferred_parameters: parameters that the framework creates after those of the next module.
    """

    def __init__(
        self,
        autograd_graph: AutogradGraph,
        run_config: RunConfig,
        rank_choices: RankKernelChoices,
        persistent_tensors: PersistentTensors,
    ) -> None:
        super().__init__(autograd_graph, run_config, BFLOAT16)
        self.rank_choices: RankKernelChoices = rank_choices
        self.persistent: PersistentTensors = persistent_tensors
        self.ordered_parameters: list[Parameter] = []
        self.role: str = ""
        self.is_in_expert: bool = False
        self.is_in_adapter: bool = False
        self.norm_outputs: list[Tensor] | None = None
        self.readers_by_storage: dict[int, list[tuple[Step, ModuleScope]]] = {}
        self.module_of_step: dict[int, ModuleScope] = {}
        self.pending_outputs: dict[int, Tensor] = {}
        self.deferred_norms: dict[int, tuple[Step, ModulePath]] = {}
        self.fused_norms: dict[int, bool] = {}
        self.modules_without_kernel: dict[int, ModuleScope] = {}
        self.dropout_outputs: set[int] = set()
        self.has_stage_input: bool = False
        self.activation_bias: Tensor | None = None
        self.row_bias: Tensor | None = None
        self.top_k = self.expert_count = 1
        self.dispatched_token_count: Number = 0
        self.dispatch_handle: list[Tensor] = []
        self.detached_input: list[Tensor] = []
        self.weight_gathering: WeightGatherer | None = None
        self.deferred_parameters: list[Parameter] = []
        self.split_outputs: dict[int, tuple[Value, ...]] = {}
        self.empty_storage: Storage = Storage(NoMeter(), 0)

    # --- a program ---------------------------------------------------------------------------------------------------

    def parameters_of(self, program: Flow) -> list[Parameter]:
        """Returns the parameters of the rank's layers, found by a run that counts no memory."""
        unmetered_kernels = type(self)(
            AutogradGraph(NoMeter()), self.run_config, self.rank_choices, PersistentTensors(NoMeter())
        )
        unmetered_kernels.graph.is_grad_enabled = False
        unmetered_kernels.included_parts = self.included_parts
        unmetered_kernels.first_layer_index = self.first_layer_index
        unmetered_kernels.run_repeats_by_stack = self.run_repeats_by_stack
        stage_input = None
        stage_input_value = program.stage_input
        if stage_input_value is not None:
            stage_input = unmetered_kernels.graph.new_tensor(
                (self.local_rows(self.rows(stage_input_value)), stage_input_value.width), BFLOAT16
            )
        unmetered_kernels.run_rank(program, stage_input)
        self.weights.update(unmetered_kernels.weights)
        position_tables = [
            parameter for parameter in unmetered_kernels.ordered_parameters if parameter.role in EMBEDDING_ROLES
        ]  # the embedding is made before the layers
        self.ordered_parameters = [
            *position_tables,
            *(parameter for parameter in unmetered_kernels.ordered_parameters if parameter.role not in EMBEDDING_ROLES),
        ]
        return self.ordered_parameters

    def run_rank(self, program: Flow, stage_input: Tensor | None) -> Tensor:
        """Runs the program of a pipeline stage. stage_input: the hidden states received from the previous stage."""
        self.pending_outputs = {}
        if not self.readers_by_storage:
            self._index_operations(program.root, program.root)
        self.has_stage_input = program.stage_input is not None
        if stage_input is not None:
            self.inputs[STAGE_INPUT_KEY] = stage_input
        del stage_input
        return self.run(program)

    def _index_operations(self, module_scope: ModuleScope, module: ModuleScope) -> None:
        """Collects the operations that read each value, and the module of each operation."""
        for module_item in module_scope.items:
            if isinstance(module_item, AlternativeBranches):
                self._index_operations(next(iter(module_item.branches.values())), module)
            elif isinstance(module_item, ModuleScope):
                self._index_operations(module_item, module_item)
            else:
                self.module_of_step[id(module_item)] = module
                for input_value in module_item.input_values:
                    if module_item.verb not in ("hold", "keep", "cache", "mask"):
                        self.readers_by_storage.setdefault(id(input_value.storage), []).append((module_item, module))

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, program_value: Value) -> Number:
        """Returns a value's number of rows (tokens) per micro-batch, before tensor-parallel ranks divide the rows."""
        return self.run_config.rows(program_value.rows)

    def local_rows(self, row_count: Number) -> Number:
        """Returns the number of rows on this rank with sequence parallelism."""
        return row_count // self.rank_choices.tp if self.rank_choices.sequence_parallel else row_count

    # --- parameters --------------------------------------------------------------------------------------------------

    def parameter(self, parameter_key: ModulePath, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        """Returns a parameter, created on first use."""
        if parameter_key not in self.weights:
            is_trained = self.rank_choices.adapters is None or self.is_in_adapter
            self.weights[parameter_key] = weight_tensor = empty(UncountedMeter(), shape, BFLOAT16, is_leaf=is_trained)
            is_fp8 = (
                self.rank_choices.has_fp8_weights and self.runs_in_fp8 and len(shape) == 2 and self.role in LINEAR_ROLES
            )
            self.ordered_parameters.append(
                Parameter(parameter_key, weight_tensor, self.is_in_expert, self.role, is_fp8)
            )
        return self.weights[parameter_key]

    @property
    def runs_in_fp8(self) -> bool:
        """Whether the current layer has 8-bit matrix products."""
        return False

    def with_role(self, tensor_role: str, make_tensor: Callable[[], Tensor]) -> Tensor:
        """Creates a parameter with `make_tensor`, and marks the parameter with a role such as the output head."""
        previous_role, self.role = self.role, tensor_role
        try:
            return make_tensor()
        finally:
            self.role = previous_role

    def run_module(self, module_call: ModuleFrame) -> None:
        """Runs a module, with recomputation in the backward pass if its kind is selected."""
        module_scope = module_call.scope
        module_input, module_output = module_scope.module_argument, module_scope.output
        is_recomputed = (
            module_scope.node_fields.get("kind") in self.rank_choices.recomputed_module_kinds
            and module_call.layer_index is None
        )
        if not is_recomputed or module_input is None or module_output is None:
            super().run_module(module_call)
            return
        outer_frames = self._copy_frames()

        def run_module(arguments: Sequence[Tensor]) -> Tensor:
            """Runs the module on its argument, so that no other tensors of the caller stay referenced."""
            caller_state = self.tensors_by_value, self.view_ids, self.frames, self.pass_memo
            self.tensors_by_value = {id(module_input): arguments[0]}
            self.view_ids = {}
            self.frames = list(outer_frames)
            self.pass_memo = {}
            try:
                self._run_module_items(ModuleFrame(module_scope))
                return self.tensor_of(module_output)
            finally:
                self.tensors_by_value, self.view_ids, self.frames, self.pass_memo = caller_state

        checkpointed_output = self.checkpoint(run_module, [self.tensor_of(module_input)])
        if self.last_reader_ids.get(id(module_input.storage)) in {id(operation) for operation in module_scope.steps()}:
            self.free_value(module_input.storage)
        self.store_without_reshape(module_output, checkpointed_output)

    def _run_module_items(self, module_call: ModuleFrame) -> None:
        """Runs a module, and puts its new parameters into Megatron-LM's order.

        Attention creates its output projection first, a mixture of experts its shared experts last, and a model its
        pooler after the head, with the scores before the vector.
        """
        first_parameter_index, module_scope = len(self.ordered_parameters), module_call.scope
        super()._run_module_items(module_call)
        parameters = self.ordered_parameters[first_parameter_index:]
        if not parameters and not self.deferred_parameters:
            return
        module_kind = module_scope.node_fields.get("kind")
        if any(operation.verb == "attention" for operation in operations_outside_submodules(module_scope)):
            self.ordered_parameters[first_parameter_index:] = sorted(
                parameters, key=lambda parameter: parameter.role != "row"
            )
        elif module_kind == "shared_expert":
            self.deferred_parameters += parameters
            del self.ordered_parameters[first_parameter_index:]
        elif module_kind == "pooler":
            parameter_pairs = [parameters[i : i + 2] for i in range(0, len(parameters), 2)]  # a weight and a bias
            self.deferred_parameters = [
                parameter for weight_and_bias in reversed(parameter_pairs) for parameter in weight_and_bias
            ]
            del self.ordered_parameters[first_parameter_index:]
        elif module_kind in ("experts", "lm_head") and module_scope.module_argument is not None:
            self.ordered_parameters += self.deferred_parameters
            self.deferred_parameters = []

    # --- operations --------------------------------------------------------------------------------------------------

    def new_tensor(self, row_count: Number, row_width: Number, dtype: Dtype = BFLOAT16) -> Tensor:
        """Allocates a tensor [rows, width]."""
        return self.graph.new_tensor((row_count, row_width), dtype)

    def empty_like(self, x: Tensor) -> Tensor:
        """Allocates a tensor of the shape and number format of x."""
        return self.graph.new_tensor(x.shape, x.dtype)

    def record_node(
        self,
        operation_name: str,
        input_tensors: Sequence[Tensor],
        output_tensors: Sequence[Tensor],
        backward: BackwardFunction,
        *tensors_to_save: Tensor,
    ) -> None:
        """Records an autograd node whose backward function may free saved tensors early."""
        graph = self.graph
        if not needs_autograd_node(graph, input_tensors):
            return
        saved_tensors: SavedTensors = [graph.save_uncheckpointed(tensor).unpack() for tensor in tensors_to_save]

        def run_backward(gradients: Any, needs_input_grad: NeedsInputGrad) -> Gradients:
            return backward(saved_tensors, gradients, needs_input_grad)

        if len(output_tensors) == 1:
            record(graph, operation_name, input_tensors, output_tensors[0], run_backward)
        else:
            record_multiple_outputs(graph, operation_name, input_tensors, output_tensors, run_backward)

    def node_with_new_gradients(
        self, operation_name: str, input_tensors: Sequence[Tensor], output_tensor: Tensor, *tensors_to_save: Tensor
    ) -> Tensor:
        """Records an autograd node whose backward function allocates a gradient per input, and returns the output.

        Gradients have the format of the output's gradient.
        """
        new_tensor, input_shapes = self.graph.new_tensor, [x.shape for x in input_tensors]
        self.record_node(
            operation_name,
            input_tensors,
            [output_tensor],
            lambda _, g, needs: [new_tensor(shape, g.dtype) for shape in input_shapes],
            *tensors_to_save,
        )
        return output_tensor

    def copy_reordered(self, operation_name: str, x: Tensor, copy_shape: Shape) -> Tensor:
        """Copies a tensor into another order or to other ranks, and the gradient back in the backward pass."""
        new_tensor, input_shape = self.graph.new_tensor, x.shape
        return record(
            self.graph,
            operation_name,
            (x,),
            new_tensor(copy_shape, x.dtype),
            lambda g, _: (new_tensor(input_shape, g.dtype),),
        )

    def checkpoint(self, compute: RegionFunction, arguments: Sequence[Tensor]) -> Tensor:
        """Runs a function under activation checkpointing: saves only its arguments, and reruns it in the backward pass.

        Source: core/tensor_parallel/random.py, `CheckpointFunction`.
        """
        autograd_graph = self.graph
        if not needs_autograd_node(autograd_graph, arguments):
            return compute(arguments)

        def checkpoint_backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            """Recomputes the function with autograd, then runs the backward pass."""
            argument_gradients: dict[int, Tensor] = {}
            was_enabled, autograd_graph.is_grad_enabled = autograd_graph.is_grad_enabled, True
            outer_position = autograd_graph.meter.place
            recomputed_output = compute(
                [
                    detached_copy_of_argument(autograd_graph, argument_gradients, i, saved_tensor)
                    for i, saved_tensor in enumerate(saved_tensors)
                ]
            )
            backward(autograd_graph, recomputed_output, output_gradient)
            autograd_graph.is_grad_enabled, autograd_graph.meter.place = was_enabled, outer_position
            return [argument_gradients.get(i) for i in range(len(saved_tensors))]

        with autograd_graph.no_grad():
            function_output = compute(arguments)
        self.record_node("checkpoint", arguments, [function_output], checkpoint_backward, *arguments)
        return function_output

    def dense_copy(self, x: Tensor) -> Tensor:
        """Returns a contiguous copy of a tensor."""
        contiguous_copy = self.graph.new_tensor(x.shape, x.dtype)
        return record(self.graph, "copy", (x,), contiguous_copy, lambda g, _: (g,))

    def contiguous(self, x: Tensor) -> Tensor:
        """Returns the tensor itself if it is contiguous, otherwise a copy."""
        return x if x.is_contiguous else self.dense_copy(x)

    def weight_gradient(self, weight: Tensor) -> Tensor | None:
        """Returns a weight's gradient, or a dummy if the matrix product accumulates into the main gradient itself.

        A frozen weight has none.
        """
        if not weight.needs_grad:
            return None
        if self.rank_choices.fuses_gradient_accumulation:
            return self.persistent.dummy_gradient(weight, self.graph)
        return self.graph.new_tensor(weight.shape, BFLOAT16)

    def dropout_mask(self, x: Tensor) -> Tensor:
        """Allocates a dropout mask, one byte per element."""
        return self.graph.new_tensor(x.shape, BOOL)

    @property
    def adapters_read_gathered_rows(self) -> bool:
        """Whether adapters of column-parallel layers read the rows gathered for the product."""
        adapters = self.rank_choices.adapters
        return adapters is not None and adapters.library == "megatron-bridge"

    def new_row_statistics(self, row_count: Number) -> Tensor:
        """Allocates a norm's statistics, one fp32 number per row."""
        return self.graph.new_tensor((row_count, 1), FLOAT32)

    def element_count(self, shape: Any) -> Number:
        """Returns the number of elements of a shape on this rank."""
        return element_count(shape)


def operations_outside_submodules(module_scope: ModuleScope) -> Iterator[Step]:
    """Yields a module's own operations, of alternative branches only those of the first branch."""
    for module_item in module_scope.items:
        if isinstance(module_item, Step):
            yield module_item
        elif isinstance(module_item, AlternativeBranches):
            yield from operations_outside_submodules(next(iter(module_item.branches.values())))

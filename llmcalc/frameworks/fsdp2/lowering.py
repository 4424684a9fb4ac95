"""Runs a compute graph with torch's `fully_shard` applied to every layer and to the whole model.

The hooks of a group run around its module, outside of a checkpoint inside it, as in torchtitan
(torchtitan/models/llama3/infra/parallelize.py). Further inputs of a layer pass no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...algebra import Number, ceil_div
from ...components.base import TORCH_WITNESS
from ...components.norm import Norm
from ...evidence import compared
from ...flow.program import UNEXECUTED_ROLES, ModuleScope, Step
from ...flow.record import Flow
from ...simulator.autograd import record
from ...simulator.lowering import STAGE_INPUT_KEY, ModuleFrame, ModulePath
from ...simulator.meter import AllocationPlace
from ...simulator.profiles.context_parallel import RingAttentionKernels
from ...simulator.strides import Shape
from ...simulator.tensor import FLOAT8, INT64, UINT8, Dtype, Tensor, empty
from .param_groups import CommunicationState, Parameter, ParamGroup, UnwrappedGroup


class ParamGroupKey(NamedTuple):
    """The key of an FSDP parameter group: a layer of a stack, or the experts of a layer.

    path: the path of the stack's layers. layer_index: the index of the layer.
    is_experts_group: whether they are the layer's experts, which other ranks shard; false by default.
    """

    path: str
    layer_index: int
    is_experts_group: bool = False


MODEL_GROUP = ParamGroupKey("", -1)
"""Key of the group that contains all parameters outside of other groups."""

EMBEDDING_GROUP, HEAD_GROUP = ParamGroupKey("embed_tokens", -1), ParamGroupKey("norm, lm_head", -1)
"""Keys of the groups of the embedding, and of last norm and output layer, in torchtitan since 2025-07-28."""

HEAD_MODULES = ("norm", "lm_head")
"""Paths of the modules in `HEAD_GROUP`; a model has one or both."""


TORCHTITAN_NAMES = {
    "q_proj": "attention.wq",
    "k_proj": "attention.wk",
    "v_proj": "attention.wv",
    "o_proj": "attention.wo",
    "gate_proj": "feed_forward.w1",
    "down_proj": "feed_forward.w2",
    "up_proj": "feed_forward.w3",
    "lm_head": "output",
}
"""Path of a linear layer within a layer → torchtitan's path (models/llama3/model.py)."""

UNREAD_LAYERS = "layers that no pass runs"
"""The name of the group of all layers of which no pass runs any."""

SHARED_LAYERS_REFUSAL = "FSDP2 of layers that share parameters is not modelled; expected --framework deepspeed"


class FsdpProfile(RingAttentionKernels):
    """Runs a compute graph with FSDP2's hooks, which gather and free groups of sharded parameters.

    communication_state: the communication state of the groups; None in a run that only lists the parameters.
    stack_paths: per stack, the path of its layers.
    outer_group_keys: the groups of parameters outside the layers, beside the group of the model.
    groups: the group of the model first, and the group of each layer.
    sharded: the parameters by their paths, in the order of their first use.
    """

    communication_state: CommunicationState | None = None
    stack_paths: Collection[str] = ()
    outer_group_keys: Collection[ParamGroupKey] = ()

    def shard(
        self,
        communication_state: CommunicationState,
        stack_paths: Collection[str],
        outer_group_keys: Collection[ParamGroupKey],
    ) -> None:
        """Makes all parameters created from now on sharded.

        outer_group_keys: the groups of parameters outside the layers, beside the group of the model.
        """
        self.communication_state: CommunicationState = communication_state
        self.stack_paths: Collection[str] = stack_paths
        self.outer_group_keys = outer_group_keys
        self.groups: dict[ParamGroupKey, ParamGroup] = {
            MODEL_GROUP: ParamGroup(communication_state, "", reshards_after_forward=False)
        }
        self.sharded: dict[ModulePath, Parameter] = {}

    # --- parameters -------------------------------------------------------------------------------------------------

    def allocate_parameters(self, program: Flow) -> None:
        """Allocates the parameters' shards in each group's order, and determines which modules are the output head."""
        super().allocate_parameters(program)
        layer_norms = layer_norm_names(program)
        for parameter_group in self.groups.values():
            parameter_group.parameters.sort(
                key=module_order_key([parameter.path for parameter in parameter_group.parameters], layer_norms)
            )
        if not self.groups[MODEL_GROUP].parameters:
            del self.groups[MODEL_GROUP]
        self.in_head: list[str] = [
            scope.name for scope in program.root.items if isinstance(scope, ModuleScope) and scope.name in HEAD_MODULES
        ]

    def create_parameter(self, parameter_key: ModulePath, template: Tensor) -> Tensor:
        """Creates a parameter's shard and returns the unsharded parameter; buffers are not sharded."""
        assert self.communication_state is not None
        sharding = self.communication_state.sharding
        if parameter_key in self.buffers:
            shard_dtype = sharding.frozen_dtype or sharding.dtype
            return empty(
                self.graph.meter, template.shape, shard_dtype if template.dtype is self.dtype else template.dtype
            )
        if not template.shape:
            raise self.unsupported("fully_shard takes no parameter without rows", self.parameter_name(parameter_key))
        group_key = self.group_key_of_parameter(parameter_key)
        if sharding.expert_sharding is not None and len(template.shape) == 3 and group_key.layer_index >= 0:
            group_key, sharding = group_key._replace(is_experts_group=True), sharding.expert_sharding
        is_eight_bits = template.dtype is UINT8 or self.gathers_float8(parameter_key, template)
        element_bytes = FLOAT8.bytes if is_eight_bits else sharding.gathered_dtype.bytes
        parameter = self.sharded[parameter_key] = Parameter(
            self.graph.meter, parameter_key, template, sharding, element_bytes, self.has_partial_gradient(parameter_key)
        )
        if group_key not in self.groups:
            group_name = group_key.path if group_key.layer_index < 0 else f"{group_key.path}.{group_key.layer_index}"
            group_class = ParamGroup if sharding.is_wrapped else UnwrappedGroup
            self.groups[group_key] = group_class(
                self.communication_state, group_name, group_key != HEAD_GROUP, sharding
            )
        self.groups[group_key].parameters.append(parameter)
        return parameter.unsharded_param

    def _new_quantized_weight(self, group_name: str, row_count: Number, column_count: Number) -> Tensor:
        """Returns a quantized weight's 4-bit codes, of which a rank has a shard; scales are whole on every rank.

        Source: bitsandbytes/nn/modules.py, `Params4bit`, whose `quant_state` holds the scales. torchao's scales are
        sharded with the codes (torchao/dtypes/nf4tensor.py, `_INNER_TENSOR_NAMES_FOR_SHARDING`).
        """
        assert self.adapters is not None
        if self.adapters.library == "torchtune":
            stored_bytes = self.adapters.stored_bytes(row_count, column_count)
            return self.parameter((*self.module_path(), f"{group_name}.weight"), (stored_bytes,), UINT8, trained=False)
        code_bytes = ceil_div(row_count * column_count, 2)
        weight_path = (*self.module_path(), f"{group_name}.weight")
        scales_path = (*weight_path[:-1], f"{group_name}.quant_state")
        self.buffers.add(scales_path)
        self.parameter(
            scales_path, (self.adapters.stored_bytes(row_count, column_count) - code_bytes,), UINT8, trained=False
        )
        return self.parameter(weight_path, (code_bytes,), UINT8, trained=False)

    def gathers_float8(self, parameter_key: ModulePath, template: Tensor) -> bool:
        """Whether a parameter is the weight of a float8 linear layer, so that float8 elements are all-gathered."""
        assert self.communication_state is not None
        float8_settings = self.communication_state.sharding.float8
        if float8_settings is None or not float8_settings.gathers_float8 or len(template.shape) != 2:
            return False
        layer_name = self.parameter_name(parameter_key).removesuffix(".weight")
        if layer_name == EMBEDDING_GROUP.path:
            return False
        row_count, column_count = self.unsharded_shape(parameter_key, template.shape)
        return float8_settings.is_converted(torchtitan_path(layer_name), row_count, column_count)

    def unsharded_shape(self, parameter_key: ModulePath, shape: Shape) -> Shape:
        """Returns the shape that a parameter has before tensor parallelism divides it."""
        return shape

    def has_partial_gradient(self, parameter_key: ModulePath) -> bool:
        """Whether the rank's gradient of a parameter must be summed over the tensor-parallel group."""
        return False

    def allocate_unread_parameters(self, program: Flow) -> None:
        """Does nothing; `_find_unread_parameters` has already added these parameters to groups."""

    def _mark_output_as_absent(self, module_scope: ModuleScope) -> None:
        super()._mark_output_as_absent(module_scope)
        role = module_scope.node_fields.get("role")
        is_run_by_others = role == "kept" and module_scope.has_parameters_per_layer
        if self.only_finds_parameters and role in UNEXECUTED_ROLES and not is_run_by_others:
            self._find_unread_parameters(module_scope)

    def _find_unread_parameters(self, module_scope: ModuleScope) -> None:
        """Adds parameters of modules that never run to the FSDP group of the enclosing module.

        A group is gathered as a whole, and reduces the gradients that there are (`FSDPParamGroup.post_backward`).
        Layers of which none runs are groups that are never gathered.
        """
        first_part = UNREAD_LAYERS if module_scope.first_input is not None else module_scope.name
        for node_number, node_position in enumerate(module_scope.node().walk()):
            counted_op, node_name = node_position.counted_op, node_position.node.name
            if counted_op is None or module_scope.node_fields.get("optional"):
                continue
            buffer_index = len(counted_op.tensors()) if counted_op.has_effect("buffers") else None
            for copy_index in range(node_position.copies):
                module_path = (*self.module_path(), first_part, node_number, copy_index)
                for tensor_index, tensor in enumerate(self.unread_parameters(node_name, counted_op)):
                    parameter_key = (*module_path, f"{node_name}.{tensor_index}")
                    if tensor_index == buffer_index:
                        self.buffers.add(parameter_key)
                    self.parameter(parameter_key, tensor.shape, tensor.dtype, tensor.is_leaf)

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        """Returns the path and the shard of every trained parameter."""
        return [(path, parameter.shard) for path, parameter in self.sharded.items() if parameter.shard.is_leaf]

    def parameter(self, parameter_key: ModulePath, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        """Returns the unsharded parameter. Raises an error if it belongs to a layer that is not running."""
        if self.communication_state is not None and parameter_key in self.sharded:
            group_key = self.group_key_of_parameter(parameter_key)
            if group_key.layer_index >= 0 and group_key != self.current_group_key:
                raise self.unsupported(SHARED_LAYERS_REFUSAL, self.parameter_name(parameter_key))
        return super().parameter(parameter_key, shape, dtype, trained)

    def group_key_of_parameter(self, parameter_key: ModulePath) -> ParamGroupKey:
        """Returns the key of a parameter's FSDP group: a layer, the embedding, the head, or the whole model."""
        if self.outer_group_keys and len(parameter_key) > 1:
            top_module = str(parameter_key[1]).partition(".")[0]
            outer_group = (
                EMBEDDING_GROUP
                if top_module == EMBEDDING_GROUP.path
                else HEAD_GROUP
                if top_module in HEAD_MODULES
                else MODEL_GROUP
            )
            if outer_group in self.outer_group_keys:
                return outer_group
        if UNREAD_LAYERS in parameter_key:
            return ParamGroupKey(UNREAD_LAYERS, 0)
        module_names: list[str] = []
        for path_part in parameter_key[1:]:
            if type(path_part) is not int:
                module_names += [path_part] if path_part else []
            elif ".".join(module_names) in self.stack_paths:
                return ParamGroupKey(".".join(module_names), path_part)
        return MODEL_GROUP

    def parameter_name(self, parameter_key: ModulePath) -> str:
        """Returns a parameter's path as one string."""
        return ".".join(str(path_part).strip(".") for path_part in parameter_key[1:] if path_part != "")

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def current_group_key(self) -> ParamGroupKey:
        """The key of the layer that is running, or `MODEL_GROUP` outside of the layers."""
        module_names: list[str] = []
        for module_call in self.frames[1:]:
            module_names += [module_call.scope.name] if module_call.scope.name else []
            if module_call.layer_index is not None and ".".join(module_names) in self.stack_paths:
                return ParamGroupKey(".".join(module_names), module_call.layer_index)
        return MODEL_GROUP

    def norm(
        self, x: Tensor, spec: Norm, norm_name: str, shape: Any, groups: Any = 1, module_path: ModulePath | None = None
    ) -> Tensor:
        """Runs a norm; if torchtitan compiles layers, norms inside layers run as compiled kernels (`apply_compile`)."""
        kernel_choices = self.choices
        if kernel_choices.compiled and self.current_group_key == MODEL_GROUP:
            self.choices = replace(kernel_choices, compiled=False)
        try:
            return super().norm(x, spec, norm_name, shape, groups, module_path)
        finally:
            self.choices = kernel_choices

    def run(self, program: Flow) -> Tensor:
        """Runs the compute graph; the whole model's group is gathered before and freed after."""
        if self.communication_state is None:
            return super().run(program)
        root_group = self.groups.get(MODEL_GROUP)
        if root_group is not None:
            stage_input = self.inputs.get(STAGE_INPUT_KEY) if program.stage_input is not None else None
            cast_stage_input = root_group.pre_forward(stage_input)
            if cast_stage_input is not None:
                self.inputs[STAGE_INPUT_KEY] = cast_stage_input
            del stage_input, cast_stage_input
        model_output = super().run(program)
        if root_group is not None:
            root_group.post_forward([model_output, *self.further_outputs], is_last_group=True)
        self.communication_state.last_all_gather_buffer = None  # the last gathering of the forward pass
        return model_output

    def run_step(self, operation: Step) -> None:
        """Runs one operation; the FSDP group of an embedding is gathered before it and freed after it."""
        is_embedding = (
            len(self.frames) <= 1 and operation.name == EMBEDDING_GROUP.path and bool(operation.output_values)
        )
        if self.communication_state is None or EMBEDDING_GROUP not in self.outer_group_keys or not is_embedding:
            super().run_step(operation)
            return
        embedding_group = self.groups[EMBEDDING_GROUP]
        embedding_group.pre_forward(None)
        super().run_step(operation)
        embedding_group.post_forward([self.tensor_of(operation.output_values[0])])

    def run_module(self, module_call: ModuleFrame) -> None:
        """Runs a module; the FSDP group of the output head is gathered before it and freed after it."""
        module_scope = module_call.scope
        is_in_head = HEAD_GROUP in self.outer_group_keys and len(self.frames) == 1 and module_scope.name in HEAD_MODULES
        if self.communication_state is None or not is_in_head:
            super().run_module(module_call)
            return
        assert module_scope.module_argument is not None
        assert module_scope.output is not None
        head_group = self.groups[HEAD_GROUP]
        if module_scope.name == self.in_head[0]:
            cast_input = head_group.pre_forward(self.tensor_of(module_scope.module_argument))
            assert cast_input is not None
            self.tensors_by_value[id(module_scope.module_argument)] = cast_input
        super().run_module(module_call)
        if module_scope.name == self.in_head[-1]:
            head_group.post_forward([self.tensor_of(module_scope.output)])

    def run_layer(self, module_call: ModuleFrame, x: Tensor) -> Tensor:
        """Runs a layer between gathering and freeing its FSDP groups."""
        layer_index = -1 if module_call.layer_index is None else module_call.layer_index
        layer_path = ".".join(filter(None, (self.path, module_call.scope.name)))
        if self.communication_state is None or layer_path not in self.stack_paths:
            return super().run_layer(module_call, x)
        layer_key, memory_meter = ParamGroupKey(layer_path, layer_index), self.graph.meter
        if layer_key not in self.groups:
            raise self.unsupported(SHARED_LAYERS_REFUSAL, module_call.scope.name)
        layer_groups = groups_of_layer(self.groups, layer_key)
        outer_allocation_place = memory_meter.place
        memory_meter.place = AllocationPlace(memory_meter.place.phase, layer_index, layer_path)
        cast_input: Tensor | None = x
        for parameter_group in layer_groups:
            cast_input = parameter_group.pre_forward(cast_input)
        assert cast_input is not None
        layer_output = super().run_layer(module_call, cast_input)
        module_call.local_tensors.clear()  # the variables of its forward pass
        for parameter_group in layer_groups:
            parameter_group.post_forward([layer_output])
        memory_meter.place = outer_allocation_place
        return layer_output

    # --- experts of other ranks -------------------------------------------------------------------------------------

    @compared(TORCH_WITNESS)
    def do_dispatch(self, operation: Step) -> None:
        """Sends tokens' rows to the ranks of their experts, and sorts the received rows by expert.

        Source: torchtitan, models/common/token_dispatcher.py, `AllToAllTokenDispatcher.dispatch`. Routing is even.
        """
        super().do_dispatch(operation)
        dispatched_rows = operation.output_values[0]
        if self.exchanges_token_rows and operation.input_values[0].rows != dispatched_rows.rows:
            received_rows = self._exchange_rows(
                self.flat_rows(self.tensor_of(dispatched_rows), len(dispatched_rows.axes))
            )
            self.store_tensor(dispatched_rows, self._sort_rows_by_expert(received_rows))

    @compared(TORCH_WITNESS)
    def do_combine(self, operation: Step) -> None:
        """Sends the experts' output rows back to their tokens' ranks, in the original order."""
        if self.exchanges_token_rows:
            expert_rows = operation.input_values[0]
            combined_rows = self.flat_rows(self.tensor_read_by(operation, expert_rows), len(expert_rows.axes))
            self.tensors_by_value[id(expert_rows)] = self._exchange_rows(self._sort_rows_by_expert(combined_rows))
        super().do_combine(operation)

    @property
    def exchanges_token_rows(self) -> bool:
        """Whether experts are divided over ranks, so that ranks exchange rows of tokens."""
        return self.communication_state is not None and self.communication_state.sharding.expert_sharding is not None

    def _sort_rows_by_expert(self, expert_rows: Tensor) -> Tensor:
        """Reorders the rows of tokens by expert; autograd saves the index of the new order."""
        return self.aten.index_select(expert_rows, self.aten.new_tensor((expert_rows.shape[0],), INT64))

    def _exchange_rows(self, token_rows: Tensor) -> Tensor:
        """Sends token rows between ranks by an all-to-all; the backward pass sends gradients likewise."""
        return record(
            self.graph,
            "all_to_all_single",
            [token_rows],
            self.aten.new_like(token_rows),
            lambda gradient, *_: [self.aten.new_like(gradient)],
        )


def groups_of_layer(group_by_key: Mapping[ParamGroupKey, ParamGroup], layer_key: ParamGroupKey) -> list[ParamGroup]:
    """Returns the FSDP groups of a layer in the order of their all-gathers, the group of experts last."""
    layer_keys = (layer_key, layer_key._replace(is_experts_group=True))
    return [group_by_key[group_key] for group_key in layer_keys if group_key in group_by_key]


def torchtitan_path(layer_path: str) -> str:
    """Returns a linear layer's path in torchtitan; other paths are returned unchanged."""
    *parent_names, last_name = layer_path.split(".")
    return ".".join((*parent_names[:-1], TORCHTITAN_NAMES[last_name])) if last_name in TORCHTITAN_NAMES else layer_path


def layer_norm_names(program: Flow) -> frozenset[str]:
    """Returns the names of norms that are direct children of layers."""
    layers = (module_scope for module_scope in program.root.scopes() if module_scope.first_input is not None)
    submodules = (scope_item for scope in layers for scope_item in scope.items if isinstance(scope_item, ModuleScope))
    return frozenset(scope_item.name for scope_item in submodules if scope_item.node_fields.get("kind") == "norm")


def module_order_key(
    parameter_paths: Sequence[ModulePath], layer_norms: Collection[str]
) -> Callable[[Parameter], tuple[bool, int, bool]]:
    """Returns a sort key that puts a group's parameters in the order of `nn.Module.named_parameters`.

    The program has parameters in the order of their use. A module has its weight before its bias, and a layer has its
    sublayers before its norms, as in transformers, torchtitan and the reference. The order matters because the last
    gradient of a group lives longer than the others.

    parameter_paths: paths of the parameters in the order of their use.
    layer_norms: names of the norms right below a layer.
    """
    module_positions: dict[ModulePath, int] = {}
    for parameter_path in parameter_paths:
        module_positions.setdefault(_module_path_of(parameter_path), len(module_positions))

    def position_in_module_order(parameter: Parameter) -> tuple[bool, int, bool]:
        layer_index = next(
            (i for i, path_part in enumerate(parameter.path) if type(path_part) is int), len(parameter.path)
        )
        is_layer_norm = (
            parameter.path[layer_index + 1 : layer_index + 2] != () and parameter.path[layer_index + 1] in layer_norms
        )
        return (
            is_layer_norm,
            module_positions[_module_path_of(parameter.path)],
            str(parameter.path[-1]).endswith("bias"),
        )

    return position_in_module_order


def _module_path_of(parameter_path: ModulePath) -> ModulePath:
    """Returns the path of a parameter's module."""
    *parent_path, parameter_name = parameter_path
    return (*parent_path, str(parameter_name).rpartition(".")[0])

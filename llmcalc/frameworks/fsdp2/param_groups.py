"""FSDP2's parameter groups: a group's parameters are gathered together, and its gradients are reduced together.

A group is what one call of `fully_shard` wraps. Each rank keeps an equal part of the rows of every parameter, its
shard. Before the group's modules run, the shards are gathered into one buffer and copied into whole parameters; after
the backward pass the whole gradients are copied into one buffer, of which each rank gets the sum of its part.

Every method here allocates and frees what the method that it names does, in the same order; a local variable stands for
the local variable of that name. Source: torch/distributed/fsdp/_fully_shard of torch 2.13 (_fsdp_param.py,
_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from ...algebra import Number, ceil_div
from ...frozen import frozen
from ...parallel.placements import Collective
from ...simulator.aten import Aten
from ...simulator.autograd import AutogradGraph, record
from ...simulator.lowering import ModulePath
from ...simulator.strides import numel
from ...simulator.tensor import (
    UINT8,
    Dtype,
    Meter,
    NeedsInputGrad,
    Storage,
    Tensor,
    allocate_on_stream,
    count_storages_as,
    empty,
)
from .settings import Float8Settings

COPY_IN_STREAM, REDUCE_STREAM, ALL_REDUCE_STREAM = 1, 2, 3
"""CUDA streams beside the default one (`FSDPCommContext.lazy_init`); a stream reuses only its own blocks."""

HookMoment: TypeAlias = Literal["pre-forward", "post-forward", "pre-backward", "post-backward"]
"""The moment at which a hook of a parameter group runs."""


@frozen
class FsdpSharding:
    """How a rank's parameters are sharded: numbers of shards and replicas, number formats, and offloading.

    shard_count: number of shards of a parameter.
    shard_index: the shard of this rank.
    replica_count: groups of ranks, each with all shards (HSDP), 1 by default.
    dtype: number format of shards, of their gradients and of the optimizer's states.
    gathered_dtype: number format in which parameters are gathered and modules compute.
    reduce_dtype: number format in which gradients are reduced.
    float8: the linear layers that run in 8 bits; None (default) for none.
    tensor_parallel_size: ranks of a tensor group, 1 by default.
    uses_loss_parallel: whether a tensor group computes the loss on divided logits, true by default.
    frozen_dtype: number format of the shards of frozen parameters; None (default) for `dtype`.
    copies_gathered_tokens: whether a tensor group copies gathered tokens of one sequence, false by default.
    overlaps_products: whether compiled layers use asynchronous tensor parallelism, false by default.
    offloads_to_host: whether shards, their gradients and the optimizer's states are on the host (`CPUOffloadPolicy`),
        false by default.
    expert_sharding: the sharding of the experts' weights where ranks divide the experts; None (default) where none do.
    is_expert_sharding: whether this is the sharding of the experts' weights, false by default.
    is_wrapped: whether FSDP wraps the parameters; otherwise they are whole on this rank alone. True by default.
    """

    shard_count: int
    shard_index: int
    replica_count: int
    dtype: Dtype
    gathered_dtype: Dtype
    reduce_dtype: Dtype
    float8: Float8Settings | None = None
    tensor_parallel_size: int = 1
    uses_loss_parallel: bool = True
    frozen_dtype: Dtype | None = None
    copies_gathered_tokens: bool = False
    overlaps_products: bool = False
    offloads_to_host: bool = False
    expert_sharding: FsdpSharding | None = None
    is_expert_sharding: bool = False
    is_wrapped: bool = True


class GatheredStorage(Storage):
    """The storage of an unsharded parameter, which takes memory only while its group is gathered."""

    __slots__ = ()

    def __init__(self, memory_meter: Meter, storage_bytes: int) -> None:
        self.meter: Meter = memory_meter
        self.bytes: int = storage_bytes
        self.block: Any = None

    def fill(self) -> None:
        """Allocates the memory of the unsharded parameter."""
        with count_storages_as(self.meter, "weights"):
            self.block = self.meter.allocate(self.bytes)

    def clear(self) -> None:
        """Frees the memory of the unsharded parameter."""
        if self.block is not None:
            self.meter.free(self.block)
            self.block = None

    def __del__(self) -> None:
        self.clear()


class Parameter:
    """A parameter in an FSDP group (`FSDPParam`).

    path: its path in the model.
    unsharded_param: the gathered parameter, which modules use and which gets the gradients of this rank.
    shard: this rank's rows, which the optimizer updates. It has a gradient after the reduction.
    shard_elements: elements of the largest shard, to which all shards are padded.
    accumulated_grad: the sum of the gradients of earlier micro-batches; None after the reduction.
    element_bytes: bytes per gathered element.
    has_partial_gradient: whether a tensor group must all-reduce its gradient, false by default.
    """

    __slots__ = (
        "accumulated_grad",
        "element_bytes",
        "has_partial_gradient",
        "path",
        "shard",
        "shard_elements",
        "unsharded_param",
    )

    def __init__(
        self,
        memory_meter: Meter,
        parameter_path: ModulePath,
        template: Tensor,
        fsdp_sharding: FsdpSharding,
        element_bytes: int,
        has_partial_gradient: bool = False,
    ) -> None:
        self.has_partial_gradient: bool = has_partial_gradient
        row_count, *row_shape = template.shape
        divides_matrices = (
            len(template.shape) == 3 and fsdp_sharding.is_expert_sharding and row_count < fsdp_sharding.shard_count
        )
        if divides_matrices:  # torchtitan, distributed/fsdp.py: `Shard(1)` of fewer experts than ranks
            row_count, row_shape = row_shape[0], [row_count, *row_shape[1:]]
        rows_per_shard = ceil_div(row_count, fsdp_sharding.shard_count)
        shard_rows = max(0, min(rows_per_shard, row_count - fsdp_sharding.shard_index * rows_per_shard))
        self.path: ModulePath = parameter_path
        self.shard_elements: int = rows_per_shard * numel(tuple(row_shape))
        self.element_bytes: int = element_bytes
        dtype = fsdp_sharding.dtype if template.is_leaf else fsdp_sharding.frozen_dtype or fsdp_sharding.dtype
        gathered_dtype = fsdp_sharding.gathered_dtype
        if template.dtype is UINT8:  # codes of 4 bits, which are gathered as they are
            dtype = gathered_dtype = UINT8
        with count_storages_as(memory_meter, "weights"):
            shard_storage = Storage(
                memory_meter, 0 if fsdp_sharding.offloads_to_host else self.shard_elements * dtype.bytes
            )
        shard_shape = (row_shape[0], shard_rows, *row_shape[1:]) if divides_matrices else (shard_rows, *row_shape)
        self.shard: Tensor = Tensor(shard_shape, dtype, shard_storage, is_leaf=template.is_leaf)
        self.accumulated_grad: Tensor | None = None
        if not fsdp_sharding.is_wrapped:
            self.unsharded_param: Tensor = self.shard
            return
        storage = GatheredStorage(memory_meter, self.shard_elements * fsdp_sharding.shard_count * element_bytes)
        self.unsharded_param = Tensor(template.shape, gathered_dtype, storage, is_leaf=template.is_leaf)

    @property
    def is_cast(self) -> bool:
        """Whether shards are cast to another number format for the all-gather."""
        return self.shard.dtype is not self.unsharded_param.dtype


class CommunicationState:
    """The streams, buffers and collectives that all FSDP groups of a model share (`FSDPCommContext`).

    last_all_gather_buffer: buffer of the last all-gather of the forward pass. The next all-gather frees it after its
        copies.
    reduction_input_buffers: input buffers of reductions that may still run.
    forward_order: the groups in the order in which their forward passes ended.
    reduces_gradients: whether the backward pass reduces gradients over ranks, true by default.
    reshards_after_backward: whether the backward pass frees whole parameters, true by default.
    is_last_backward: whether the backward pass ends pending reductions (`set_is_last_backward`), true by default.
    streams: number of streams before those of this model, without the default stream; 0 by default.
    collectives: the collectives so far.
    hook_callback: called before (False) and after (True) each hook of a group; None (default) for no calls.
    """

    def __init__(self, autograd_graph: AutogradGraph, fsdp_sharding: FsdpSharding, stream_count: int = 0) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.sharding: FsdpSharding = fsdp_sharding
        self.streams: int = stream_count
        self.last_all_gather_buffer: Storage | None = None
        self.reduction_input_buffers: list[Storage] = []
        self.forward_order: list[ParamGroup] = []
        self.reduces_gradients = self.reshards_after_backward = self.is_last_backward = True
        self.collectives: list[Collective] = []
        self.hook_callback: Callable[[ParamGroup, HookMoment, bool], None] | None = None

    @property
    def meter(self) -> Meter:
        return self.graph.meter

    @contextmanager
    def communication_stream(self, stream_number: int) -> Iterator[None]:
        """Returns a context that counts new storages as communication buffers on a CUDA stream."""
        with (
            allocate_on_stream(self.meter, stream_number + self.streams),
            count_storages_as(self.meter, "communication"),
        ):
            yield

    @contextmanager
    def watch_hook(self, parameter_group: ParamGroup, hook_moment: HookMoment) -> Iterator[None]:
        """Returns a context that calls `hook_callback` before and after a hook of a group."""
        if self.hook_callback is not None:
            self.hook_callback(parameter_group, hook_moment, False)
        yield
        if self.hook_callback is not None:
            self.hook_callback(parameter_group, hook_moment, True)

    def finish(self, groups: Sequence[ParamGroup]) -> None:
        """Ends a backward pass: reduces remaining gradients, frees buffers (`_root_post_backward_final_callback`).

        groups: all groups, the group of the whole model first. Groups whose inputs need no gradient are reduced here.
        """
        for parameter_group in groups:
            if parameter_group.training_state != "post-backward":
                parameter_group.post_backward()
            parameter_group.training_state = None
            if self.is_last_backward:
                parameter_group.finalize_backward()
        if self.is_last_backward:
            self.forward_order.clear()
            self.reduction_input_buffers.clear()


class ParamGroup:
    """A group of parameters that are gathered and reduced together (`FSDPParamGroup`).

    name: the path of its module; empty for the model itself.
    reshards_after_forward: whether its whole parameters are freed between forward and backward pass.
    forward_prefetch, backward_prefetch: groups that it gathers ahead in each pass (`set_modules_to_forward_prefetch`,
        `set_modules_to_backward_prefetch`); none by default. Then the backward pass gathers the previous group ahead.
    training_state: the hook that ran last.
    is_unsharded: whether its parameters are whole.
    all_gather_result: the buffer of an all-gather that was not copied out yet.
    forward_positions: the group's positions in the forward order that no backward pass has used.
    all_reduce_input: the input buffer of its last all-reduce over replicas.
    sharding: how its parameters are sharded; None (default) for the sharding of `communication`.
    prefetches_previous: whether the backward pass gathers the previous group ahead, true by default.
    """

    def __init__(
        self,
        communication_state: CommunicationState,
        group_name: str,
        reshards_after_forward: bool,
        fsdp_sharding: FsdpSharding | None = None,
    ) -> None:
        self.communication_state: CommunicationState = communication_state
        self.sharding: FsdpSharding = fsdp_sharding or communication_state.sharding
        self.prefetches_previous: bool = True
        self.name: str = group_name
        self.reshards_after_forward: bool = reshards_after_forward
        self.parameters: list[Parameter] = []
        self.forward_prefetch: Sequence[ParamGroup] = ()
        self.backward_prefetch: Sequence[ParamGroup] = ()
        self.training_state: HookMoment | None = None
        self.is_unsharded: bool = False
        self.all_gather_result: Storage | None = None
        self.forward_positions: list[int] = []
        self.all_reduce_input: Storage | None = None

    @property
    def all_gather_bytes(self) -> int:
        """The bytes that each rank sends in the group's all-gather."""
        return sum(parameter.shard_elements * parameter.element_bytes for parameter in self.parameters)

    def step_collectives(self, microbatches: int, reduction_count: int) -> Iterator[Collective]:
        """Yields the group's collectives in a step. reduction_count: backward passes that reduce gradients."""
        sharding = self.sharding
        trained_elements = sum(parameter.shard_elements for parameter in self.parameters if parameter.shard.is_leaf)
        gathered_bytes = self.all_gather_bytes * sharding.shard_count
        reduced_bytes = trained_elements * sharding.reduce_dtype.bytes
        if sharding.shard_count > 1:
            for is_backward in (False, True) if self.reshards_after_forward else (False,):
                yield Collective(
                    self.name, "all_gather", "dp", sharding.shard_count, is_backward, gathered_bytes, microbatches
                )
        if sharding.shard_count > 1 and trained_elements:
            yield Collective(
                self.name,
                "reduce_scatter",
                "dp",
                sharding.shard_count,
                True,
                reduced_bytes * sharding.shard_count,
                reduction_count,
            )
        if sharding.replica_count > 1 and trained_elements:
            yield Collective(
                self.name, "all_reduce", "replicas", sharding.replica_count, True, reduced_bytes, reduction_count
            )
        gradient_dtype = sharding.gathered_dtype if reduction_count == microbatches else sharding.reduce_dtype
        for parameter in self.parameters:
            if parameter.has_partial_gradient and parameter.shard.is_leaf:
                yield self._tensor_all_reduce(parameter.unsharded_param.numel * gradient_dtype.bytes, reduction_count)

    # --- gathering --------------------------------------------------------------------------------------------------

    def unshard(self, is_forward: bool, stream_number: int | None = COPY_IN_STREAM) -> None:
        """Starts the all-gather of the group's parameters once. stream_number: None for the default stream."""
        if self.all_gather_result is None and not self.is_unsharded:
            self.all_gather_result = self._all_gather(is_forward, stream_number)

    def _all_gather(self, is_forward: bool, stream: int | None) -> Storage:
        """Replays `foreach_all_gather` on a stream; shards in another format are first cast into one tensor."""
        comm, sharding = self.communication_state, self.sharding
        shard_bytes = self.all_gather_bytes
        with count_storages_as(comm.meter, "communication") if stream is None else comm.communication_stream(stream):
            if sharding.shard_count == 1:
                return Storage(comm.meter, 0)
            _kept_inputs = self._all_gather_inputs()
            comm.collectives.append(
                Collective(
                    self.name,
                    "all_gather",
                    "dp",
                    sharding.shard_count,
                    not is_forward,
                    shard_bytes * sharding.shard_count,
                )
            )
            return Storage(comm.meter, shard_bytes * sharding.shard_count)

    def _all_gather_inputs(self) -> list[Storage]:
        """Allocates the inputs of the all-gather: one tensor of all cast shards, or a copy of each offloaded shard."""
        memory_meter, sharding = self.communication_state.meter, self.sharding
        if sharding.offloads_to_host:
            return [self._copy_from_host(parameter) for parameter in self.parameters]
        cast_parameters = [parameter for parameter in self.parameters if parameter.is_cast]
        cast_bytes = sum(parameter.shard_elements * parameter.element_bytes for parameter in cast_parameters)
        return [Storage(memory_meter, cast_bytes)] if cast_bytes else []

    def _copy_from_host(self, parameter: Parameter) -> Storage:
        """Allocates a device copy of an offloaded shard, and its cast (`FSDPParam.all_gather_inputs`)."""
        memory_meter = self.communication_state.meter
        sharded_param_data = Storage(memory_meter, parameter.shard_elements * parameter.shard.dtype.bytes)
        if not parameter.is_cast:
            return sharded_param_data
        return Storage(memory_meter, parameter.shard_elements * parameter.element_bytes)

    def wait_for_unshard(self, is_forward: bool) -> None:
        """Copies gathered shards into unsharded parameters; in forward passes, the buffer lives until the next copy."""
        if self.all_gather_result is None:
            return
        communication = self.communication_state
        _prev_all_gather_state = communication.last_all_gather_buffer if is_forward else None
        if is_forward:
            communication.last_all_gather_buffer = None
        for parameter in self.parameters:
            self._copy_out(parameter)
        self.is_unsharded = True
        if is_forward and self.sharding.shard_count > 1:
            communication.last_all_gather_buffer = self.all_gather_result
        self.all_gather_result = None

    def _copy_out(self, parameter: Parameter) -> None:
        """Allocates an unsharded parameter; on a single rank, only a cast of the shard."""
        sharding = self.sharding
        if sharding.shard_count == 1 and sharding.offloads_to_host:
            with count_storages_as(self.communication_state.meter, "communication"):
                _host_copy = self._copy_from_host(parameter)
        elif sharding.shard_count == 1 and parameter.is_cast:
            _kept_input = empty(self.communication_state.meter, (parameter.shard_elements,), sharding.gathered_dtype)
        assert isinstance(parameter.unsharded_param.storage, GatheredStorage)
        parameter.unsharded_param.storage.fill()

    def reshard(self) -> None:
        """Frees the group's unsharded parameters."""
        if self.is_unsharded:
            for parameter in self.parameters:
                assert isinstance(parameter.unsharded_param.storage, GatheredStorage)
                parameter.unsharded_param.storage.clear()
            self.is_unsharded = False

    # --- hooks ------------------------------------------------------------------------------------------------------

    def pre_forward(self, activation: Tensor | None) -> Tensor | None:
        """Runs before the group's modules: gathers parameters, and casts inputs to the compute format.

        The gradient of that input is computed after all gradients of the group.
        """
        with self.communication_state.watch_hook(self, "pre-forward"):
            self.training_state = "pre-forward"
            autograd_graph = self.communication_state.graph
            if activation is not None and activation.dtype.is_floating_point:
                activation = Aten(autograd_graph).to(activation, self.communication_state.sharding.gathered_dtype)
            self.unshard(is_forward=True)
            self.wait_for_unshard(is_forward=True)
            for next_group in self.forward_prefetch:
                next_group.unshard(is_forward=True)
            if activation is None or not activation.needs_grad:
                return activation
            return record(
                autograd_graph,
                "RegisterPostBackwardFunction",
                [activation],
                activation.detached(),
                self._run_post_backward_hook,
            )

    def _run_post_backward_hook(self, gradient: Tensor, needs_input_grad: NeedsInputGrad) -> list[Tensor]:
        """Runs `post_backward` and returns the gradient unchanged (backward of `RegisterPostBackwardFunction`)."""
        self.post_backward()
        return [gradient]

    def post_forward(self, module_outputs: Sequence[Tensor], is_last_group: bool = False) -> None:
        """Runs after the group's modules: frees the unsharded parameters.

        module_outputs: the outputs of the modules, whose gradients start the group's backward pass.
        is_last_group: whether the forward pass ends here, and with it the last all-gather.
        """
        with self.communication_state.watch_hook(self, "post-forward"):
            if self.reshards_after_forward:
                self.reshard()
            self.forward_positions.append(len(self.communication_state.forward_order))
            self.communication_state.forward_order.append(self)
            self.training_state = None
            for module_output in module_outputs:
                if module_output.node is not None:
                    module_output.node.hooks.append(self.pre_backward)
            if is_last_group:
                self.communication_state.last_all_gather_buffer = None

    def pre_backward(self) -> None:
        """Runs before the group's backward pass: gathers the group's parameters, and prefetches the next group's."""
        if self.training_state == "pre-backward":
            return
        with self.communication_state.watch_hook(self, "pre-backward"):
            self.training_state = "pre-backward"
            self.unshard(is_forward=False)
            self.wait_for_unshard(is_forward=False)
            forward_order = self.communication_state.forward_order
            group_index = self.forward_positions.pop() if self.forward_positions and not self.backward_prefetch else 0
            if group_index > 0 and self.prefetches_previous:
                forward_order[group_index - 1].unshard(is_forward=False)
        for next_group in self.backward_prefetch:
            next_group.unshard(is_forward=False)

    def post_backward(self) -> None:
        """Runs after the group's backward pass: reduces its gradients, or accumulates them unsharded."""
        with self.communication_state.watch_hook(self, "post-backward"):
            self.training_state = "post-backward"
            for parameter in self.parameters:
                if parameter.accumulated_grad is not None:
                    parameter.unsharded_param.grad = None  # added in place
            if not self.communication_state.reduces_gradients:
                if self.communication_state.reshards_after_backward:
                    self.reshard()
                for parameter in self.parameters:
                    self._to_accumulated_grad(parameter)
                return
            self._reduce_gradients()

    def _to_accumulated_grad(self, parameter: Parameter) -> None:
        """Casts a parameter's gradient to the reduction format (`to_accumulated_grad_if_needed`)."""
        reduce_dtype = self.communication_state.sharding.reduce_dtype
        unsharded_grad, parameter.unsharded_param.grad = parameter.unsharded_param.grad, None
        if unsharded_grad is None or unsharded_grad.dtype is reduce_dtype:
            parameter.unsharded_param.grad = unsharded_grad
            return
        with count_storages_as(self.communication_state.meter, "gradients"):
            parameter.accumulated_grad = empty(self.communication_state.meter, unsharded_grad.shape, reduce_dtype)

    def _reduce_gradients(self) -> None:
        """Reduces the gradients of all the group's parameters that have one."""
        parameters_with_grad: list[Parameter] = []
        unsharded_grads: list[Tensor] = []
        for parameter in self.parameters:
            gradient = (
                parameter.unsharded_param.grad if parameter.accumulated_grad is None else parameter.accumulated_grad
            )
            if gradient is not None:
                parameters_with_grad.append(parameter)
                unsharded_grads.append(self._get_grad_inner_tensor(parameter, gradient))
                parameter.accumulated_grad = parameter.unsharded_param.grad = None
            del gradient
        if self.communication_state.reshards_after_backward:
            self.reshard()
        if self.communication_state.reduction_input_buffers:
            self.communication_state.reduction_input_buffers.pop(0)
        if parameters_with_grad:
            self.all_reduce_input = None
            reduce_scatter_input, all_reduce_input = self._foreach_reduce(parameters_with_grad, unsharded_grads)
            self.communication_state.reduction_input_buffers.append(reduce_scatter_input)
            self.all_reduce_input = all_reduce_input

    def _get_grad_inner_tensor(self, parameter: Parameter, input_gradient: Tensor) -> Tensor:
        """Returns a gradient summed over tensor-parallel ranks and divided like its parameter."""
        if input_gradient.shape == parameter.unsharded_param.shape and not parameter.has_partial_gradient:
            return input_gradient
        summed_gradient = empty(self.communication_state.meter, parameter.unsharded_param.shape, input_gradient.dtype)
        if parameter.has_partial_gradient:
            self.communication_state.collectives.append(self._tensor_all_reduce(summed_gradient.bytes))
        return summed_gradient

    def _tensor_all_reduce(self, nbytes: Number, repetition_count: int = 1) -> Collective:
        """Returns the collective that sums a gradient of `nbytes` bytes over the tensor-parallel ranks."""
        return Collective(
            self.name,
            "all_reduce",
            "tp",
            self.communication_state.sharding.tensor_parallel_size,
            True,
            nbytes,
            repetition_count,
        )

    def _foreach_reduce(
        self, gradient_params: Sequence[Parameter], unsharded_grads: list[Tensor]
    ) -> tuple[Storage, Storage | None]:
        """Replays `foreach_reduce`; returns the buffers that stay allocated until the reduction ends.

        Its loop over the gradients keeps a reference to the last one.
        """
        comm, sharding = self.communication_state, self.sharding
        element_count = sum(parameter.shard_elements for parameter in gradient_params)
        if sharding.shard_count > 1:
            _unsharded_grad = unsharded_grads[-1]
        buffer_bytes = element_count * sharding.reduce_dtype.bytes
        with count_storages_as(comm.meter, "communication"):
            reduce_scatter_input = Storage(comm.meter, buffer_bytes * sharding.shard_count)
        unsharded_grads.clear()
        all_reduce_input: Storage | None = None
        makes_gradients = not sharding.offloads_to_host and any(
            parameter.shard.grad is None for parameter in gradient_params
        )
        casts_gradients = sharding.reduce_dtype is not sharding.dtype
        with (
            comm.communication_stream(REDUCE_STREAM),
            count_storages_as(comm.meter, "gradients" if makes_gradients and not casts_gradients else "communication"),
        ):
            reduce_output = Storage(comm.meter, buffer_bytes)
            if sharding.shard_count > 1:
                unsharded_bytes = buffer_bytes * sharding.shard_count
                comm.collectives.append(
                    Collective(self.name, "reduce_scatter", "dp", sharding.shard_count, True, unsharded_bytes)
                )
            if sharding.replica_count > 1:
                comm.collectives.append(
                    Collective(self.name, "all_reduce", "replicas", sharding.replica_count, True, buffer_bytes)
                )
                all_reduce_input = reduce_output
        if casts_gradients:
            post_reduce_stream = ALL_REDUCE_STREAM if sharding.replica_count > 1 else REDUCE_STREAM
            with (
                comm.communication_stream(post_reduce_stream),
                count_storages_as(comm.meter, "gradients" if makes_gradients else "communication"),
            ):
                reduce_output = Storage(comm.meter, element_count * sharding.dtype.bytes)
        for parameter in gradient_params:  # views of the sum, or added to the gradients that are there
            if parameter.shard.grad is None:
                gradient_storage = Storage(comm.meter, 0) if sharding.offloads_to_host else reduce_output
                parameter.shard.grad = Tensor(parameter.shard.shape, parameter.shard.dtype, gradient_storage)
        return reduce_scatter_input, all_reduce_input

    def finalize_backward(self) -> None:
        """Frees the buffers of the group's last gradient reduction."""
        self.all_reduce_input = self.all_gather_result = None
        self.forward_positions.clear()


class UnwrappedGroup(ParamGroup):
    """A group of parameters without FSDP, whose all-gathers and reductions do nothing."""

    def unshard(self, is_forward: bool, stream_number: int | None = COPY_IN_STREAM) -> None:
        """Does nothing, because unwrapped parameters are never all-gathered."""

    def wait_for_unshard(self, is_forward: bool) -> None:
        """Does nothing, because unwrapped parameters are never all-gathered."""

    def reshard(self) -> None:
        """Does nothing, because unwrapped parameters stay allocated."""

    def pre_forward(self, activation: Tensor | None) -> Tensor | None:
        """Returns the input of the group's modules unchanged."""
        return activation

    def post_forward(self, module_outputs: Sequence[Tensor], is_last_group: bool = False) -> None:
        """Does nothing after the group's modules have run."""

    def post_backward(self) -> None:
        """Does nothing, because gradients of unwrapped parameters are not reduced."""

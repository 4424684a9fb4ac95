"""Replays one rank's training steps under ZeRO stage 3.

Every rank keeps an equal part of each parameter, of its gradient and of the optimizer's states. Parameters are gathered
while modules run (`coordinator`). Gradients are reduced when a bucket is full.

Each method allocates and frees the tensors of the method that it names, in the same order. Source:
deepspeed/runtime/zero/stage3.py of 0.19.8 (`DeepSpeedZeroOptimizer_Stage3`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...device_memory.device_memory import MemoryTerm
from ...device_memory.host_memory import pinned_bytes
from ...device_memory.optimizers.step import OptimizedParameter
from ...simulator.meter import AllocationPlace, Meter
from ...simulator.tensor import FLOAT32, Storage, Tensor, count_storages_as, empty
from .lowering import GatheringProfile
from .param_coordinator import Parameter, ParameterCoordinator
from .partitions import sort_in_module_order
from .zero import FLOAT64_BYTES, ZeroRun, ZeroSetup

SOURCE_FILE = "deepspeed/runtime/zero/stage3.py"
"""DeepSpeed's source file that states what is in host memory."""

NORM_BUFFER_ELEMENTS = 250_000_000
"""Largest number of elements whose norm is computed at once (`_constant_buffered_norm2`)."""


class Stage3Run(ZeroRun):
    """One rank's training steps under ZeRO stage 3; all ranks allocate the same bytes."""

    profile = GatheringProfile
    lowering: GatheringProfile

    def __init__(self, zero_setup: ZeroSetup, memory_meter: Meter | None = None) -> None:
        super().__init__(zero_setup, memory_meter)
        self.coordinator: ParameterCoordinator = ParameterCoordinator(
            self.meter, zero_setup.settings, zero_setup.rank_count
        )
        self.lowering.set_coordinator(self.coordinator)
        self.bucket: list[Parameter] = []
        self.bucket_element_count: int = 0
        self.bucket_storage: Storage | None = None

    # --- set-up -----------------------------------------------------------------------------------------------------

    def prepare_training(self) -> None:
        """Allocates the rank's shards, their fp32 copies, gradients, and the buffer of the gradient bucket."""
        coordinator, memory_meter, element_bytes = self.coordinator, self.meter, self.dtype.bytes
        parameters_by_path = {parameter.path: parameter for parameter in coordinator.parameters}
        coordinator.parameters = [
            parameters_by_path[parameter_path] for parameter_path in sort_in_module_order(list(parameters_by_path))
        ]
        coordinator.mark_persistent()
        trained_parameters = [parameter for parameter in coordinator.parameters if parameter.full_param.is_leaf]
        frozen_parameters = [parameter for parameter in coordinator.parameters if not parameter.full_param.is_leaf]
        self.sub_groups: list[list[Parameter]] = self._sub_groups(trained_parameters)
        self.parameters: list[Tensor] = [parameter.full_param for parameter in trained_parameters]
        element_count = sum(parameter.shard_elements for parameter in trained_parameters)
        with count_storages_as(memory_meter, "weights"):
            self.rank_shards: list[Storage] = []
            if self.settings.offload_param == "none":
                self.rank_shards = [
                    Storage(memory_meter, parameter.shard_elements * parameter.full_param.dtype.bytes)
                    for parameter in frozen_parameters
                ]
                self.rank_shards.append(Storage(memory_meter, element_count * element_bytes))  # lp_param_buffer
        self.updated_parameters = []
        if not self.has_offloaded_states:
            self._create_fp32_partitions()
        if self.settings.contiguous_gradients:
            with count_storages_as(memory_meter, "communication"):
                self.bucket_storage = Storage(memory_meter, self.bucket_elements * self.communication_dtype.bytes)
        self.grad_partitions_flat_buffer: Storage | None = None
        if not self.has_offloaded_states:
            with count_storages_as(memory_meter, "gradients"):
                self.grad_partitions_flat_buffer = Storage(memory_meter, element_count * self.accumulation_dtype.bytes)

    @property
    def has_offloaded_states(self) -> bool:
        """Whether optimizer states and the rank's gradients are offloaded to the host."""
        return self.settings.offload_optimizer != "none"

    def host_terms(self) -> tuple[MemoryTerm, ...]:
        """Returns the host memory of fp32 partitions, gradients, optimizer states, and parameter shards.

        The buffer of all parts of trained parameters is always pinned (`_create_param_groups_fp16_flat_cpu_memory`).
        """
        settings, memory_terms = self.settings, list[MemoryTerm]()
        group_sizes = [sum(parameter.shard_elements for parameter in sub_group) for sub_group in self.sub_groups]
        if self.has_offloaded_states:
            round_host_bytes = pinned_bytes if settings.offload_optimizer_pin_memory else int
            partition_bytes = sum(
                group_elements * FLOAT32.bytes + round_host_bytes(group_elements * FLOAT32.bytes)
                for group_elements in group_sizes
            )
            memory_terms = [
                MemoryTerm("fp32 weights and gradients", partition_bytes, "source", SOURCE_FILE),
                MemoryTerm("optimizer states", sum(map(self.host_state_bytes, group_sizes)), "source", SOURCE_FILE),
                MemoryTerm(
                    "buffers", round_host_bytes(sum(group_sizes) * self.accumulation_dtype.bytes), "source", SOURCE_FILE
                ),
            ]
        if settings.offload_param != "none":
            round_host_bytes = pinned_bytes if settings.offload_param_pin_memory else int
            frozen_parameters = [
                parameter for parameter in self.coordinator.parameters if not parameter.full_param.is_leaf
            ]
            shard_bytes = [
                parameter.shard_elements * parameter.full_param.dtype.bytes for parameter in frozen_parameters
            ]
            group_elements = pinned_bytes(sum(group_sizes) * self.dtype.bytes) + sum(map(round_host_bytes, shard_bytes))
            memory_terms.append(MemoryTerm("parameters", group_elements, "source", SOURCE_FILE))
        return tuple(memory_terms)

    def _create_fp32_partitions(self) -> None:
        """Allocates the fp32 copies that the optimizer updates (`_create_fp32_partitions`)."""
        memory_meter = self.meter
        for parameter_group in self.sub_groups:  # _create_fp32_partitions
            element_count = sum(parameter.shard_elements for parameter in parameter_group)
            fp32_copy = Storage(memory_meter, element_count * FLOAT32.bytes)
            with count_storages_as(memory_meter, "optimizer"):
                self.updated_parameters.append(OptimizedParameter(empty(memory_meter, (element_count,), FLOAT32)))
            del fp32_copy
        largest_group_elements = max(
            sum(parameter.shard_elements for parameter in sub_group) for sub_group in self.sub_groups
        )
        gradient_buffer = Storage(memory_meter, largest_group_elements * FLOAT32.bytes)  # initialize_optimizer_states
        del gradient_buffer

    def _sub_groups(self, trained_parameters: list[Parameter]) -> list[list[Parameter]]:
        """Returns groups of parameters that the optimizer updates one after another (`_create_fp16_sub_groups`)."""
        sub_groups: list[list[Parameter]] = [[]]
        for parameter in trained_parameters:
            if (
                sub_groups[-1]
                and sum(group_parameter.shard_elements for group_parameter in sub_groups[-1])
                >= self.settings.sub_group_size
            ):
                sub_groups.append([])
            sub_groups[-1].append(parameter)
        return sub_groups

    # --- passes -----------------------------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Restarts the recorded order of modules, and replays the forward pass."""
        self.coordinator.reset_step()
        return super().forward()

    def backward(self, loss: Tensor) -> None:
        """Replays the backward pass, reduces the last bucket, and releases gathered parameters."""
        super().backward(loss)
        self.meter.place = AllocationPlace("backward")
        self.reduce_bucket()
        self.coordinator.end_backward()

    @property
    def gradient_complete_hook(self) -> Callable[[Tensor], None]:
        """The hook that runs once a parameter's gradient is complete."""
        return self.reduce_independent

    def reduce_independent(self, weight: Tensor) -> None:
        """Adds a complete gradient to the bucket, after reducing a bucket that would overflow.

        Source: `reduce_independent_p_g_buckets_and_remove_grads`.
        """
        parameter = self.coordinator.parameter_by_tensor_id.get(id(weight))
        if parameter is None:  # an input of a part that runs again
            return
        if self.bucket_element_count + parameter.element_count > self.bucket_elements and self.bucket_element_count > 0:
            self.reduce_bucket()
        if (
            self.bucket_storage is not None
            and self.bucket_element_count + parameter.element_count <= self.bucket_elements
        ):
            weight.grad = Tensor(weight.shape, self.dtype, self.bucket_storage)
        self.bucket.append(parameter)
        self.bucket_element_count += parameter.element_count
        module_parameters = self.coordinator.parameters_by_module[parameter.module]
        if all(
            sibling_parameter.full_param.grad is not None
            or sibling_parameter in self.bucket
            or not sibling_parameter.full_param.is_leaf
            for sibling_parameter in module_parameters
        ):
            self.coordinator.after_backward(parameter.module)

    def reduce_bucket(self) -> None:
        """Reduces the gradients in the bucket over ranks, and adds this rank's shards to its accumulated gradients."""
        if not self.bucket:
            return
        settings = self.settings
        with self.reduction_stream():
            if (
                settings.contiguous_gradients
                and self.bucket_element_count <= self.bucket_elements
                and not settings.reduce_scatter
            ):
                grad_partitions = self._avg_scatter_contiguous_grads()
            else:
                grad_partitions = self._avg_scatter_grads()
            for parameter in self.bucket:
                if self.has_offloaded_states:
                    self._copy_to_host(parameter)
                parameter.full_param.grad = None
            del grad_partitions
        self.bucket, self.bucket_element_count = [], 0

    def _copy_to_host(self, parameter: Parameter) -> None:
        """Adds a gradient shard to the host's gradients, on the last micro-batch with a norm (`partition_grads`)."""
        grad_buffer = Storage(self.meter, parameter.shard_elements * self.accumulation_dtype.bytes)
        if not self.is_last_microbatch:
            return
        float64_copy = Storage(self.meter, min(parameter.shard_elements, NORM_BUFFER_ELEMENTS) * FLOAT64_BYTES)
        self.offloaded_gradient_norms[id(parameter)] = Storage(self.meter, FLOAT64_BYTES)
        del float64_copy
        if self.accumulation_dtype is not FLOAT32:
            fp32_copy = Storage(self.meter, parameter.shard_elements * FLOAT32.bytes)
            del fp32_copy
        del grad_buffer

    def _avg_scatter_contiguous_grads(self) -> list[Storage]:
        """All-reduces a scaled copy of the bucket's buffer; returns the storages of this rank's gradient shards."""
        sum_buffer = reduced_buffer = None
        if self.communication_dtype is not self.dtype:
            sum_buffer = Storage(self.meter, self.bucket_element_count * self.communication_dtype.bytes)
        if self.rank_count > 1:
            reduced_buffer = Storage(self.meter, self.bucket_element_count * self.communication_dtype.bytes)
        sum_buffer = None
        if self.communication_dtype is not self.accumulation_dtype:
            sum_buffer, reduced_buffer = (
                Storage(self.meter, self.bucket_element_count * self.accumulation_dtype.bytes),
                None,
            )
        padded_gradients = [
            Storage(self.meter, parameter.shard_elements * self.accumulation_dtype.bytes)
            for parameter in self.bucket
            if parameter.element_count % self.rank_count
        ]
        return [*padded_gradients, *(parameter for parameter in (sum_buffer, reduced_buffer) if parameter is not None)]

    def _avg_scatter_grads(self) -> list[Storage]:
        """Reduces and scatters concatenated gradients; returns the storages of this rank's gradient shards.

        Source: `reduce_scatter_coalesced`.
        A single gradient without padding is not copied.
        """
        cast_gradients: list[Storage] = []
        if self.communication_dtype is not self.dtype:
            cast_gradients = [
                Storage(self.meter, parameter.element_count * self.communication_dtype.bytes)
                for parameter in self.bucket
            ]
        padded_elements = sum(parameter.shard_elements for parameter in self.bucket) * self.rank_count
        concatenated_gradients: list[Storage] = []
        if len(self.bucket) > 1 or padded_elements > self.bucket_element_count:
            concatenated_gradients = [Storage(self.meter, padded_elements * self.communication_dtype.bytes)]
        if self.communication_dtype is self.accumulation_dtype:
            return concatenated_gradients or cast_gradients
        cast_gradients = []
        return [
            Storage(self.meter, parameter.shard_elements * self.accumulation_dtype.bytes) for parameter in self.bucket
        ]

    # --- the step ---------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Replays the optimizer's update for one group of parameters after another (`step`)."""
        self.meter.place = AllocationPlace("step")
        self.coordinator.release_all()
        if self.has_offloaded_states:
            self.offloaded_gradient_norms = {}
            self.coordinator.gather_persistent()
            return
        for sub_group in self.sub_groups:  # get_grad_norm_direct
            for parameter in sub_group:
                float64_copy = Storage(self.meter, parameter.shard_elements * FLOAT64_BYTES)
                del float64_copy
        for sub_group, fp32_partition in zip(self.sub_groups, self.updated_parameters, strict=True):
            with count_storages_as(self.meter, "gradients"):
                fp32_partition.gradient = self._single_grad_partition(sub_group)
            self.run_optimizer([fp32_partition])
        self.coordinator.gather_persistent()

    def _single_grad_partition(self, sub_group: list[Parameter]) -> Tensor:
        """Returns the gradients of a sub-group as one float32 tensor (`_prepare_fp32_grad_for_sub_group`)."""
        element_count = sum(parameter.shard_elements for parameter in sub_group)
        flat_gradients = self.grad_partitions_flat_buffer
        assert flat_gradients is not None
        if len(sub_group) > 1:
            flat_gradients = Storage(self.meter, element_count * self.accumulation_dtype.bytes)
        if self.accumulation_dtype is FLOAT32:
            return Tensor((element_count,), FLOAT32, flat_gradients)
        return empty(self.meter, (element_count,), FLOAT32)

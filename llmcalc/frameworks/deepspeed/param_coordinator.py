"""Gathers and releases parameters on a rank under ZeRO stage 3.

The first step records the order of the modules. Later steps gather parameters ahead and keep those that are used again
soon. Source: deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py and partition_parameters.py
(`all_gather_coalesced`, `AllGatherCoalescedHandle`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...simulator.lowering import ModulePath
from ...simulator.meter import Block
from ...simulator.tensor import Meter, Storage, Tensor, allocate_on_stream, count_storages_as
from .partitions import module_path_of, weight_element_count
from .settings import DeepSpeedSettings

GATHER_STREAM = 2
"""The stream on which parameters are gathered while passes run."""

NEVER_FETCHED = -1


class ParameterStorage(Storage):
    """The storage of a full parameter, which takes memory only while the parameter is gathered.

    gathered_storage: that memory, which may be a larger buffer; None while the parameter is released.
    """

    __slots__ = ("gathered_storage",)

    def __init__(self, memory_meter: Meter, storage_bytes: int) -> None:
        self.meter: Meter = memory_meter
        self.bytes: int = storage_bytes
        self.block: Block = Block(0, "weights")
        self.gathered_storage: Storage | None = None

    def __del__(self) -> None:
        """Does nothing when the object is deleted, since releasing the parameter has freed the memory."""


class AllGatherHandle:
    """A started all-gather of several parameters into one flat buffer (`AllGatherCoalescedHandle`)."""

    def __init__(self, parameters: Sequence[Parameter], flat_parameters: Storage | None) -> None:
        self.parameters: Sequence[Parameter] = parameters
        self.flat_buffer: Storage | None = flat_parameters
        self.is_complete: bool = False


class Parameter:
    """A parameter of the model, of which each rank stores one shard.

    path: path in the model.
    module: the path of its module.
    full_param: the full parameter, which modules use.
    element_count: number of elements.
    shard_elements: elements of a rank's part.
    is_persistent: whether the parameter stays gathered between steps.
    is_gathered: whether the parameter is gathered.
    gather_handle: the all-gather that is under way; None if there is none.
    last_fetched_step: the last step of the trace for which it was gathered.
    """

    __slots__ = (
        "element_count",
        "full_param",
        "gather_handle",
        "is_gathered",
        "is_persistent",
        "last_fetched_step",
        "module",
        "path",
        "shard_elements",
    )

    def __init__(self, memory_meter: Meter, parameter_path: ModulePath, template: Tensor, rank_count: int) -> None:
        self.path: ModulePath = parameter_path
        self.module: ModulePath = module_path_of(parameter_path)
        element_count = weight_element_count(template)
        self.element_count: int = element_count
        self.shard_elements: int = -(-element_count // rank_count)
        self.full_param: Tensor = Tensor(
            template.shape,
            template.dtype,
            ParameterStorage(memory_meter, element_count * template.dtype.bytes),
            is_leaf=template.is_leaf,
        )
        self.is_persistent: bool = False
        self.is_gathered: bool = False
        self.gather_handle: AllGatherHandle | None = None
        self.last_fetched_step: int = NEVER_FETCHED

    @property
    def storage(self) -> ParameterStorage:
        """The storage of the full, gathered parameter."""
        assert isinstance(self.full_param.storage, ParameterStorage)
        return self.full_param.storage


class ParameterCoordinator:
    """Gathers and releases parameters (`PartitionedParameterCoordinator`).

    parameters: all parameters.
    parameters_by_module: path of a module → its parameters.
    parameter_by_tensor_id: id of a whole parameter's tensor → the parameter.
    module_order: the trace: modules in the order of their use.
    is_recording, needs_autograd_node: whether the trace is being recorded, and whether it is complete.
    prefetch_queue: parameters of the trace that were not gathered ahead yet, each with its step.
    step_index: the current step of the trace.
    gathered_elements: elements of gathered parameters.
    parameters_to_release: module and step → parameters that are released after it.
    modules_in_backward: modules whose backward pass has begun and not ended.
    external_parameter_modules: modules whose parameters the model's own forward pass reads, of which they are external
        parameters: they stay gathered until the model's backward pass ends (`register_external_parameter`).
    """

    def __init__(self, memory_meter: Meter, settings: DeepSpeedSettings, rank_count: int) -> None:
        self.meter: Meter = memory_meter
        self.settings: DeepSpeedSettings = settings
        self.rank_count: int = rank_count
        self.parameters: list[Parameter] = []
        self.parameters_by_module: dict[ModulePath, list[Parameter]] = {}
        self.parameter_by_tensor_id: dict[int, Parameter] = {}
        self.module_order: list[ModulePath] = []
        self.is_recording: bool = False
        self.needs_autograd_node: bool = False
        self.prefetch_queue: deque[tuple[Parameter, int]] = deque()
        self.step_index: int = 0
        self.gathered_elements: int = 0
        self.parameters_to_release: dict[tuple[ModulePath, int], list[Parameter]] = {}
        self.modules_in_backward: list[ModulePath] = []
        self.external_parameter_modules: set[ModulePath] = set()

    def add_parameter(self, parameter_path: ModulePath, template: Tensor) -> Parameter:
        """Adds a parameter that ranks store in shards. template: a tensor with the parameter's shape and format."""
        parameter = Parameter(self.meter, parameter_path, template, self.rank_count)
        self.parameters.append(parameter)
        self.parameters_by_module.setdefault(parameter.module, []).append(parameter)
        self.parameter_by_tensor_id[id(parameter.full_param)] = parameter
        return parameter

    def mark_persistent(self) -> None:
        """Marks small parameters, which stay gathered, as persistent (`mark_persistent_parameters`)."""
        element_limit, persistent_elements = self.settings.stage3_model_persistence_threshold, 0
        for parameter in self.parameters:
            if element_limit is not None and parameter.element_count + persistent_elements > element_limit:
                continue
            if parameter.element_count <= self.settings.size_in_elements("stage3_param_persistence_threshold"):
                parameter.is_persistent = True
                persistent_elements += parameter.element_count

    # --- the trace --------------------------------------------------------------------------------------------------

    def reset_step(self) -> None:
        """Starts a new step: releases parameters that are still gathered, and restarts the recorded module order."""
        for parameter in self.parameters:
            if parameter.gather_handle is not None:
                self._wait_for_all_gather(parameter)
                self._release(parameter)
        self.needs_autograd_node = self.needs_autograd_node or self.is_recording
        self.is_recording = not self.needs_autograd_node
        self.prefetch_queue = deque()
        if self.needs_autograd_node:
            for module_position, module in enumerate(self.module_order):
                self.prefetch_queue += ((parameter, module_position) for parameter in self.parameters_by_module[module])
        for parameter in self.parameters:
            parameter.last_fetched_step = NEVER_FETCHED
        self.step_index = self.gathered_elements = 0

    def fetch_module(self, module_path: ModulePath) -> None:
        """Gathers a module's parameters, and starts to gather those of the next modules (`fetch_sub_module`)."""
        if self.is_recording:
            self.module_order.append(module_path)
        parameters = self.parameters_by_module[module_path]
        self._start_all_gather(
            [parameter for parameter in parameters if not parameter.is_gathered and parameter.gather_handle is None]
        )
        for parameter in parameters:
            if parameter.gather_handle is not None:
                self._wait_for_all_gather(parameter)
        if (
            self.needs_autograd_node
            and self.step_index < len(self.module_order)
            and self.module_order[self.step_index] == module_path
        ):
            self._prefetch(parameters)
        self.step_index += 1

    def _prefetch(self, module_parameters: Sequence[Parameter]) -> None:
        """Starts all-gathers of the parameters that the recorded order reads next, up to the prefetch limit."""
        unfetched_count = sum(parameter.last_fetched_step < self.step_index for parameter in module_parameters)
        for _ in range(min(unfetched_count, len(self.prefetch_queue))):
            parameter, next_use_step = self.prefetch_queue.popleft()
            parameter.last_fetched_step = next_use_step
        element_limit = min(
            self.settings.stage3_max_live_parameters - self.gathered_elements,
            self.settings.size_in_elements("stage3_prefetch_bucket_size"),
        )
        prefetched_parameters: list[Parameter] = []
        element_count = 0
        while self.prefetch_queue and element_count < element_limit:
            parameter, next_use_step = self.prefetch_queue.popleft()
            parameter.last_fetched_step = max(parameter.last_fetched_step, next_use_step)
            if not parameter.is_gathered and parameter.gather_handle is None and parameter not in prefetched_parameters:
                prefetched_parameters.append(parameter)
                element_count += parameter.element_count
        self._start_all_gather(prefetched_parameters)

    # --- memory -----------------------------------------------------------------------------------------------------

    @contextmanager
    def gathering_stream(self) -> Iterator[None]:
        """Returns a context that allocates on the all-gather stream; without overlap, on the current stream."""
        cuda_stream = GATHER_STREAM if self.settings.has_overlapped_reductions else self.meter.stream
        with allocate_on_stream(self.meter, cuda_stream), count_storages_as(self.meter, "weights"):
            yield

    def _start_all_gather(self, parameters: Sequence[Parameter]) -> None:
        """Starts an all-gather of several parameters into one buffer (`all_gather_coalesced`)."""
        if not parameters:
            return
        self.gathered_elements += sum(parameter.element_count for parameter in parameters)
        element_bytes = parameters[0].full_param.dtype.bytes
        with self.gathering_stream():
            copied_shards = self._copy_shards_from_host(parameters)
        if self.rank_count == 1:
            for parameter in parameters:
                parameter.gather_handle = AllGatherHandle([parameter], None)
                if self.settings.offload_param != "none":
                    with self.gathering_stream():
                        parameter.storage.gathered_storage = Storage(
                            self.meter, parameter.element_count * element_bytes
                        )
        elif len(parameters) == 1 or self.settings.stage3_allgather_sequential:
            for parameter in parameters:
                with self.gathering_stream():
                    parameter.storage.gathered_storage = Storage(
                        self.meter, parameter.shard_elements * self.rank_count * element_bytes
                    )
                parameter.gather_handle = AllGatherHandle([parameter], None)
        else:
            with self.gathering_stream(), count_storages_as(self.meter, "communication"):
                flat_buffer = Storage(
                    self.meter,
                    sum(parameter.shard_elements for parameter in parameters) * self.rank_count * element_bytes,
                )
            uses_all_reduce = self.settings.stage3_use_all_reduce_for_fetch_params
            gather_handle = AllGatherHandle(parameters, None if uses_all_reduce else flat_buffer)
            for parameter in parameters:
                parameter.gather_handle = gather_handle
                if uses_all_reduce:
                    parameter.storage.gathered_storage = flat_buffer
            del flat_buffer
        del copied_shards

    def _wait_for_all_gather(self, parameter: Parameter) -> None:
        """Copies gathered parameters out of the all-gather's flat buffer."""
        gather_handle = parameter.gather_handle
        assert gather_handle is not None
        parameter.gather_handle = None
        if not gather_handle.is_complete:
            gather_handle.is_complete = True
            for gathered_parameter in gather_handle.parameters:
                gathered_parameter.is_gathered = True
                if gathered_parameter.storage.gathered_storage is None and self.rank_count > 1:
                    with self.gathering_stream():
                        gathered_parameter.storage.gathered_storage = Storage(
                            self.meter, gathered_parameter.element_count * gathered_parameter.full_param.dtype.bytes
                        )

    def release_module(self, module_path: ModulePath) -> None:
        """Releases a module's parameters that are not read again soon (`release_sub_module`)."""
        for parameter in (
            self._parameters_to_release(module_path)
            if self.needs_autograd_node
            else self.parameters_by_module[module_path]
        ):
            self._release(parameter)

    def _release(self, parameter: Parameter) -> None:
        """Frees the storage of a gathered parameter."""
        if parameter.is_gathered and parameter.gather_handle is None:
            parameter.storage.gathered_storage, parameter.is_gathered = None, False
            self.gathered_elements -= parameter.element_count

    def _parameters_to_release(self, module_path: ModulePath) -> list[Parameter]:
        """Returns the parameters to release after a module (`__params_to_release`), from a cache for each step."""
        cache_key = (module_path, self.step_index)
        if cache_key not in self.parameters_to_release:
            released_parameters = [
                parameter
                for parameter in self.parameters_by_module[module_path]
                if not parameter.is_persistent and parameter.last_fetched_step <= self.step_index
            ]
            reuse_distance = 0
            for step_index in range(self.step_index, len(self.module_order)):
                if reuse_distance >= self.settings.stage3_max_reuse_distance or not released_parameters:
                    break
                for parameter in self.parameters_by_module[self.module_order[step_index]]:
                    if parameter in released_parameters:
                        released_parameters.remove(parameter)
                    reuse_distance += parameter.element_count
            self.parameters_to_release[cache_key] = released_parameters
        return self.parameters_to_release[cache_key]

    def release_all(self) -> None:
        """Releases all parameters (`release_and_reset_all`)."""
        for parameter in self.parameters:
            if parameter.gather_handle is not None:
                self._wait_for_all_gather(parameter)
            self._release(parameter)
        self.modules_in_backward = []

    def gather_persistent(self) -> None:
        """Gathers each persistent parameter into a separate buffer at the end of a step."""
        persistent_parameters = [parameter for parameter in self.parameters if parameter.is_persistent]
        with count_storages_as(self.meter, "weights"):
            shard_copies = self._copy_shards_from_host(persistent_parameters)
            for parameter in persistent_parameters:
                parameter.is_gathered = True
                if self.rank_count > 1 or self.settings.offload_param != "none":
                    parameter.storage.gathered_storage = Storage(
                        self.meter, parameter.shard_elements * self.rank_count * parameter.full_param.dtype.bytes
                    )
        del shard_copies

    def _copy_shards_from_host(self, parameters: Sequence[Parameter]) -> list[Storage]:
        """Returns storages of shards copied from the host to the device; none without offloading."""
        if self.settings.offload_param == "none" or self.rank_count == 1:
            return []
        return [
            Storage(self.meter, parameter.shard_elements * parameter.full_param.dtype.bytes) for parameter in parameters
        ]

    # --- the backward pass ------------------------------------------------------------------------------------------

    def pre_backward_hook(self, module_path: ModulePath) -> Callable[[], None]:
        """Returns the hook of a module's backward pass, which gathers parameters (`PreBackwardFunctionForModule`)."""

        def fetch_before_backward() -> None:
            """Gathers the module's parameters, and releases modules whose backward pass has ended."""
            if module_path in self.modules_in_backward:
                return
            for open_module in [module for module in self.modules_in_backward if module_path[: len(module)] != module]:
                self.after_backward(open_module)
            self.modules_in_backward.append(module_path)
            self.fetch_module(module_path)

        return fetch_before_backward

    def after_backward(self, module_path: ModulePath) -> None:
        """Releases a module's parameters after its backward pass (`PostBackwardFunctionModule`)."""
        if module_path in self.modules_in_backward and module_path not in self.external_parameter_modules:
            self.modules_in_backward.remove(module_path)
            self.release_module(module_path)

    def end_backward(self) -> None:
        """Releases the modules whose parameters are still gathered at the end of the backward pass."""
        for module_path in self.modules_in_backward:
            self.release_module(module_path)
        self.modules_in_backward = []

"""ggml's compute buffers: a graph's tensors are assigned to devices and allocated, but not computed.

The scheduler gives every operation a device, divides the graph into runs on one device, and copies what such a run
reads from other devices (ggml/src/ggml-backend.cpp, `ggml_backend_sched_split_graph`). The allocator then places each
tensor in the best-fitting free block of its device's buffer and frees it after its last reader (ggml/src/ggml-alloc.c,
`ggml_gallocr_alloc_graph_impl`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from ..engines.engine import HOST_DEVICE

TENSOR_ALIGNMENT = 128
"""Bytes to which tensors are aligned on CUDA devices."""

PIPELINE_COPIES = 4
"""Number of copies of inputs with pipeline parallelism (GGML_SCHED_MAX_COPIES)."""

TensorOperation: TypeAlias = Literal["new", "inplace", "view", "store", "input", "weight", "cache"]
"""How an operation allocates its result.

new: in memory of its own. inplace: in that of a source with the same layout, where nothing else reads it.
view: nothing; it is another shape of a source. store: nothing; it writes into a cache.
input, weight, cache: no operation, but a tensor that the graph reads; only inputs are in the compute buffer.
"""


LEAF_OPERATIONS: tuple[TensorOperation, ...] = ("input", "weight", "cache")
"""Kinds of tensors that are no operation's result."""


class Tensor:
    """A tensor in a ggml compute graph.

    nbytes: its size. dimensions: equal for tensors that may share memory; None for a view with other strides.
    base: the tensor whose memory a view or a store is in. has_offset: whether a view begins within it.
    device: the device of a weight or a cache; of an operation the one that it is fixed to, or None.
    may_move: whether an operation whose weight is on the host may run on a GPU, which then gets a copy of the weight.
    is_external: whether its memory is not in a compute buffer.

    The scheduler and the allocator write the other fields. assigned_device: the device. reader_count, views: readers
    and views that have not run. offset, is_allocated: its memory. stays: whether its memory is never freed.
    """

    __slots__ = (
        "assigned_device", "base", "device", "dimensions", "has_offset", "is_allocated", "is_external", "may_move",
        "nbytes", "offset", "operation", "reader_count", "sources", "stays", "views",
    )  # fmt: skip

    def __init__(
        self,
        tensor_bytes: int,
        source_tensors: Sequence[Tensor] = (),
        operation_name: TensorOperation = "new",
        dimensions: tuple[int, ...] | None = None,
        device: str | None = None,
        has_offset: bool = False,
        may_move: bool = False,
    ) -> None:
        self.nbytes: int = tensor_bytes
        self.operation: TensorOperation = operation_name
        self.dimensions: tuple[int, ...] | None = dimensions
        self.device: str | None = device
        self.sources: list[Tensor] = list(source_tensors)
        self.has_offset: bool = has_offset
        self.may_move: bool = may_move
        self.base: Tensor | None = None
        if operation_name in ("view", "store"):
            viewed_tensor = source_tensors[-1] if operation_name == "store" else source_tensors[0]
            self.base = viewed_tensor.base or viewed_tensor
        self.is_external: bool = (self.base or self).operation in ("weight", "cache")
        self.assigned_device: str | None = None
        self.reader_count: int = 0
        self.views: int = 0
        self.offset: int = 0
        self.is_allocated: bool = False
        self.stays: bool = False


class ComputeGraph:
    """A ggml compute graph: its operations in execution order.

    unread_inputs: inputs on the host that no operation reads; they have memory all the time, in one copy.
    """

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.unread_inputs: list[Tensor] = []
        self._visited: set[int] = set()

    def add_operations(self, *result_tensors: Tensor) -> None:
        """Adds operations to the graph, each after its sources (`ggml_build_forward_expand`)."""
        for result_tensor in result_tensors:
            if id(result_tensor) in self._visited or result_tensor.operation in LEAF_OPERATIONS:
                continue
            self._visited.add(id(result_tensor))
            pending_tensors = [(result_tensor, iter(result_tensor.sources))]
            while pending_tensors:
                tensor, pending_sources = pending_tensors[-1]
                for source_tensor in pending_sources:
                    if id(source_tensor) not in self._visited:
                        self._visited.add(id(source_tensor))
                        if source_tensor.operation not in LEAF_OPERATIONS:
                            pending_tensors.append((source_tensor, iter(source_tensor.sources)))
                            break
                else:
                    pending_tensors.pop()
                    self.nodes.append(tensor)


def buffer_sizes(
    compute_graph: ComputeGraph, device_names: Sequence[str], is_pipelined: bool = False
) -> dict[str, int]:
    """Returns the bytes of the compute buffer by device; a graph can be allocated only once.

    device_names: the GPUs in their order; the host comes after them. is_pipelined: whether inputs have several copies.
    """
    _assign_devices(compute_graph.nodes, [*device_names, HOST_DEVICE])
    ordered_tensors, tensor_copies = _split_by_device(compute_graph.nodes)
    for tensor in compute_graph.unread_inputs:
        tensor.assigned_device = HOST_DEVICE
    return _allocate_tensors(ordered_tensors, tensor_copies, compute_graph.unread_inputs, is_pipelined)


def _assign_devices(graph_tensors: Sequence[Tensor], device_names: Sequence[str]) -> None:
    """Assigns each tensor of the graph to a device (passes 1 to 4 of ggml's scheduler)."""
    for tensor in graph_tensors:
        tensor.assigned_device = _fixed_device(tensor, device_names)
    operation_nodes = [tensor for tensor in graph_tensors if tensor.operation != "view"]
    for assigns_gpus_only, ordered_operations in (
        (True, operation_nodes),
        (True, operation_nodes[::-1]),
        (False, operation_nodes),
        (False, operation_nodes[::-1]),
    ):
        current_device: str | None = None
        for tensor in ordered_operations:
            if tensor.assigned_device is not None:
                current_device = (
                    None if assigns_gpus_only and tensor.assigned_device == HOST_DEVICE else tensor.assigned_device
                )
            elif current_device is not None:
                tensor.assigned_device = current_device
    for tensor in graph_tensors:
        if tensor.assigned_device is None:  # a view
            tensor.assigned_device = _default_device(tensor, device_names[0])
        for source_tensor in tensor.sources:
            if source_tensor.assigned_device is None:
                source_tensor.assigned_device = _default_device(source_tensor, tensor.assigned_device)


def _default_device(tensor: Tensor, default_device: str) -> str:
    """Returns the device of a tensor: a fixed device, the host for inputs, or the device assigned so far."""
    owner_tensor = tensor.base or tensor
    if owner_tensor.is_external:
        return owner_tensor.device or default_device
    if owner_tensor.operation == "input":
        return HOST_DEVICE
    return owner_tensor.assigned_device or default_device


def _fixed_device(operation_node: Tensor, device_names: Sequence[str]) -> str | None:
    """Returns the device that an operation must run on because of its cache or weight; None if it is free."""
    if operation_node.device is not None:
        return operation_node.device
    if operation_node.base is not None and operation_node.base.is_external:
        return operation_node.base.device
    for source_tensor in operation_node.sources:
        owner_tensor = source_tensor.base or source_tensor
        if owner_tensor.operation == "weight":
            if owner_tensor.device == HOST_DEVICE and operation_node.may_move and len(device_names) > 1:
                return device_names[0]
            return owner_tensor.device
    return None


_OperationOrder: TypeAlias = list[tuple[Tensor, Tensor | None]]
"""An operation in execution order; with a second tensor, the copy of a source that is made at this place."""


def _split_by_device(graph_tensors: Sequence[Tensor]) -> tuple[_OperationOrder, list[Tensor]]:
    """Splits the graph by device, and adds copies of tensors that a split reads from other devices (pass 5)."""
    tensor_copies: dict[tuple[int, str | None], Tensor] = {}
    operations_with_copies: _OperationOrder = []
    first_node_of_split = input_count = 0
    current_device: str | None = None
    for tensor in graph_tensors:
        if tensor.operation == "view":
            operations_with_copies.append((tensor, None))
            continue
        node_device = tensor.assigned_device
        if node_device != current_device or (input_count and _reads_weight_elsewhere(tensor, current_device)):
            first_node_of_split, input_count, current_device = len(operations_with_copies), 0, node_device
        for source_index, source_tensor in enumerate(tensor.sources):
            if source_tensor.assigned_device == node_device or (
                node_device == HOST_DEVICE and source_tensor.operation == "input"
            ):
                continue
            copy_key = (id(source_tensor), node_device)
            if copy_key not in tensor_copies:
                copied_tensor = Tensor(source_tensor.nbytes, dimensions=source_tensor.dimensions)
                copied_tensor.assigned_device = node_device
                tensor_copies[copy_key] = copied_tensor
                operations_with_copies.insert(first_node_of_split, (source_tensor, copied_tensor))
                first_node_of_split += 1
                input_count += 1
            tensor.sources[source_index] = tensor_copies[copy_key]
        operations_with_copies.append((tensor, None))
    return operations_with_copies, list(tensor_copies.values())


def _reads_weight_elsewhere(operation_node: Tensor, device: str | None) -> bool:
    return any(
        tensor.assigned_device != device and (tensor.base or tensor).operation == "weight"
        for tensor in operation_node.sources
    )


class _DeviceBuffer:
    """A device's compute buffer: its free blocks, and the largest size in use so far."""

    def __init__(self) -> None:
        self.free_blocks: list[tuple[int, int]] = [(0, 2**62)]
        self.size = 0

    def allocate(self, nbytes: int) -> int:
        """Allocates in the smallest free block that fits, the last block only if needed, and returns the offset."""
        best_block_index = len(self.free_blocks) - 1
        best_block_bytes = -1
        for i, (_, block_bytes) in enumerate(self.free_blocks[:-1]):
            if block_bytes >= nbytes and (best_block_bytes < 0 or block_bytes <= best_block_bytes):
                best_block_index, best_block_bytes = i, block_bytes
        block_offset, block_bytes = self.free_blocks[best_block_index]
        if block_bytes == nbytes:
            del self.free_blocks[best_block_index]
        else:
            self.free_blocks[best_block_index] = (block_offset + nbytes, block_bytes - nbytes)
        self.size = max(self.size, block_offset + nbytes)
        return block_offset

    def release(self, released_offset: int, tensor_bytes: int) -> None:
        """Frees a block and merges it with adjacent free blocks."""
        if not tensor_bytes:
            return
        free_blocks = self.free_blocks
        block_index = bisect_right(free_blocks, (released_offset, 0))
        if block_index < len(free_blocks) and released_offset + tensor_bytes == free_blocks[block_index][0]:
            tensor_bytes += free_blocks.pop(block_index)[1]
        if block_index and sum(free_blocks[block_index - 1]) == released_offset:
            block_index -= 1
            released_offset, previous_bytes = free_blocks.pop(block_index)
            tensor_bytes += previous_bytes
        free_blocks.insert(block_index, (released_offset, tensor_bytes))


def _aligned_size(tensor_bytes: int) -> int:
    return -(-tensor_bytes // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def _allocate_tensors(
    ordered_tensors: _OperationOrder,
    tensor_copies: Sequence[Tensor],
    unread_inputs: Sequence[Tensor],
    is_pipelined: bool,
) -> dict[str, int]:
    """Allocates all tensors in execution order; returns the bytes of the compute buffer by device."""
    buffers_by_device = defaultdict[str, _DeviceBuffer](_DeviceBuffer)
    operations_with_sources: list[tuple[Tensor, Sequence[Tensor]]] = []
    input_tensors: dict[int, Tensor] = {}
    for graph_node, copied_tensor in ordered_tensors:
        operations_with_sources += (
            [(graph_node, (graph_node,)), (copied_tensor, ())]
            if copied_tensor is not None
            else [(graph_node, graph_node.sources)]
        )
        for tensor in (graph_node, *graph_node.sources):
            if tensor.operation == "input":
                input_tensors[id(tensor)] = tensor
        if copied_tensor is None and graph_node.operation == "view" and graph_node.base is not None:
            graph_node.base.views += 1
    if is_pipelined:
        for tensor in (*input_tensors.values(), *tensor_copies):
            tensor.stays = True
            for _ in range(PIPELINE_COPIES - 1):
                buffers_by_device[str(tensor.assigned_device)].allocate(_aligned_size(tensor.nbytes))
            _allocate_tensor(tensor, buffers_by_device)
    for _, source_tensors in operations_with_sources:
        for source_tensor in source_tensors:
            source_tensor.reader_count += 1
    for tensor in (*input_tensors.values(), *unread_inputs):
        _allocate_tensor(tensor, buffers_by_device)
    for graph_node, source_tensors in operations_with_sources:
        for source_tensor in source_tensors:
            _allocate_tensor(source_tensor, buffers_by_device)
        if graph_node not in source_tensors:
            _allocate_tensor(graph_node, buffers_by_device)
        for source_tensor in source_tensors:
            source_tensor.reader_count -= 1
            if source_tensor.reader_count or source_tensor.views:
                continue
            owner_tensor = source_tensor
            if source_tensor.base is not None:
                owner_tensor = source_tensor.base
                owner_tensor.views -= 1
                if owner_tensor.views or owner_tensor.reader_count:
                    continue
            if owner_tensor.is_allocated and not owner_tensor.stays:
                buffers_by_device[str(owner_tensor.assigned_device)].release(
                    owner_tensor.offset, _aligned_size(owner_tensor.nbytes)
                )
                owner_tensor.is_allocated = False
    return {device: device_buffer.size for device, device_buffer in buffers_by_device.items()}


def _allocate_tensor(tensor: Tensor, buffers_by_device: Mapping[str, _DeviceBuffer]) -> None:
    """Allocates a tensor, in the memory of a source that is no longer read or in a free block."""
    if tensor.is_allocated or tensor.is_external or tensor.base is not None:
        return
    tensor.is_allocated = True
    if tensor.operation == "inplace":
        for source_tensor in tensor.sources:
            if _can_reuse_memory(source_tensor, tensor):
                owner_tensor = source_tensor.base or source_tensor
                tensor.offset = owner_tensor.offset
                surplus_bytes = max(_aligned_size(owner_tensor.nbytes) - _aligned_size(tensor.nbytes), 0)
                buffers_by_device[str(tensor.assigned_device)].release(
                    tensor.offset + _aligned_size(tensor.nbytes), surplus_bytes
                )
                source_tensor.is_allocated = owner_tensor.is_allocated = False
                return
    tensor.offset = buffers_by_device[str(tensor.assigned_device)].allocate(_aligned_size(tensor.nbytes))


def _can_reuse_memory(source_tensor: Tensor, tensor: Tensor) -> bool:
    """Whether an operation can write its result into a source tensor that no other operation reads."""
    owner_tensor = source_tensor.base or source_tensor
    if (
        source_tensor.is_external
        or source_tensor.dimensions is None
        or source_tensor.dimensions != tensor.dimensions
        or owner_tensor.stays
        or source_tensor.assigned_device != tensor.assigned_device
        or source_tensor.reader_count != 1
        or source_tensor.views
    ):
        return False
    return source_tensor.base is None or (
        owner_tensor.views == 1 and not owner_tensor.reader_count and not source_tensor.has_offset
    )

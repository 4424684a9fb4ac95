"""Memory events in torch's CPU profiler: allocations and additions of gradients in a forward and a backward pass.

A dispatch mode changes what autograd does: under it, and on meta, torch adds no gradient in place
(torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`; aten/src/ATen/TensorSubclassLikeUtils.h). The profiler
changes nothing, and it sees what a kernel allocates for itself. Such a block is *scratch*: the kernel that allocates it
frees it before it returns. The kernel is the outermost operation that torch does not take apart above autograd, which
is what a dispatch mode sees as one call.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch

FORWARD_PASS, BACKWARD_PASS = "forward pass", "backward pass"
"""Names of the forward and the backward pass in profiles (`torch.profiler.record_function`)."""

NUMBER_BYTES = 8
"""Bytes of the tensor that torch creates for a Python number."""

ENGINE_EVENT_PREFIX = "autograd::engine::evaluate_function"
"""Prefix of events of autograd's engine. An addition directly below such an event is a sum of two gradients."""

GRADIENT_SUM_OPERATIONS = {"aten::add": False, "aten::add_": True}
"""Operation that adds two gradients → whether it is in place."""


@dataclass(eq=False)
class MemoryBlock:
    """A block of memory that a pass allocates.

    size: bytes.
    kernel: the operation that allocates it; empty outside of operations.
    is_scratch: whether that operation frees it.
    """

    size: int
    kernel: str
    is_scratch: bool = False

    @property
    def is_python_number(self) -> bool:
        """Whether the block is a tensor that torch creates from a Python number, not the result of an operation."""
        return not self.kernel and self.size == NUMBER_BYTES

    @property
    def is_counted(self) -> bool:
        """Whether the simulator counts the block: scratch blocks and Python numbers are left out."""
        return not self.is_scratch and not self.is_python_number


class MemoryEvent(NamedTuple):
    """An allocation (sign 1) or a release (sign -1) of a memory block. phase: the pass in which it happens."""

    byte_sign: int
    block: MemoryBlock
    phase: str


class PassBytes(NamedTuple):
    """The bytes of a forward and of a backward pass.

    live_after_forward: bytes alive after the forward pass.
    forward_peak, backward_peak: peak of each pass.
    """

    live_after_forward: int
    forward_peak: int
    backward_peak: int


class GradientSums(NamedTuple):
    """The bytes added when gradients are summed within a backward pass, not over micro-batches.

    in_place_bytes: sums that overwrite the first gradient.
    out_of_place_bytes: sums that are new tensors.
    """

    in_place_bytes: int = 0
    out_of_place_bytes: int = 0

    def with_addition(self, byte_count: int, is_in_place: bool) -> GradientSums:
        """Returns the sums with another addition of gradients of `byte_count` bytes."""
        return GradientSums(
            self.in_place_bytes + byte_count * is_in_place, self.out_of_place_bytes + byte_count * (not is_in_place)
        )


@contextmanager
def discard_profiler_log() -> Iterator[None]:
    """Discards the log that torch's profiler writes to standard error, which no setting of torch suppresses."""
    saved_descriptor, null_descriptor = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null_descriptor, 2)
        yield
    finally:
        os.dup2(saved_descriptor, 2)
        os.close(saved_descriptor)
        os.close(null_descriptor)


@dataclass
class CpuEvents:
    """The memory events of a forward and a backward pass, from torch's CPU profiler.

    memory_events: allocations and releases in order.
    gradient_sums: bytes of sums of gradients.
    """

    memory_events: list[MemoryEvent] = field(default_factory=list)
    gradient_sums: GradientSums = field(default_factory=GradientSums)

    @property
    def scratch_bytes(self) -> dict[str, int]:
        """The bytes of the largest scratch block of each kernel."""
        largest_bytes: dict[str, int] = {}
        for _, memory_block, _ in self.memory_events:
            if memory_block.is_scratch:
                largest_bytes[memory_block.kernel] = max(largest_bytes.get(memory_block.kernel, 0), memory_block.size)
        return largest_bytes

    def pass_bytes(self, is_counted: Callable[[MemoryBlock], bool] = lambda block: block.is_counted) -> PassBytes:
        """Returns the bytes of the forward and of the backward pass.

        is_counted: whether a block counts; default blocks that the simulator counts.
        """
        live_bytes, bytes_after_forward, peaks = 0, 0, {FORWARD_PASS: 0, BACKWARD_PASS: 0}
        for event_sign, memory_block, phase in self.memory_events:
            live_bytes += event_sign * memory_block.size * is_counted(memory_block)
            peaks[phase] = max(peaks[phase], live_bytes)
            bytes_after_forward = live_bytes if phase == FORWARD_PASS else bytes_after_forward
        return PassBytes(bytes_after_forward, peaks[FORWARD_PASS], max(peaks[BACKWARD_PASS], bytes_after_forward))


def outermost_kernel(operations: list[Any]) -> Any | None:
    """Returns the outermost of nested operations that is a kernel; None without a kernel."""
    return next((operation for operation in operations if _is_kernel(operation.name)), None)


def read_events(profiler_result: Any, find_kernel: Callable[[list[Any]], Any | None] = outermost_kernel) -> CpuEvents:
    """Returns the memory events in a result of torch's CPU profiler.

    profiler_result: a `torch.profiler.profile` with `profile_memory` and `record_shapes`.
    find_kernel: the operation that allocates, among the operations around an allocation, outermost first.
    """
    cpu_events, blocks_by_pointer, phase = CpuEvents(), dict[int, tuple[MemoryBlock, Any]](), FORWARD_PASS
    for allocator_event, operations in sorted(
        _memory_events(profiler_result), key=lambda event_and_operations: event_and_operations[0].start_time_ns
    ):
        if allocator_event.tag != torch._C._profiler._EventType.Allocation:
            cpu_events.gradient_sums = cpu_events.gradient_sums.with_addition(
                _gradient_sum_bytes(allocator_event), GRADIENT_SUM_OPERATIONS[allocator_event.name]
            )
            continue
        event_names = (operation.name for operation in operations)
        phase = next((event_name for event_name in event_names if event_name in (FORWARD_PASS, BACKWARD_PASS)), phase)
        kernel_operation = find_kernel(operations)
        byte_count, pointer = allocator_event.extra_fields.alloc_size, allocator_event.extra_fields.ptr
        if byte_count > 0:
            memory_block = MemoryBlock(byte_count, "" if kernel_operation is None else kernel_operation.name)
            blocks_by_pointer[pointer] = memory_block, kernel_operation
            cpu_events.memory_events.append(MemoryEvent(1, memory_block, phase))
        elif pointer in blocks_by_pointer:
            memory_block, event_allocator = blocks_by_pointer.pop(pointer)
            memory_block.is_scratch = (
                event_allocator is not None
                and kernel_operation is not None
                and event_allocator.id == kernel_operation.id
            )
            cpu_events.memory_events.append(MemoryEvent(-1, memory_block, phase))
    return cpu_events


def _memory_events(profiler_result: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each allocation, release and gradient addition, with its enclosing operations, outermost first."""
    pending_events = [
        (tree_event, list[Any]()) for tree_event in profiler_result.profiler.kineto_results.experimental_event_tree()
    ]
    while pending_events:
        allocator_event, enclosing_events = pending_events.pop()
        is_gradient_sum = (
            allocator_event.name in GRADIENT_SUM_OPERATIONS
            and bool(enclosing_events)
            and enclosing_events[-1].name.startswith(ENGINE_EVENT_PREFIX)
        )
        if is_gradient_sum or allocator_event.tag == torch._C._profiler._EventType.Allocation:
            yield allocator_event, enclosing_events
        pending_events += [
            (tree_event, [*enclosing_events, allocator_event]) for tree_event in allocator_event.children
        ]


def _gradient_sum_bytes(allocator_event: Any) -> int:
    """Returns the bytes of an addition of gradients, read from its first operand."""
    first_operand = allocator_event.extra_fields.inputs[0]
    return int(torch.Size(first_operand.sizes).numel()) * int(first_operand.dtype.itemsize)


@cache
def _is_kernel(operation_name: str) -> bool:
    """Whether an operation is a kernel, and not decomposed by autograd into other operations."""
    if not operation_name.startswith("aten::"):
        return False
    schemas = [
        schema for schema in torch._C._jit_get_schemas_for_operator(operation_name) if _is_callable_overload(schema)
    ]
    overload_names = [f"{op_schema.name}.{op_schema.overload_name}".rstrip(".") for op_schema in schemas]
    return any(
        not torch._C._dispatch_has_kernel_for_dispatch_key(op_schema, "CompositeImplicitAutograd")
        for op_schema in overload_names
    )


def _is_callable_overload(schema: Any) -> bool:
    """Whether an overload of an operator has a kernel and takes neither axis names nor `out`."""
    operation_name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    has_kernel = torch._C._dispatch_has_kernel(operation_name)
    return (
        has_kernel
        and "name" not in schema.overload_name.lower()
        and not any(argument.is_out for argument in schema.arguments)
    )

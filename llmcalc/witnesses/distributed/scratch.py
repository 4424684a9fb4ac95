"""Scratch memory on the CPU: blocks that a kernel or a collective frees before it returns.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ALLOCATORS = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::_resize_output_", "aten::detach", "aten::alias")
"""Prefixes of operations that allocate memory for others."""


def scratch_of(run_kernels: Callable[[], object]) -> dict[str, int]:
    """Returns the bytes of the largest scratch block by kernel or collective.

    torch's profiler records every block, but not the thread of gloo that uses it.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run_kernels()
    largest_bytes: dict[str, int] = {}
    blocks: dict[int, tuple[int, Any]] = {}
    for event, enclosing_events in sorted(
        _allocations(profiler), key=lambda enclosing_event: enclosing_event[0].start_time_ns
    ):
        byte_count, pointer = event.extra_fields.alloc_size, event.extra_fields.ptr
        kernel = next(
            (enclosing_event for enclosing_event in reversed(enclosing_events) if _computes(enclosing_event.name)), None
        )
        if byte_count > 0:
            blocks[pointer] = byte_count, kernel
        elif pointer in blocks:
            byte_count, operation_name = blocks.pop(pointer)
            if operation_name is not None and kernel is not None and operation_name.id == kernel.id:
                largest_bytes[operation_name.name] = max(largest_bytes.get(operation_name.name, 0), byte_count)
    return dict(sorted(largest_bytes.items()))


def _computes(name: str) -> bool:
    return name.startswith(("aten::", "c10d::", "gloo:")) and not name.startswith(ALLOCATORS)


def _allocations(profiler: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields every allocation and release with its enclosing operations, outermost first."""
    pending_events = [(event, list[Any]()) for event in profiler.profiler.kineto_results.experimental_event_tree()]
    while pending_events:
        event, enclosing_events = pending_events.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event, enclosing_events
        pending_events += [(child_event, [*enclosing_events, event]) for child_event in event.children]

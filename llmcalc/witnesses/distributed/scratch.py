"""Scratch memory on the CPU: blocks that a kernel or a collective frees before its end.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from ..cpu_events import read_events

ALLOCATORS = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::_resize_output_", "aten::detach", "aten::alias")
"""Prefixes of operations that allocate memory for others."""


def scratch_bytes_by_kernel(run_kernels: Callable[[], object]) -> dict[str, int]:
    """Returns, for each kernel or collective, the bytes of its largest scratch block.

    torch's profiler records every block, but not the thread of gloo that uses it.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
        run_kernels()
    return dict(sorted(read_events(profiler, _innermost_computation).scratch_bytes.items()))


def _innermost_computation(operations: list[Any]) -> Any | None:
    """Returns the innermost computation or collective among nested operations; None without one."""
    return next((operation for operation in reversed(operations) if _is_computation(operation.name)), None)


def _is_computation(operation_name: str) -> bool:
    return operation_name.startswith(("aten::", "c10d::", "gloo:")) and not operation_name.startswith(ALLOCATORS)

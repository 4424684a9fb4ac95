"""What the processor takes beside tensors, by name: memory that a kernel or a collective frees before it returns.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MAKERS = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::_resize_output_", "aten::detach", "aten::alias")
"""How names begin of operations that allocate for others."""


def scratch_of(run: Callable[[], object]) -> dict[str, int]:
    """Kernel or collective → the bytes of the largest block that it took and freed.

    torch's profiler sees every block, but not which thread of gloo it is for.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    found: dict[str, int] = {}
    blocks: dict[int, tuple[int, Any]] = {}
    for event, above in sorted(_allocations(seen), key=lambda one: one[0].start_time_ns):
        size, pointer = event.extra_fields.alloc_size, event.extra_fields.ptr
        kernel = next((one for one in reversed(above) if _computes(one.name)), None)
        if size > 0:
            blocks[pointer] = size, kernel
        elif pointer in blocks:
            size, maker = blocks.pop(pointer)
            if maker is not None and kernel is not None and maker.id == kernel.id:
                found[maker.name] = max(found.get(maker.name, 0), size)
    return dict(sorted(found.items()))


def _computes(name: str) -> bool:
    return name.startswith(("aten::", "c10d::", "gloo:")) and not name.startswith(MAKERS)


def _allocations(seen: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields every allocation and release, and the operations around it, the outermost first."""
    todo = [(event, list[Any]()) for event in seen.profiler.kineto_results.experimental_event_tree()]
    while todo:
        event, above = todo.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event, above
        todo += [(below, [*above, event]) for below in event.children]

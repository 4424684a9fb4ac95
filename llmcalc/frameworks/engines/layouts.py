"""Layouts of a server over more devices: tensor parallelism within a machine, then stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...errors import InputError
from ...parallel.layout import ImpossibleLayout
from .engine import EngineMemory
from .server import EngineServer

Server = TypeVar("Server", bound=EngineServer)


def layouts_of(
    server: Server,
    memory_of: Callable[[Server], EngineMemory],
    most_devices: int,
    largest_tensor: int = 8,
    has_stages: bool = True,
) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, memory) of each possible layout, fewest devices first; sizes in the flags stay unchanged.

    Of a number of devices, the layout with the most tensor parallelism is first. More stages instead of it follow where
    it leaves room for a cache: they divide caches of which every rank of tensor parallelism has a copy.

    memory_of: server → its memory. most_devices: the largest number of devices.
    largest_tensor: devices of a machine, which divide each matrix. has_stages: whether more devices become stages.
    """
    tensor_field, stage_field = server.layout_fields[:2]
    stated_tensor, stated_stages = server.flags.get(tensor_field), server.flags.get(stage_field)
    ranks_beside = max(1, server.device_count // (server.tp * server.pp))  # data-parallel ranks
    powers_of_two = [2**i for i in range((most_devices // ranks_beside).bit_length())]
    sizes_by_devices: dict[int, list[tuple[int, int]]] = {}
    for tp in [stated_tensor] if stated_tensor else [size for size in powers_of_two[::-1] if size <= largest_tensor]:
        for pp in [stated_stages] if stated_stages else powers_of_two if has_stages else [1]:
            if tp * pp * ranks_beside <= most_devices:
                sizes_by_devices.setdefault(tp * pp, []).append((tp, pp))
    for _, parallel_sizes in sorted(sizes_by_devices.items()):
        for tp, pp in parallel_sizes:
            flags = {size_field: degree for size_field, degree in ((tensor_field, tp), (stage_field, pp)) if degree > 1}
            try:
                layout_memory = memory_of(server.with_flags(**flags))
            except InputError as error:
                if not isinstance(error, ImpossibleLayout) and "divide" not in str(error):
                    raise
                continue
            yield flags, layout_memory
            if not layout_memory.kv_tokens:
                break

"""Layouts of a server on more devices: tensor parallelism within a machine, then pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...errors import InputError
from ...parallel.layout import ImpossibleLayout
from .engine import EngineMemory
from .rank import IndivisibleExperts
from .server import EngineServer

Server = TypeVar("Server", bound=EngineServer)


def layouts_with_memory(
    server: Server,
    memory_function: Callable[[Server], EngineMemory],
    device_limit: int,
    tp_limit: int = 8,
    allows_stages: bool = True,
    whole_expert_flags: Callable[[int], dict[str, Any]] | None = None,
) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields the flags and memory of each layout, fewest devices first, without changing sizes that the user typed.

    Of a number of devices, the layout with the most tensor parallelism is first. More stages instead of it follow where
    it leaves room for a cache: they divide caches of which every rank of tensor parallelism has a copy.

    memory_function: server → its memory. device_limit: the largest number of devices.
    tp_limit: devices of a machine, which divide each matrix. allows_stages: whether more devices become stages.
    whole_expert_flags: ranks of tensor parallelism → the flags that give each of them whole experts, where experts of
        the stored format cannot be divided by so many, a number that nobody typed; None for none.
    """
    tp_field, pp_field = server.layout_flag_names[:2]
    tp_size, typed_stage_count = server.flags.get(tp_field), server.flags.get(pp_field)
    data_parallel_ranks = max(1, server.device_count // (server.tp * server.pp))  # data-parallel ranks
    powers_of_two = [2**i for i in range((device_limit // data_parallel_ranks).bit_length())]
    sizes_by_devices: dict[int, list[tuple[int, int]]] = {}
    for tp in (
        [tp_size] if tp_size else [parallel_size for parallel_size in powers_of_two[::-1] if parallel_size <= tp_limit]
    ):
        for pp in [typed_stage_count] if typed_stage_count else powers_of_two if allows_stages else [1]:
            if tp * pp * data_parallel_ranks <= device_limit:
                sizes_by_devices.setdefault(tp * pp, []).append((tp, pp))
    for _, parallel_sizes in sorted(sizes_by_devices.items()):
        for tp, pp in parallel_sizes:
            flags = {
                size_field: parallel_size
                for size_field, parallel_size in ((tp_field, tp), (pp_field, pp))
                if parallel_size > 1
            }
            try:
                try:
                    layout_memory = memory_function(server.with_flags(**flags))
                except IndivisibleExperts:
                    if whole_expert_flags is None or tp_size:
                        raise
                    flags |= whole_expert_flags(tp)
                    layout_memory = memory_function(server.with_flags(**flags))
            except InputError as error:
                has_added_stages = pp > 1 and not typed_stage_count  # what refuses them says nothing of other layouts
                if not isinstance(error, ImpossibleLayout) and "divide" not in str(error) and not has_added_stages:
                    raise
                continue
            yield flags, layout_memory
            if not layout_memory.kv_tokens:
                break

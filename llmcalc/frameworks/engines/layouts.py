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

    memory_of: server → its memory. most_devices: the largest number of devices.
    largest_tensor: devices of a machine, which divide each matrix. has_stages: whether more devices become stages.
    """
    tensor_field, stage_field = server.layout_fields[:2]
    stated_tensor, stated_stages = server.flags.get(tensor_field), server.flags.get(stage_field)
    powers_of_two = [2**i for i in range(most_devices.bit_length())]
    parallel_sizes = [
        (tp, pp)
        for tp in (
            [stated_tensor] if stated_tensor else [degree for degree in powers_of_two if degree <= largest_tensor]
        )
        for pp in ([stated_stages] if stated_stages else powers_of_two)
        if tp * pp <= most_devices
        and (stated_stages or pp == 1 or (has_stages and (stated_tensor or tp == largest_tensor)))
    ]
    for tp, pp in sorted(parallel_sizes, key=lambda degree: degree[0] * degree[1]):
        flags = {size_field: degree for size_field, degree in ((tensor_field, tp), (stage_field, pp)) if degree > 1}
        try:
            yield flags, memory_of(server.with_flags(**flags))
        except InputError as error:
            if not isinstance(error, ImpossibleLayout) and "divide" not in str(error):
                raise

"""The memory of one rank under FSDP2 as an answer, the ranks that differ, and what a step sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...algebra import ceil_div
from ...kernels.lowering import RECORDED
from ...kernels.meter import Meter, Place
from ...model import ModelSpec
from ...run.layout import Layout
from ..answer import TORCH, DeviceMemory, Term, device_memory
from ..fold import Loop, loops
from ..runtime import HOPPER, Runtime
from ..training import Training
from .groups import Group, Kind, Sharding
from .lowering import MODEL, Layer, Sharded
from .training import TITAN, Fsdp, FsdpRun, record, sharding


def fsdp_memory(
    spec: ModelSpec,
    how: Training,
    layout: Layout,
    rank: int = 0,
    runtime: Runtime = HOPPER,
    fsdp: Fsdp = TITAN,
) -> DeviceMemory:
    """Replays training of one rank. `how.dtype` is the format in which modules compute.

    Raises `Unsupported` for a step of the model without kernels, and `InputError` for a layout or training that FSDP2
    is not modelled with.
    """
    sharded = sharding(how, layout, rank, fsdp)
    return device_memory(
        spec,
        lambda layers, workspace: [record(spec, how, sharded, fsdp, layout.reshard, layers, workspace)],
        runtime,
        (),
        Term("tensors", 0, "exact", "torch's FSDPMemTracker on a fake process group: every operation's storages", TORCH),
        how.recompute.every,
    )

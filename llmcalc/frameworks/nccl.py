"""NCCL's memory on a GPU outside torch's allocator: buffers of the connections between ranks.

Every communicator has buffers of its own. Only A100s of one machine with NVSwitch are counted. From the H100 on, NCCL
may sum in the switch, with buffers whose number follows from the operations that it sends there. Between machines, the
channels follow from the network cards.

Source: NCCL 2.14.3 and 2.28.9: init.cc (sizes), graph/search.cc and graph/connect.cc (channels), transport/p2p.cc
(what a connection allocates).
"""

from __future__ import annotations

from dataclasses import replace

from ..device_memory.cuda_runtime import CudaRuntime
from ..device_memory.device_memory import DeviceMemory, MemoryTerm
from ..parallel.layout import Layout
from ..simulator.versions import is_older_version
from .framework import Framework

NCCL_STEPS = 8
"""Number of slots in each of NCCL's buffers (`NCCL_STEPS`)."""

CONNECTION_BYTES = 8 * 512 * NCCL_STEPS * 16 + 120 * 640 * NCCL_STEPS * 8 + (4 << 20)
"""Bytes of all buffers of one connection: protocols LL and LL128 (per thread), and Simple (NCCL_BUFFSIZE, 4 MiB).

Some belong to the receiver, some to the sender; a rank has as many of each.
"""

CHANNEL_COUNT = 24
"""Number of NCCL channels of an A100 behind NVSwitch.

Its 12 links carry 264 GB/s (240 from NCCL 2.18 on), which is 6 channels of 44 (40); `ncclTopoCompute` doubles them, as
they have more than 25 GB/s, and so does `ncclTopoPostset`.
"""

MAX_GPUS_PER_MACHINE = 8
"""Largest number of GPUs in one machine."""

FIRST_LAZY_TORCH = (2, 7)
"""First version of torch whose NCCL (2.22) connects only the rings in use; earlier versions also connect trees."""

BUFFERS_TERM = "NCCL buffers"


def communicator_bytes(rank_count: int, torch_version: str = "") -> int:
    """Returns the mean bytes per rank of one NCCL communicator.

    In a ring each rank sends to one other. A tree inside a machine is a chain, with sums up and results down.
    torch_version: its version, by default the newest.
    """
    if rank_count == 1:
        return 0
    tree_edges = 2 * (rank_count - 1) if is_older_version(torch_version, FIRST_LAZY_TORCH) else 0
    return CHANNEL_COUNT * CONNECTION_BYTES * (rank_count + tree_edges) // rank_count


def ranks_per_communicator(layout: Layout, framework: Framework) -> list[int]:
    """Returns the number of ranks in each NCCL communicator of a rank, without pipeline communicators.

    They are the group of all ranks and a copy of it, or one for each axis of the device mesh.
    """
    if framework.has_two_world_communicators:
        return [layout.world_size] * 2
    return [layout.tp, layout.cp, layout.dp // layout.hsdp_replicas, layout.hsdp_replicas]


def has_known_buffers(layout: Layout, framework: Framework, cuda_runtime: CudaRuntime) -> bool:
    """Whether the size of NCCL's buffers in a layout is known; true for a single rank."""
    if layout.world_size == 1:
        return True
    is_known_machine = layout.world_size <= MAX_GPUS_PER_MACHINE and cuda_runtime.gpu_name.startswith("A100")
    return framework.has_known_communicators and layout.pp == 1 and is_known_machine


def with_nccl_buffers(
    rank_memory: DeviceMemory, layout: Layout, framework: Framework, cuda_runtime: CudaRuntime, torch_version: str = ""
) -> DeviceMemory:
    """Returns a rank's memory plus NCCL's buffers, if the size of the buffers is known."""
    if not has_known_buffers(layout, framework, cuda_runtime):
        return rank_memory
    nccl_bytes = sum(
        communicator_bytes(rank_count, torch_version) for rank_count in ranks_per_communicator(layout, framework)
    )
    if not nccl_bytes:
        return rank_memory
    citation = "NCCL's source: 24 channels of an A100 behind NVSwitch"
    return replace(
        rank_memory,
        device_bytes=rank_memory.device_bytes + nccl_bytes,
        terms=(
            *rank_memory.terms,
            MemoryTerm(BUFFERS_TERM, nccl_bytes, "estimate", citation, "NCCL 2.14 to 2.28", True),
        ),
    )

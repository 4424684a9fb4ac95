"""The memory of one rank as an answer."""

from __future__ import annotations

from dataclasses import replace

from ...kernels.meter import Meter, Place
from ...model import ModelSpec
from ...run.megatron import MegatronSettings
from ..allocator import CachingAllocator
from ..answer import DeviceMemory, Term, summed, uncollected
from ..fold import loops
from ..runtime import CONTEXT, Runtime
from ..training import PHASES, Replayed
from .kernels import expandable
from .run import RankRun

SOURCES = {
    "weights": "Megatron-LM, core/distributed/param_and_grad_buffer.py",
    "gradients": "Megatron-LM, core/distributed/param_and_grad_buffer.py; TransformerEngine, module/base.py",
    "optimizer": "Megatron-LM, core/optimizer/distrib_optimizer.py and optimizer.py",
    "activations": "Megatron-LM, core/transformer and core/tensor_parallel; TransformerEngine, module and attention",
    "temporary": "Megatron-LM, core/pipeline_parallel/schedules.py; TransformerEngine, module and attention",
    "communication": "Megatron-LM, core/utils.py, GlobalMemoryBuffer",
    "overhead": "TransformerEngine, cpp_extensions/gemm.py; aten/src/ATen/cuda/CublasHandlePool.cpp",
}
"""Kind of memory → where its tensors were read."""

NAMES = {"overhead": "workspaces and tables"}

REVISIONS = "Megatron-LM d98e8a64, TransformerEngine d0067d0d"


@uncollected()
def replay_rank(spec: ModelSpec, settings: MegatronSettings, rank: int) -> Replayed:
    """Replays set-up and two steps of a rank. Raises `InputError`, naming the argument, for what is not modelled."""
    device = CachingAllocator(expandable(settings))
    meter = Meter(device)
    run = RankRun(spec, settings, rank, meter)
    run.set_up()
    run.step()
    meter.place = Place()
    meter.peaks = {}
    run.step()
    meter.place = Place("after")
    found = Replayed(after=device.allocated, reserved=device.peak_reserved)
    found.peaks = {place: peak for place, peak in meter.peaks.items() if place.phase in PHASES}
    found.slop = device.peak_allocated - found.peak[1].bytes
    return found


def rank_memory(spec: ModelSpec, settings: MegatronSettings, rank: int, context: int = CONTEXT) -> DeviceMemory:
    """The memory of a rank of a run, numbered as `Layout.at` numbers it. context: bytes of the CUDA context."""
    found = replay_rank(spec, settings, rank)
    answer = summed(found, Runtime(context=context), loops(spec), Term("tensors", 0, "source", ""))
    versions = REVISIONS if settings.date is None else f"Megatron-LM of {settings.date}"
    allocator = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    tensors = (
        Term(NAMES.get(kind, kind), bytes, "source", SOURCES[kind], versions)
        for kind, bytes in found.peak[1].kinds.items()
        if kind in SOURCES
    )
    return replace(
        answer,
        terms=(
            *tensors,
            Term("rounding to blocks", found.slop, "source", allocator),
            Term("free blocks", answer.reserved_bytes - answer.peak_bytes, "estimate", allocator),
            Term("CUDA context", context, "estimate", "0.4 to 0.6 GiB by GPU and driver"),
        ),
    )

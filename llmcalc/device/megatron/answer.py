"""The memory of one rank as an answer."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...kernels.meter import Meter, Peak, Place
from ...model import ModelSpec
from ...run.megatron import MegatronSettings
from ..answer import DeviceMemory, Point, Term
from ..runtime import CONTEXT
from .kernels import expandable
from .run import RankRun
from .streams import Streams

PHASES = ("forward", "backward", "step")
"""The parts of a training step, in order."""

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


@dataclass(frozen=True)
class Replayed:
    """What a replay of a rank found. exact: kind → bytes of tensors at the peak. peaks: place → the most there."""

    place: Place
    exact: Mapping[str, int]
    peaks: Mapping[Place, Peak]
    allocated: int
    after: int
    reserved: int


def replay_rank(spec: ModelSpec, settings: MegatronSettings, rank: int) -> Replayed:
    """Replays set-up and two steps of a rank. Raises `InputError`, naming the argument, for what is not modelled."""
    device = Streams(expandable(settings))
    meter = Meter(device)
    enabled = gc.isenabled()
    gc.disable()
    try:
        run = RankRun(spec, settings, rank, meter)
        run.set_up()
        run.step()
        meter.place = Place()
        meter.peaks = {}
        run.step()
        meter.place = Place("after")
    finally:
        if enabled:
            gc.enable()
    peaks = {place: peak for place, peak in meter.peaks.items() if place.phase in PHASES}
    place, peak = max(peaks.items(), key=lambda one: one[1].bytes)
    return Replayed(place, peak.kinds, peaks, device.peak_allocated, device.allocated, device.peak_reserved)


def rank_memory(spec: ModelSpec, settings: MegatronSettings, rank: int, context: int = CONTEXT) -> DeviceMemory:
    """The memory of a rank of a run, numbered as `Layout.at` numbers it. context: bytes of the CUDA context."""
    found = replay_rank(spec, settings, rank)
    exact = sum(found.exact.values())
    workspaces = found.exact["overhead"]
    rounding = found.allocated - exact
    kinds = {**found.exact, "overhead": workspaces + rounding}
    reserved = max(found.reserved, found.allocated)
    versions = REVISIONS if settings.date is None else f"Megatron-LM of {settings.date}"
    allocator = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    return DeviceMemory(
        exact_bytes=exact - workspaces,
        peak_bytes=found.allocated,
        after_step_bytes=found.after,
        reserved_bytes=reserved,
        device_bytes=reserved + context,
        peak_at=Point(found.place.phase, node_of(found.place), exact),
        by_kind=kinds,
        timeline=tuple(timeline(found.peaks)),
        moments=moments(found.peaks),
        terms=(
            *(
                Term(NAMES.get(kind, kind), bytes, "source", SOURCES[kind], versions)
                for kind, bytes in found.exact.items()
                if kind in SOURCES
            ),
            Term("rounding to blocks", rounding, "source", allocator),
            Term("free blocks", reserved - found.allocated, "estimate", allocator),
            Term("CUDA context", context, "estimate", "0.4 to 0.6 GiB by GPU and driver"),
        ),
    )


def node_of(place: Place) -> str:
    """The path of a module with the index of its layer, as it is in the tree."""
    if place.turn < 0:
        return place.path
    parts = place.path.split(".")
    return ".".join(f"{part}.{place.turn}" if part == "layers" else part for part in parts)


def timeline(peaks: Mapping[Place, Peak]) -> list[Point]:
    """The most of every module, in the order of the phases."""
    points: dict[str, list[Point]] = {phase: [] for phase in PHASES}
    for place, peak in peaks.items():
        if peak.bytes:
            points[place.phase].append(Point(place.phase, node_of(place), peak.bytes))
    return [point for of in points.values() for point in of]


def moments(peaks: Mapping[Place, Peak]) -> dict[str, Mapping[str, int]]:
    """Phase → what stands at its highest point, by kind."""
    found: dict[str, Mapping[str, int]] = {}
    for phase in PHASES:
        of: Sequence[Peak] = [peak for place, peak in peaks.items() if place.phase == phase]
        if of:
            found[phase] = max(of, key=lambda peak: peak.bytes).kinds
    return found

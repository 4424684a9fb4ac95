"""The memory of one device as an answer: how much, when, where, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..kernels.meter import KINDS, Peak, Place
from ..model import ModelSpec
from .allocator import CachingAllocator
from .fold import Loop, folded, loops
from .runtime import HOPPER, Runtime
from .training import PHASES, Replayed, Training, replay

Status: TypeAlias = Literal["exact", "source", "estimate"]

MANY = 24
"""Layers up to which a run is replayed in full on the allocator; of more, the reserved bytes are extrapolated."""


@dataclass(frozen=True)
class Point:
    """The most bytes while a module ran. node: its path, with the index of its layer; empty for the model itself."""

    phase: str
    node: str
    bytes: int


@dataclass(frozen=True)
class Term:
    """A part of the answer, and how it is known.

    status: `exact` if torch itself has been equal to it, `source` if it was read from the code of a library and not
        run, `estimate` otherwise. witness: what it was compared with, or where it was read.
    """

    name: str
    bytes: int
    status: Status
    witness: str


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, in bytes.

    exact_bytes: tensors alive at the peak.
    peak_bytes: the allocator's blocks at the peak, with workspaces (torch.cuda.max_memory_allocated).
    after_step_bytes: the allocator's blocks after a step (torch.cuda.memory_allocated).
    reserved_bytes: the allocator's segments (torch.cuda.max_memory_reserved).
    device_bytes: the segments and the CUDA context, which is what has to fit.
    peak_at: where the peak of blocks is. by_kind: what they are; it adds up to `peak_bytes`.
    timeline: the most of every module, in the order of the step.
    terms: parts of the answer, with how each is known.
    """

    exact_bytes: int
    peak_bytes: int
    after_step_bytes: int
    reserved_bytes: int
    device_bytes: int
    peak_at: Point
    by_kind: Mapping[str, int]
    timeline: tuple[Point, ...]
    terms: tuple[Term, ...]


def training_memory(spec: ModelSpec, how: Training, runtime: Runtime = HOPPER) -> DeviceMemory:
    """Replays training. Raises `Unsupported` for a step of the model without kernels."""
    stacks = loops(spec)
    exact = folded(lambda few: replay(spec, how, None, few), stacks)
    blocks, whole = _on_allocator(spec, how, runtime, stacks)
    place, peak = blocks.peak
    return DeviceMemory(
        exact_bytes=exact.peak[1].bytes,
        peak_bytes=peak.bytes,
        after_step_bytes=blocks.after,
        reserved_bytes=blocks.reserved,
        device_bytes=blocks.reserved + runtime.context,
        peak_at=Point(place.phase, node_of(place, stacks), peak.bytes),
        by_kind={kind: peak.by_kind[kind] for kind in KINDS},
        timeline=tuple(timeline(blocks.peaks, stacks)),
        terms=_terms(exact.peak[1], peak, blocks, runtime, whole),
    )


def _on_allocator(spec: ModelSpec, how: Training, runtime: Runtime, stacks: list[Loop]) -> tuple[Replayed, bool]:
    """What the caching allocator holds, and whether all layers were replayed."""

    def run(few: Mapping[int, int]) -> Replayed:
        return replay(spec, how, CachingAllocator(runtime.expandable), few, runtime.workspace)

    if sum(loop.layers for loop in stacks) <= MANY:
        return run({}), True
    found = folded(run, stacks)
    some = {i: min(loop.repeats, max(1, MANY // 3 // loop.period)) for i, loop in enumerate(stacks)}
    more = {i: min(stacks[i].repeats, 2 * repeats) for i, repeats in some.items()}
    few, many = run(some), run(more)
    added = sum((more[i] - some[i]) * loop.period for i, loop in enumerate(stacks))
    missing = sum((loop.repeats - more[i]) * loop.period for i, loop in enumerate(stacks))
    found.reserved = many.reserved + (many.reserved - few.reserved) * missing // max(1, added)
    found.reserved = max(found.reserved, found.peak[1].bytes)
    return found, False


def node_of(place: Place, stacks: list[Loop]) -> str:
    """The path of a module with the index of its layer, as it is in the tree."""
    for loop in stacks:
        if place.turn >= 0 and loop.holds(place):
            return f"{loop.path}.{place.turn}{place.path[len(loop.path) :]}"
    return place.path


def timeline(peaks: Mapping[Place, Peak], stacks: list[Loop]) -> list[Point]:
    """The most of every module, forward, then backward, then the optimizer's step."""
    ordered = sorted(peaks.items(), key=lambda one: PHASES.index(one[0].phase))
    return [Point(place.phase, node_of(place, stacks), peak.bytes) for place, peak in ordered]


def _terms(exact: Peak, peak: Peak, blocks: Replayed, runtime: Runtime, whole: bool) -> tuple[Term, ...]:
    """How the parts of the answer are known."""
    workspaces = peak.by_kind["overhead"]
    return (
        Term("tensors", exact.bytes, "exact", "torch on meta: every operation's storages"),
        Term("cuBLAS workspaces", workspaces, "source", "aten/src/ATen/cuda/CublasHandlePool.cpp"),
        Term(
            "rounding to blocks",
            peak.bytes - workspaces - exact.bytes,
            "source",
            "c10/cuda/CUDACachingAllocator.cpp, replayed",
        ),
        Term(
            "free blocks",
            blocks.reserved - peak.bytes,
            "estimate",
            "the allocator replayed" if whole else "the allocator replayed for some layers, extrapolated to all",
        ),
        Term("CUDA context", runtime.context, "estimate", "0.4 to 0.6 GiB by GPU and driver"),
    )

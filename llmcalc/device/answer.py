"""The memory of one device as an answer: how much, when, where, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from ..kernels.meter import Peak, Place
from ..model import ModelSpec
from .allocator import CachingAllocator
from .fold import Loop, folded, loops, unfolded
from .runtime import HOPPER, Runtime
from .training import Replayed, Training, replay

Status: TypeAlias = Literal["exact", "source", "estimate"]

MANY = 32
"""Layers up to which a run is replayed in full on the allocator."""

SOME = 8
"""Of more layers, the run with the fewer layers of the two that what the allocator adds is extrapolated from."""

MOMENTS = ("prefill", "decode", "forward", "backward", "step")
"""The parts of a pass or of a training step, in order."""

TORCH = "torch 2.13"


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
        run, `estimate` otherwise. witness: what it was compared with, or where it was read. versions: of which it
        holds; empty if it does not depend on a version.
    """

    name: str
    bytes: int
    status: Status
    witness: str
    versions: str = ""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, in bytes.

    exact_bytes: tensors alive at the peak.
    peak_bytes: the allocator's blocks at the peak, with workspaces (torch.cuda.max_memory_allocated).
    after_step_bytes: the allocator's blocks after a step (torch.cuda.memory_allocated).
    reserved_bytes: the allocator's segments (torch.cuda.max_memory_reserved).
    device_bytes: the segments and the CUDA context, which is what has to fit.
    peak_at: where the peak of blocks is. by_kind: what they are; it adds up to `peak_bytes`.
        `overhead` is workspaces, and the rounding to blocks.
    timeline: the most bytes of tensors of every module, in the order of the step. moments: phase → its highest point,
        by kind, as bytes of tensors.
    terms: parts of the answer, with how each is known; they add up to `device_bytes`.
    """

    exact_bytes: int
    peak_bytes: int
    after_step_bytes: int
    reserved_bytes: int
    device_bytes: int
    peak_at: Point
    by_kind: Mapping[str, int]
    timeline: tuple[Point, ...]
    moments: Mapping[str, Mapping[str, int]]
    terms: tuple[Term, ...]


class Run(Protocol):
    """Replays a run of a model."""

    def __call__(self, device: CachingAllocator | None, layers: Mapping[int, int], workspace: int) -> Replayed:
        """device: where blocks come from; None counts exact bytes. layers: repeats of each stack's pattern."""


@dataclass(frozen=True)
class Beside:
    """Bytes that a run holds and does not replay, such as those of image encoders.

    kind: what they are counted under. bytes: how many. phases: when they are there; by default always. stays: whether
        they are there after the run; true by default.
    """

    kind: str
    bytes: int
    phases: Sequence[str] = MOMENTS
    stays: bool = True


def training_memory(spec: ModelSpec, how: Training, runtime: Runtime = HOPPER) -> DeviceMemory:
    """Replays training. Raises `Unsupported` for a step of the model without kernels."""
    return device_memory(
        spec,
        lambda device, layers, workspace: replay(spec, how, device, layers, workspace),
        runtime,
        (),
        Term("tensors", 0, "exact", "torch on meta: every operation's storages", TORCH),
    )


def device_memory(spec: ModelSpec, run: Run, runtime: Runtime, beside: Sequence[Beside], tensors: Term) -> DeviceMemory:
    """Replays a run and sums up what it holds. beside: what it holds too. tensors: how its tensors are known."""
    stacks = loops(spec)
    found, whole = _replayed(run, runtime, stacks)
    _add(found, beside)
    place, peak = found.peak
    workspaces = peak.kinds["overhead"]
    kinds = peak.kinds | {"overhead": workspaces + found.slop}
    total = peak.bytes + found.slop
    reserved = max(found.reserved, total)
    return DeviceMemory(
        exact_bytes=peak.bytes - workspaces,
        peak_bytes=total,
        after_step_bytes=found.after + found.slop_after,
        reserved_bytes=reserved,
        device_bytes=reserved + runtime.context,
        peak_at=Point(place.phase, node_of(place, stacks), peak.bytes),
        by_kind=kinds,
        timeline=tuple(timeline(found, stacks)),
        moments=_moments(found.peaks),
        terms=(
            replace(tensors, bytes=peak.bytes - workspaces),
            Term("cuBLAS workspaces", workspaces, "source", "aten/src/ATen/cuda/CublasHandlePool.cpp", TORCH),
            Term("rounding to blocks", found.slop, *_allocator(whole), TORCH),
            Term("free blocks", reserved - total, "estimate", _allocator(whole)[1], TORCH),
            Term("CUDA context", runtime.context, "estimate", "0.4 to 0.6 GiB by GPU and driver"),
        ),
    )


def _allocator(whole: bool) -> tuple[Status, str]:
    """How what the allocator adds is known."""
    source = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    return ("source", source) if whole else ("estimate", f"{source} for some layers, extrapolated to all")


def _replayed(run: Run, runtime: Runtime, stacks: list[Loop]) -> tuple[Replayed, bool]:
    """What a run finds on the caching allocator, and whether all layers were replayed there.

    Of many layers the tensors are those of all, by `folded`, and what the allocator adds grows with every layer as
    much as it does between two runs of some.
    """

    def replayed(layers: Mapping[int, int]) -> Replayed:
        return run(CachingAllocator(runtime.expandable), layers, runtime.workspace)

    if sum(loop.layers for loop in stacks) <= MANY or not any(loop.folds for loop in stacks):
        return replayed({}), True
    found = folded(lambda few: run(None, few, runtime.workspace), stacks)
    some = {i: min(loop.repeats, max(1, SOME // loop.period)) for i, loop in enumerate(stacks)}
    more = {i: min(stacks[i].repeats, 2 * repeats) for i, repeats in some.items()}
    few, many = replayed(some), replayed(more)
    added = max(1, sum((more[i] - some[i]) * loop.period for i, loop in enumerate(stacks)))
    missing = sum((loop.repeats - more[i]) * loop.period for i, loop in enumerate(stacks))

    def extrapolated(of: Callable[[Replayed], int]) -> int:
        return max(0, of(many) + (of(many) - of(few)) * missing // added)

    found.slop = extrapolated(lambda one: one.slop)
    found.slop_after = extrapolated(lambda one: one.slop_after)
    free = extrapolated(lambda one: one.reserved - one.peak[1].bytes - one.slop)
    found.reserved = found.peak[1].bytes + found.slop + free
    return found, False


def _add(found: Replayed, beside: Sequence[Beside]) -> None:
    """Adds what the run holds beside."""
    for one in beside:
        found.set_up += one.bytes
        found.reserved += one.bytes
        found.after += one.bytes if one.stays else 0
        for place, peak in found.peaks.items():
            if place.phase in one.phases:
                peak.bytes += one.bytes
                peak.by_kind[one.kind] = peak.by_kind.get(one.kind, 0) + one.bytes


def node_of(place: Place, stacks: list[Loop]) -> str:
    """The path of a module with the index of its layer, as it is in the tree."""
    for loop in stacks:
        if place.turn >= 0 and loop.holds(place):
            return f"{loop.path}.{place.turn}{place.path[len(loop.path) :]}"
    return place.path


def timeline(found: Replayed, stacks: list[Loop]) -> list[Point]:
    """The most of every module of every layer that makes a tensor, in the order of the phases."""
    points = [one for one in unfolded(found, stacks) if one[1]]
    ordered = sorted(points, key=lambda one: MOMENTS.index(one[0].phase))
    return [Point(place.phase, node_of(place, stacks), bytes) for place, bytes in ordered]


def _moments(peaks: Mapping[Place, Peak]) -> dict[str, Mapping[str, int]]:
    """Phase → what stands at its highest point, by kind."""
    found: dict[str, Mapping[str, int]] = {}
    for phase in MOMENTS:
        of = [peak for place, peak in peaks.items() if place.phase == phase]
        if of:
            highest = max(of, key=lambda peak: peak.bytes)
            found[phase] = highest.kinds
    return found

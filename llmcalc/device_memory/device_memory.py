"""The memory of one device as an answer: how much, when, where, and what it is made of."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ..errors import InputError
from ..evidence import ON_META, Evidence, Status, names_of, weakest, witnesses_of
from ..model import ModelSpec
from ..simulator.caching_allocator import CachingAllocator
from ..simulator.event_log import RecordedEvents
from ..simulator.layer_loops import SHORT_RUN_REPEATS, LayerStack, layer_stacks
from ..simulator.layer_pattern import RECORDED_REPEATS
from ..simulator.meter import Peak, Place
from ..simulator.repeat_layers import AllocatorOverhead, NotRepeating, RepeatAnalysis
from ..simulator.replay_result import ReplayResult
from .cuda_runtime import Runtime
from .linear_in_layers import extrapolate_layers, highest_pass, list_places, node_path

MOST_REPLAYED_LAYERS = 1000
"""Layers up to which all are replayed on the allocator."""

EXTRAPOLATED_FROM = 125, 250
"""Layers of the two runs from which the allocator's overhead of a run with more layers is extrapolated."""

MOST_IRREGULAR_LAYERS = 256
"""Layers outside of the repeats of a pattern, at most: each of them is recorded by itself."""

MOST_RECORDED_LAYERS = 1000
"""Layers that are recorded one by one, at most, where the repeats of a pattern turn out to differ."""

MOMENTS = ("prefill", "decode", "forward", "backward", "step")
"""The parts of a pass or of a training step, in order."""

TORCH = "torch 2.13"


class Point(NamedTuple):
    """The most bytes while a module ran. node: its path, with the index of its layer; empty for the model itself."""

    phase: str
    node: str
    bytes: int


@dataclass(frozen=True)
class Term:
    """A part of the answer, and how it is known.

    status: as in `evidence.Status`: that of the least known of what the run uses.
    witness: what it was compared with, or where it was read; what has no measurement where the status is `untested`.
    versions: the versions of the libraries for which it holds; empty if it does not depend on a version.
    of_runtime: whether it is taken by the allocator, a library or the driver, whatever the run uses.
    """

    name: str
    bytes: int
    status: Status
    witness: str
    versions: str = ""
    of_runtime: bool = False


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


TENSORS = Term("tensors", 0, "exact", ON_META, TORCH)
"""The tensors of a run of which everything is compared with torch."""


class Run(Protocol):
    """Records the runs of a model, each of which has an allocator of its own."""

    def __call__(self, layers: Mapping[int, int], workspace: int) -> Sequence[RecordedEvents]:
        """layers: repeats of each stack's pattern, all by default. workspace: bytes of one."""


@dataclass(frozen=True)
class UnreplayedBytes:
    """Bytes that a run holds and does not replay, such as those of image encoders.

    kind: what they are counted under. bytes: how many. phases: when they are there; by default always. stays: whether
        they are there after the run; true by default.
    """

    kind: str
    bytes: int
    phases: Sequence[str] = MOMENTS
    stays: bool = True


def with_evidence(term: Term, evidence: Sequence[Evidence]) -> Term:
    """A term of a run, known as well as the least known of what the run uses."""
    status = weakest([term.status, *(one.status for one in evidence)])
    if term.of_runtime or status == term.status:
        return term
    if status == "untested":
        return replace(term, status=status, witness=f"no measurement of {names_of(evidence, status)}")
    names = witnesses_of(evidence, status)
    if term.witness == ON_META:
        names = f"torch on meta, and {names}" if status == "source" else names
    else:
        names = f"{term.witness}; {names}"
    return replace(term, status=status, witness=names)


def memory_with_evidence(device: DeviceMemory, evidence: Sequence[Evidence]) -> DeviceMemory:
    """The memory of a device whose terms are known as well as the least known of what its run uses."""
    return replace(device, terms=tuple(with_evidence(term, evidence) for term in device.terms))


def device_memory(
    spec: ModelSpec,
    run: Run,
    runtime: Runtime,
    beside: Sequence[UnreplayedBytes],
    tensors: Term,
    every: int = 1,
) -> DeviceMemory:
    """Replays a run and sums up what it holds.

    beside: what it holds too. tensors: how its tensors are known. every: one layer of so many is not run as the others
    are; 1 (default) if all are run alike.
    """
    stacks = layer_stacks(spec, every)
    found, whole = _replayed(run, runtime, stacks)
    _add(found, beside)
    return summarize(found, runtime, stacks, tensors, whole)


def summarize(
    found: ReplayResult,
    runtime: Runtime,
    stacks: list[LayerStack],
    tensors: Term,
    whole: bool = True,
    further: Sequence[Term] = (),
) -> DeviceMemory:
    """What a replay has found, as an answer.

    stacks: of the model. tensors: how its tensors are known. whole: whether all layers were replayed on the allocator.
    further: terms that are part of the tensors.
    """
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
        peak_at=Point(place.phase, node_path(place, stacks), peak.bytes),
        by_kind=kinds,
        timeline=tuple(timeline(found, stacks)),
        moments=moments(found.peaks),
        terms=(
            replace(tensors, bytes=peak.bytes - workspaces),
            *further,
            Term("cuBLAS workspaces", workspaces, "source", "aten/src/ATen/cuda/CublasHandlePool.cpp", TORCH, True),
            Term("rounding to blocks", found.slop, *_allocator(whole), TORCH, True),
            Term("free blocks", reserved - total, "estimate", _allocator(whole)[1], TORCH, True),
            Term("CUDA context", runtime.context, "estimate", "0.4 to 0.6 GiB by GPU and driver", of_runtime=True),
        ),
    )


def _allocator(whole: bool) -> tuple[Status, str]:
    """How what the allocator adds is known."""
    source = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    return ("source", source) if whole else ("estimate", f"{source} for some layers, extrapolated to all")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Puts off the collection of cyclic garbage: a run makes many objects, and frees them by reference counts."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_garbage_collection()
def _replayed(run: Run, runtime: Runtime, stacks: list[LayerStack]) -> tuple[ReplayResult, bool]:
    """What a run finds on the caching allocator, and whether all layers were replayed there.

    The run is recorded with a few layers of each pattern, and unfolded to all of them. Only a run of more than
    `MOST_REPLAYED_LAYERS` layers plays fewer on the allocator: its overhead grows with every layer as much as between
    two shorter runs.
    """
    repeating = [i for i, loop in enumerate(stacks) if loop.can_extrapolate]
    few = {i: stacks[i].kinds(RECORDED_REPEATS) for i in repeating}
    try:
        runs = [RepeatAnalysis(recorded, stacks, repeating) for recorded in run(few, runtime.workspace)]
    except NotRepeating:
        repeating = []
        layers = sum(stack.layers for stack in stacks)
        if layers > MOST_RECORDED_LAYERS:
            message = (
                f"{layers:,} layers that differ are too many for memory; expected at most {MOST_RECORDED_LAYERS:,}"
            )
            raise InputError(message) from None
        runs = [RepeatAnalysis(recorded, stacks, repeating) for recorded in run({}, runtime.workspace)]

    def counted(layers: Mapping[int, int]) -> ReplayResult:
        return _joined([one.counted(layers) for one in runs])

    def blocks(layers: Mapping[int, int]) -> AllocatorOverhead:
        return AllocatorOverhead.joined([one.blocks(CachingAllocator(runtime.expandable), layers) for one in runs])

    found = extrapolate_layers(counted, stacks) if repeating else highest_pass(counted({}))
    whole = not repeating or sum(loop.layers for loop in stacks) <= MOST_REPLAYED_LAYERS
    if whole:
        taken = blocks({})
    else:
        some, more = (
            {i: max(SHORT_RUN_REPEATS, layers // stacks[i].period) for i in repeating} for layers in EXTRAPOLATED_FROM
        )
        more = {i: min(stacks[i].repeats, max(more[i], some[i] + 1)) for i in repeating}
        added = sum((more[i] - some[i]) * stacks[i].period for i in repeating)
        missing = sum((stacks[i].repeats - more[i]) * stacks[i].period for i in repeating)
        taken = blocks(some).grown(blocks(more), missing, added)
    found.slop, found.slop_after = taken.slop, taken.slop_after
    found.reserved = found.peak[1].bytes + taken.slop + taken.free
    return found, whole


def check_layers(spec: ModelSpec) -> None:
    """Raises `InputError` for a model of which too many layers repeat no pattern."""
    alone = sum(stack.alone if stack.repeats > RECORDED_REPEATS else stack.layers for stack in layer_stacks(spec))
    if alone > MOST_IRREGULAR_LAYERS:
        most = f"expected at most {MOST_IRREGULAR_LAYERS:,}"
        raise InputError(f"{alone:,} layers that repeat no pattern are too many for memory; {most}")


def _joined(found: Sequence[ReplayResult]) -> ReplayResult:
    """Several runs, one after the other."""
    peaks = {place: peak for one in found for place, peak in one.peaks.items()}
    return ReplayResult(set_up=found[0].set_up, after=found[-1].after, peaks=peaks)


def _add(found: ReplayResult, beside: Sequence[UnreplayedBytes]) -> None:
    """Adds what the run holds beside."""
    for one in beside:
        found.set_up += one.bytes
        found.reserved += one.bytes
        found.after += one.bytes if one.stays else 0
        for place, peak in found.peaks.items():
            if place.phase in one.phases:
                peak.bytes += one.bytes
                peak.by_kind[one.kind] = peak.by_kind.get(one.kind, 0) + one.bytes


def timeline(found: ReplayResult, stacks: list[LayerStack]) -> list[Point]:
    """The most of every module of every layer that makes a tensor, in the order of the phases."""
    points: dict[str, list[Point]] = {phase: [] for phase in MOMENTS}
    for phase, node, bytes in list_places(found, stacks):
        if bytes:
            points[phase].append(Point(phase, node, bytes))
    return [point for of in points.values() for point in of]


def moments(peaks: Mapping[Place, Peak]) -> dict[str, Mapping[str, int]]:
    """Phase → what stands at its highest point, by kind."""
    found: dict[str, Mapping[str, int]] = {}
    for phase in MOMENTS:
        of = [peak for place, peak in peaks.items() if place.phase == phase]
        if of:
            highest = max(of, key=lambda peak: peak.bytes)
            found[phase] = highest.kinds
    return found

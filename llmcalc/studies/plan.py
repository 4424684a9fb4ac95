"""Every layout of a model on so many devices that fits, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

from ..device.around import around_of
from ..device.cluster import Cluster
from ..device.deepspeed.rank import cast
from ..device.fsdp.training import called
from ..device.megatron.options import settings_of
from ..device.megatron.walk import measured
from ..device.memory import Memory
from ..device.walk import Bytes, Walk, alike, torch_passes
from ..errors import InputError
from ..hardware import Hardware
from ..layouts.asked import Asked, Framework
from ..layouts.schedules import Timetable, pipeline, timetable
from ..layouts.search import Search, search
from ..run.layout import ALONE, ImpossibleLayout, Layout, Schedule

NODE = 8
"""Devices that share the fastest link, where the accelerator's record does not say."""

THREADS = 2
"""The forward thread and that of the backward pass: each has a cuBLAS workspace."""

RECOMPUTED = "full"
"""What `--recompute` says of every layer."""

TOO_MUCH = "needs more than the usable memory"


@dataclass(frozen=True)
class Candidate:
    """A layout that fits.

    micro_batches: of a step. device_bytes: what its worst rank needs. capacity: what a device has.
    communication_bytes: what a rank sends in a step. bubble: the share of a step in which a rank of the pipeline waits.
        Both None of a layout that does not fit.
    replayed: whether device_bytes is that of a replay on the allocator; if not, of tensors alone.
    """

    layout: Layout
    micro_batches: int
    device_bytes: int
    capacity: int
    communication_bytes: int | None
    bubble: float | None
    replayed: bool = False

    @property
    def headroom(self) -> int:
        return self.capacity - self.device_bytes


@dataclass
class Plan:
    """tried: layouts. feasible: those that fit, the best first. refused: reason → how many. nearest: of those that need
    more than there is, the one that needs least.
    """

    tried: int
    feasible: list[Candidate] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    nearest: Candidate | None = None


@dataclass
class Walks:
    """Walks of a model's layouts, with what it recomputes or with every layer. What one has measured holds for any
    number of devices.
    """

    one: Memory
    framework: Framework

    @cached_property
    def given(self) -> Walk:
        return walk_of(self.one, self.framework)

    @cached_property
    def recomputed(self) -> Walks:
        """The same with every layer run again in the backward pass."""
        return Walks(self.one.with_(recompute=RECOMPUTED), self.framework)


@dataclass(frozen=True)
class Planned:
    """The layouts of a model on so many devices. walks: of the model. global_batch: of a step. tried: all layouts.
    rows: how many were to be replayed.
    """

    walks: Walks
    hardware: Hardware
    devices: int
    global_batch: int
    plan: Plan
    tried: Search
    rows: int

    @property
    def one(self) -> Memory:
        """The model and how it is trained."""
        return self.walks.one

    @property
    def framework(self) -> Framework:
        return self.walks.framework

    @cached_property
    def recomputed(self) -> int | None:
        """How many layouts fit by their tensors alone if every layer runs again in the backward pass. None where that
        is no question: enough fit without, or the run says itself what it recomputes.
        """
        asked = self.one.settings.recompute is None
        if not asked or TOO_MUCH not in self.plan.refused or len(self.plan.feasible) >= self.rows:
            return None
        again, capacity = self.walks.recomputed.given, self.hardware.capacity_bytes
        return len([of for of in self.tried.found if fits(again, *of, capacity)])


def plan_of(
    one: Memory, hardware: Hardware, asked: Asked, global_batch: int | None, rows: int, walks: Walks | None = None
) -> Planned:
    """Plans the training of a model on `asked.devices` accelerators.

    asked: sizes of groups that are given hold for every layout. global_batch: sequences of a step; None for one
    micro-batch of each accelerator. rows: how many layouts are replayed on the allocator. walks: of the model under
    that framework, new ones by default.
    Raises `InputError` for what the framework does not have or is not modelled, and for a number of micro-batches,
    which follows.
    """
    assert asked.devices is not None
    framework = asked.framework or "megatron"
    if framework == "megatron":
        settings_of(one, ALONE, asked.framework_version or "")  # what it does not have at all
    use, spec = one.states, one.spec
    link = hardware.interconnect
    node = min(NODE, (link.domain_size if link is not None else None) or NODE)
    given = one.settings.num_microbatches
    if given is not None:
        raise InputError(
            f"--num-microbatches {given}: in a plan it follows from the layout and --global-batch, the sequences of a "
            "step of all devices; expected --global-batch"
        )
    micro_batch, seq = int(use.workload.batch), int(use.workload.seq)
    if global_batch is None:
        global_batch = micro_batch * asked.devices
    tried = search(spec, asked.devices, global_batch, micro_batch, seq, framework, asked, node)
    walks = walks or Walks(one, framework)
    walk = walks.given

    def sent(layout: Layout, batches: int) -> int:
        cluster = Cluster(one.with_(num_microbatches=batches), layout, framework)
        return sum(each.wire_bytes * each.count for each in cluster.sent(layout.rank(pp=0)))

    def replay(layout: Layout, batches: int) -> int:
        stage = walk.needed(layout, batches)[1]
        return replayed(one, framework, asked.framework_version or "", layout, batches, stage)

    found = plan(tried, hardware, lambda *of: walk.needed(*of)[0], sent, replay, rows)
    return Planned(walks, hardware, asked.devices, global_batch, found, tried, rows)


def replayed(one: Memory, framework: Framework, version: str, layout: Layout, micro_batches: int, stage: int) -> int:
    """What a rank of a stage needs on the allocator."""
    cluster = Cluster(one.with_(num_microbatches=micro_batches), layout, framework, version)
    return cluster.of_rank(layout.rank(pp=stage), one.runtime).device.device_bytes


def fits(walk: Walk, layout: Layout, micro_batches: int, capacity: int) -> bool:
    """Whether the tensors of a layout's worst rank fit."""
    try:
        return walk.needed(layout, micro_batches)[0] <= capacity
    except InputError:
        return False


def walk_of(one: Memory, framework: Framework) -> Walk:
    """What ranks of a framework need, without an allocator."""
    include, each = one.states.count.include, Bytes.of(one, framework)
    if framework == "megatron":
        return Walk(one.spec, each, partial(measured, one), include, one.runtime.context)
    how = one.settings.training(one.states, include)
    beside = one.runtime.context + THREADS * one.runtime.workspace
    trained = one.states.trained / one.states.count.total
    ran, splits, keeps_last = cast(how) if framework == "deepspeed" else how, False, True
    if framework == "fsdp2":
        ran, calls = called(one.spec, how)
        splits, keeps_last = calls.splits, calls.keeps_last
    around, frees = around_of(framework, how, trained, splits, keeps_last), not how.keeps_gradients
    return Walk(one.spec, each, torch_passes(one.spec, ran), include, beside, around, frees)


def plan(
    found: Search,
    hardware: Hardware,
    needed: Callable[[Layout, int], int],
    sent: Callable[[Layout, int], int],
    replayed: Callable[[Layout, int], int],
    rows: int,
) -> Plan:
    """Ranks layouts by the sum of their places by headroom, by communication and by bubble.

    needed: bytes of the worst rank of a layout with so many micro-batches, without an allocator. sent: bytes that a
    rank sends in a step. replayed: bytes of the worst rank on the allocator, asked of the first `rows` alone.
    Raises `InputError` where every layout is refused, most for a reason that other sizes do not mend.
    """
    capacity = hardware.capacity_bytes
    result = Plan(found.tried)
    tight: list[Candidate] = []

    for layout, batches in found.found:
        try:
            bytes = needed(layout, batches)
            fits = bytes <= capacity
            told = sent(layout, batches) if fits else None
        except InputError as error:
            found.refuse(error)
            continue
        one = Candidate(layout, batches, bytes, capacity, told, bubble(layout, batches) if fits else None)
        (result.feasible if fits else tight).append(one)
    ordered = ranked(result.feasible)
    kept: list[Candidate] = []
    while ordered and len(kept) < rows:
        one = ordered.pop(0)
        try:
            again = replace(one, device_bytes=replayed(one.layout, one.micro_batches), replayed=True)
        except InputError as error:
            found.refuse(error)
            continue
        (kept if again.headroom >= 0 else tight).append(again)
    result.feasible = [*kept, *ordered]
    result.refused = dict(found.refused)
    if result.refused and not (kept or ordered or tight):
        why = found.errors.get(max(result.refused, key=result.refused.__getitem__))
        if why is not None and not isinstance(why, ImpossibleLayout):
            raise why
    if tight:
        result.refused[TOO_MUCH] = len(tight)
        result.nearest = min(tight, key=lambda one: one.device_bytes)
    return result


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """The best first."""
    places: dict[int, int] = {}
    keys: tuple[Callable[[Candidate], Any], ...] = (
        lambda one: -one.headroom,
        lambda one: one.communication_bytes,
        lambda one: one.bubble,
    )
    for key in keys:
        values = sorted({key(one) for one in candidates})
        order = {value: place for place, value in enumerate(values)}
        for one in candidates:
            places[id(one)] = places.get(id(one), 0) + order[key(one)]
    return sorted(candidates, key=lambda one: (places[id(one)], one.device_bytes))


def bubble(layout: Layout, micro_batches: int) -> float:
    """The share of a step in which a rank waits, with backward passes twice as long as forward passes.

    The schedule is run with so many micro-batches that further ones are run without a wait.
    """
    if layout.pp == 1:
        return 0.0
    few = alike(layout, micro_batches)
    found = _run(layout.pp, layout.vpp, layout.schedule, few)
    more = (micro_batches - few) * layout.vpp * FORWARD_AND_BACKWARD
    return found.idle / (found.time + more)


FORWARD_AND_BACKWARD = 3
"""The time of both passes through a chunk, where a forward pass takes 1."""


@cache
def _run(pp: int, vpp: int, schedule: Schedule, micro_batches: int) -> Timetable:
    return timetable(pipeline(Layout(pp=pp, vpp=vpp, schedule=schedule), micro_batches))

"""Every layout of a model on so many devices that fits, and why the others do not.

A layout fits if its worst rank fits in a replay on the allocator, which is what `llmcalc memory` says of it. A walk
over its tensors, which is quicker, decides which layouts are worth a replay, and in what order; it does not know what
the allocator keeps free. So a layout that was not replayed is listed apart, with an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias

from ..accelerator import Hardware
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.framework import EstimateErrors, Framework
from ..frameworks.peak_estimate import PeakEstimate, alike
from ..frameworks.ranks import Cluster
from ..frameworks.registry import FOR_PLANS, framework
from ..parallel.layout import ImpossibleLayout, Layout, Schedule
from ..parallel.layout_request import LayoutRequest
from ..parallel.schedules import Timetable, pipeline, timetable
from ..parallel.search import Search, search

NODE = 8
"""Devices that share the fastest link, where the accelerator's record does not say."""

RECOMPUTED = "full"
"""What `--recompute` says of every layer."""

Nearest: TypeAlias = Literal["always", "if none fits", "never"]
"""When a plan looks for the layout that needs least, of those that do not fit."""

TOO_MUCH = "needs more than the usable memory"


FURTHER_REPLAYS = 10
"""Layouts that are replayed at most beyond the rows, where some that were replayed do not fit."""


@dataclass(frozen=True)
class Candidate:
    """A layout that may fit.

    micro_batches: of a step. device_bytes: what its worst rank needs. capacity: what a device has.
    communication_bytes: what a rank sends in a step. bubble: the share of a step in which a rank of the pipeline waits.
        Both None of a layout that does not fit.
    replayed: whether device_bytes is that of a replay on the allocator; if not, of tensors alone.
    upper_bound: the most that its worst rank can need; device_bytes if it was replayed.
    """

    layout: Layout
    micro_batches: int
    device_bytes: int
    capacity: int
    communication_bytes: int | None
    bubble: float | None
    replayed: bool = False
    upper_bound: int = 0

    @property
    def headroom(self) -> int:
        return self.capacity - self.device_bytes


@dataclass
class Plan:
    """tried: number of layouts.
    feasible: those whose worst rank was replayed and fits, the best first.
    unreplayed: those whose tensors fit and that were not replayed, in the order in which they would have been.
    replays: how many layouts were replayed to find those that fit.
    refused: reason → how many.
    nearest: of those that need more than there is, the one that needs least; replayed. None where it was not asked for.
    """

    tried: int
    feasible: list[Candidate] = field(default_factory=list)
    unreplayed: list[Candidate] = field(default_factory=list)
    replays: int = 0
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
    def given(self) -> PeakEstimate:
        return self.framework.estimate(self.one)

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
        """How many layouts have tensors that fit if every layer runs again in the backward pass. None where that is no
        question: enough fit without, or the run says itself what it recomputes.
        """
        asked = self.one.settings.recompute is None
        if not asked or TOO_MUCH not in self.plan.refused or len(self.plan.feasible) >= self.rows:
            return None
        again, capacity = self.walks.recomputed.given, self.hardware.capacity_bytes
        return len([of for of in self.tried.found if fits(again, *of, capacity)])


def plan_of(
    one: Memory,
    hardware: Hardware,
    asked: LayoutRequest,
    global_batch: int | None,
    rows: int,
    walks: Walks | None = None,
    nearest: Nearest = "always",
) -> Planned:
    """Plans the training of a model on `asked.devices` accelerators.

    asked: sizes of groups that are given hold for every layout. global_batch: sequences of a step; None for one
    micro-batch of each accelerator. rows: how many layouts are replayed on the allocator. walks: of the model under
    that framework, new ones by default. nearest: as of `plan`.
    Raises `InputError` for what the framework does not have or is not modelled, and for a number of micro-batches,
    which follows.
    """
    assert asked.devices is not None
    record = framework(asked.framework or FOR_PLANS)
    record.check(one, asked.framework_version or "")
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
    tried = search(spec, asked.devices, global_batch, micro_batch, seq, record.layouts, asked, node)
    walks = walks or Walks(one, record)
    walk = walks.given

    def sent(layout: Layout, batches: int) -> int:
        cluster = Cluster.of(one.with_(num_microbatches=batches), layout, record)
        return sum(each.wire_bytes * each.count for each in cluster.messages_of(layout.rank(pp=0)))

    def replay(layout: Layout, batches: int, enough: int | None) -> int:
        worst = walk.needed(layout, batches)[1] if enough is not None else 0
        return replayed(one, record, asked.framework_version or "", layout, batches, worst, enough)

    errors = record.estimate_errors
    found = plan(tried, hardware, lambda *of: walk.needed(*of)[0], sent, replay, rows, errors, nearest)
    return Planned(walks, hardware, asked.devices, global_batch, found, tried, rows)


def replayed(
    one: Memory,
    framework: Framework,
    version: str,
    layout: Layout,
    micro_batches: int,
    stage: int = 0,
    enough: int | None = None,
) -> int:
    """What the worst rank of a layout needs on the allocator, as `llmcalc memory` finds it.

    stage: whose rank is replayed first, 0 by default. enough: where that rank needs more than so many bytes, the others
    are not replayed, and the answer is what it needs; None (default) replays all.
    """
    cluster = Cluster.of(one.with_(num_microbatches=micro_batches), layout, framework, version)
    if enough is not None and layout.pp > 1:
        first = cluster.rank_model(layout.rank(pp=stage), one.runtime).device.device_bytes
        if first > enough:
            return first
    return cluster.device_rank.device.device_bytes


def fits(walk: PeakEstimate, layout: Layout, micro_batches: int, capacity: int) -> bool:
    """Whether the tensors of a layout's worst rank fit."""
    try:
        return walk.needed(layout, micro_batches)[0] <= capacity
    except InputError:
        return False


def plan(
    found: Search,
    hardware: Hardware,
    needed: Callable[[Layout, int], int],
    sent: Callable[[Layout, int], int],
    replayed: Callable[[Layout, int, int | None], int],
    rows: int,
    errors: EstimateErrors,
    nearest: Nearest = "always",
) -> Plan:
    """Ranks layouts by the sum of their places by headroom, by communication and by bubble.

    needed: bytes of the worst rank of a layout with so many micro-batches, without an allocator. sent: bytes that a
    rank sends in a step. replayed: bytes of the worst rank on the allocator, or of any rank that needs more than the
    number that is passed; asked of layouts in their order until `rows` of them fit. errors: those of `needed`.
    nearest: when the layout that needs least, of those that do not fit, is looked for.
    Raises `InputError` where every layout is refused, most for a reason that other sizes do not mend.
    """
    capacity = hardware.capacity_bytes
    result = Plan(found.tried)
    tight: list[Candidate] = []
    promising: list[Candidate] = []

    for layout, batches in found.found:
        try:
            bytes = needed(layout, batches)
            may_fit = errors.least(bytes) <= capacity
            told = sent(layout, batches) if may_fit else None
        except InputError as error:
            found.refuse(error)
            continue
        waits = bubble(layout, batches) if may_fit else None
        candidate = Candidate(layout, batches, bytes, capacity, told, waits, upper_bound=errors.most(bytes))
        (promising if may_fit else tight).append(candidate)

    def replay(candidate: Candidate, enough: int | None = None) -> Candidate | None:
        try:
            bytes = replayed(candidate.layout, candidate.micro_batches, enough)
        except InputError as error:
            found.refuse(error)
            return None
        return replace(candidate, device_bytes=bytes, upper_bound=bytes, replayed=True)

    waiting = ranked(promising)
    for _ in range(min(len(waiting), rows + FURTHER_REPLAYS)):
        if len(result.feasible) == rows:
            break
        again, result.replays = replay(waiting.pop(0), capacity), result.replays + 1
        if again is not None:
            (result.feasible if again.headroom >= 0 else tight).append(again)
    result.unreplayed = waiting
    if nearest == "always" or (nearest == "if none fits" and not result.feasible):
        result.nearest = _least(tight, replay, errors)
    result.refused = dict(found.refused)
    if result.refused and not (result.feasible or waiting or tight):
        why = found.errors.get(max(result.refused, key=result.refused.__getitem__))
        if why is not None and not isinstance(why, ImpossibleLayout):
            raise why
    if tight:
        result.refused[TOO_MUCH] = len(tight)
    return result


def _least(
    tight: list[Candidate], replay: Callable[[Candidate, int | None], Candidate | None], errors: EstimateErrors
) -> Candidate | None:
    """Of layouts that need too much, the one that needs least in a replay; None without any.

    What is known of the others is less than what they need, up to the walk's error. A layout that cannot be replayed
    leaves the list. The replay of one of which a rank needs more than the least so far ends with that rank.
    """
    least: Candidate | None = None
    replays = 0
    for candidate in sorted(tight, key=lambda candidate: candidate.device_bytes):
        if least is not None and (
            least.device_bytes <= errors.least(candidate.device_bytes) or replays == NEAREST_REPLAYS
        ):
            break
        again, replays = replay(candidate, None if least is None else least.device_bytes), replays + 1
        if again is None:
            tight.remove(candidate)
        elif least is None or again.device_bytes < least.device_bytes:
            least = again
    return least


NEAREST_REPLAYS = 4
"""Layouts that are replayed to find the one that needs least, where none fits."""


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

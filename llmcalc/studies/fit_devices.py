"""Whether a run fits on so many accelerators with some layout, how many it needs, and what would make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from ..accelerator import Fit, Hardware
from ..costs.context_length import learned_positions
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.registry import FOR_PLANS, framework
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.search import tokens_multiple
from .fit import MOST_BATCH, MOST_SEQ, Change, largest
from .plan import RECOMPUTED, Candidate, Nearest, Planned, Walks, plan_of, replayed

MOST_TRIED = 2**16
"""The most accelerators that are tried beside the number that is given."""


@dataclass(frozen=True)
class DeviceFitting:
    """Whether a run fits on so many accelerators.

    planned: every layout of them. best: the one that is shown, which fits if any does. needed: the fewest accelerators
    on which some layout fits; None if not even the most that are tried suffice. fewest: its layout there.
    batch, seq: the most of each that fit with the best layout, with the other as given; 0 if none does.
    changes: what makes it fit; empty if it fits as it is.
    """

    planned: Planned
    best: Candidate
    fit: Fit
    needed: int | None
    fewest: Candidate | None
    batch: int
    seq: int
    changes: tuple[Change, ...]

    @property
    def memory(self) -> Memory:
        return self.planned.one


def fit_devices(one: Memory, hardware: Hardware, asked: LayoutRequest, global_batch: int | None) -> DeviceFitting:
    """Whether the training of a model fits on `asked.devices` accelerators.

    global_batch: sequences of a step; None for one micro-batch of each accelerator.
    Raises `InputError` where no layout can be tried at all.
    """
    assert asked.devices is not None
    ask = Ask(Walks(one, framework(asked.framework or FOR_PLANS)), hardware, asked, global_batch)
    planned = ask.planned(asked.devices)
    best = _best(planned)
    if best is None:
        why = max(planned.plan.refused.items(), key=lambda each: each[1], default=("no layout has so many", 0))[0]
        raise ImpossibleLayout(f"--devices {asked.devices}: no layout of these is possible: {why}")
    given = Fit(hardware, best.device_bytes)
    fits = given.verdict != "no"
    needed, fewest = _fewest(ask, planned)
    batch = seq = 0
    if fits:
        use, longest = one.states.workload, learned_positions(one.spec) or MOST_SEQ
        batch = _most(ask, best, "batch", 1, int(use.batch), MOST_BATCH)
        seq = _most(ask, best, "seq", _tokens_of_each(best.layout), int(use.seq), longest)
    changes = () if fits else tuple(_changes(ask, planned.devices, needed, fewest))
    return DeviceFitting(planned, best, given, needed, fewest, batch, seq, changes)


@dataclass(frozen=True)
class Ask:
    """What is asked. global_batch: as of `fit_devices`."""

    walks: Walks
    hardware: Hardware
    asked: LayoutRequest
    global_batch: int | None

    def planned(self, devices: int, nearest: Nearest = "if none fits") -> Planned:
        """The layouts of so many accelerators, of which the first is replayed. nearest: as of `plan`."""
        asked = replace(self.asked, devices=devices)
        return plan_of(self.walks.one, self.hardware, asked, self.global_batch, 1, self.walks, nearest)

    def feasible(self, devices: int) -> Candidate | None:
        """The best layout of so many accelerators that fits; None if none does, or if no layout can be tried."""
        try:
            return next(iter(self.planned(devices, "never").plan.feasible), None)
        except InputError:
            return None


def _best(planned: Planned) -> Candidate | None:
    """The layout with the most headroom."""
    plan = planned.plan
    return plan.feasible[0] if plan.feasible else plan.nearest


def _fewest(ask: Ask, planned: Planned) -> tuple[int | None, Candidate | None]:
    """The fewest accelerators, of those asked and their halves and doubles, on which some layout fits."""
    devices = planned.devices
    if planned.plan.feasible:
        return _fewest_halves(ask, devices, planned.plan.feasible[0])
    while 2 * devices <= MOST_TRIED:
        devices *= 2
        more = ask.feasible(devices)
        if more is not None:
            return devices, more
    return None, None


def _fewest_halves(ask: Ask, devices: int, found: Candidate) -> tuple[int, Candidate]:
    """The smallest of a number's halves on which some layout fits, and its layout. found: the layout of that number.

    Where each accelerator has a micro-batch, a layout that fits does so with twice the replicas too, so the halves are
    searched by bisection. With a fixed batch that need not be: they are tried one by one.
    """
    halvings, impossible = 0, (devices & -devices).bit_length()
    while halvings + 1 < impossible:
        further = halvings + 1 if ask.global_batch is not None else (halvings + impossible) // 2
        fewer = ask.feasible(devices >> further)
        if fewer is None:
            impossible = further
        else:
            halvings, found = further, fewer
    return devices >> halvings, found


def _tokens_of_each(layout: Layout) -> int:
    """What lengths are a multiple of: ranks that divide a sequence have parts of one length, in a ring two of them."""
    return math.lcm(tokens_multiple(layout.cp), layout.cp * (layout.tp if layout.sequence_parallel else 1))


REPLAYS = 4
"""How often what fits by its tensors is replayed, and further if none of these replays fits."""

CLOSE = 0.01
"""Numbers whose distance is a smaller part of them are not told apart: blocks of the allocator are larger than that."""


def _most(ask: Ask, best: Candidate, name: str, unit: int, start: int, most: int) -> int:
    """The most sequences or tokens that fit with a layout, a multiple of `unit`; 0 if none do.

    Its tensors are walked for any number. What the allocator needs beside them is known where it was replayed, and lies
    near a line between two of these numbers: where a number on that line does not fit, the next ones keep as much free
    as it lacked, and twice that if they do not fit either.
    """
    one, record, capacity = ask.walks.one, ask.walks.framework, ask.hardware.capacity_bytes
    version, of = ask.asked.framework_version or "", (best.layout, best.micro_batches)

    @cache
    def walked(n: int) -> int:
        return record.estimate(one.with_(**{name: n})).needed(*of)[0]

    low, high, free = (start, best.device_bytes - walked(start)), (start, 0), 0

    def needed(n: int) -> int:
        beside, over = low[1], max(0, n - low[0])
        if high[0] > low[0]:
            beside += (high[1] - beside) * over // (high[0] - low[0])
        return walked(n) + beside + free

    replays = 0
    while replays < REPLAYS or low[0] == start:
        found = unit * largest(lambda n: needed(unit * n), capacity, max(1, start // unit), most // unit)
        if found <= low[0]:
            break
        bytes = walked(found)
        replay, replays = replayed(one.with_(**{name: found}), record, version, *of), replays + 1
        if replay > capacity:
            free = max(2 * free, replay - capacity) if high[0] > low[0] else 0
            high = found, replay - bytes
            continue
        low, free = (found, replay - bytes), 0
        if high[0] <= low[0] or high[0] - low[0] <= max(unit, CLOSE * low[0]):
            break
    return low[0] // unit * unit


def _changes(ask: Ask, devices: int, needed: int | None, fewest: Candidate | None) -> Iterator[Change]:
    """What makes it fit: what runs again in the backward pass, and more accelerators."""
    if ask.walks.one.settings.recompute in (None, "none"):
        again = _best(replace(ask, walks=ask.walks.recomputed).planned(devices))
        if again is not None:
            yield Change(
                f"--recompute {RECOMPUTED} {again.layout.options()}".strip(), Fit(ask.hardware, again.device_bytes)
            )
    if needed is not None and fewest is not None:
        yield Change(f"--devices {needed} {fewest.layout.options()}".strip(), Fit(ask.hardware, fewest.device_bytes))

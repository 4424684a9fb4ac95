"""A run of many layers from the events of a run of few.

The recorded run has four repeats of each stack's pattern of layers. Wherever its events pass through the repeats one
after the other (set-up and forward pass upwards, backward pass downwards, an optimizer over all parameters), the second
and the third repeat must do the same, each with its own storages and those of its neighbours. Then every repeat between
the first and the last does it. This is checked event by event: what differs raises `NotRepeating`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from .caching_allocator import CachingAllocator, RequestedBytes
from .event_log import FREED, KEPT, NAMED, OWNED, PLACED, STREAMED, TAKEN, Event, RecordedEvents
from .layer_loops import LayerStack
from .layer_pattern import RECORDED_REPEATS
from .meter import Meter, Place
from .replay_result import ReplayResult

LAST = RECORDED_REPEATS - 1

NAMING = FREED, KEPT
"""Marks of events that name a storage."""

SAID = PLACED, KEPT
"""Marks of events that an allocator does not see."""

Turn: TypeAlias = tuple[int, int]
"""(number of the stack, repeat of its pattern)"""


class NotRepeating(Exception):
    """What was recorded does not stand for what was not: layers, or passes, that should be alike differ."""


class AllocatorOverhead(NamedTuple):
    """What an allocator adds to the bytes that tensors ask for.

    requested: the most that tensors ask for. slop: how many more bytes the blocks in use have, at the most of each.
    free: how many more the segments have, at their most. slop_after: the slop after the run.
    """

    requested: int
    slop: int
    free: int
    slop_after: int

    @staticmethod
    def of(device: CachingAllocator, score: RequestedBytes) -> AllocatorOverhead:
        """What an allocator has counted of steps."""
        slop, free = device.peak_allocated - score.peak_requested, device.peak_reserved - device.peak_allocated
        return AllocatorOverhead(score.peak_requested, slop, free, device.allocated - score.requested)

    @staticmethod
    def joined(runs: Sequence[AllocatorOverhead]) -> AllocatorOverhead:
        """Several runs, one after the other, on an allocator of its own each."""
        requested, slop = max(one.requested for one in runs), max(one.slop for one in runs)
        reserved = max(one.requested + one.slop + one.free for one in runs)
        return AllocatorOverhead(requested, slop, reserved - requested - slop, runs[-1].slop_after)

    def grown(self, more: AllocatorOverhead, missing: int, added: int) -> AllocatorOverhead:
        """With `missing` more layers than `more` has, which has `added` more than this."""
        return AllocatorOverhead(*(max(0, b + (b - a) * missing // added) for a, b in zip(self, more, strict=True)))


class Inner(NamedTuple):
    """An event of every repeat between the first and the last.

    by: whose storage it is: 0 for the repeat's own, −1 for one of the repeat before, 1 for one of the repeat after;
        None if it is the same for all repeats.
    number: the storage's, in the second repeat; where it is the same for all, just its number.
    edge: the number of the storage of the first or of the last repeat, for the repeat beside that.
    size, what: as in `Event`.
    """

    by: int | None
    number: Any
    edge: Any
    size: int
    what: Any


@dataclass
class Sweep:
    """Events that pass through the repeats of a stack.

    rising: from the first to the last. turns: the events of each repeat, and those after them up to the next repeat.
    inner: the events of every repeat between the first and the last.
    """

    stack: int
    rising: bool
    turns: list[list[Event]]
    inner: list[Inner] = field(default_factory=list)


Part: TypeAlias = list[Event] | Sweep


class RepeatAnalysis:
    """The events of a run, for any number of repeats.

    recorded: the run, with `RECORDED_REPEATS` repeats of the stacks whose numbers are in `grows`, and all repeats of
        the others. stacks: all of them.
    Raises `NotRepeating` if the repeats differ.
    """

    def __init__(self, recorded: RecordedEvents, stacks: Sequence[LayerStack], grows: Sequence[int]) -> None:
        self.recorded, self.stacks, self.grows = recorded, stacks, grows
        self.homes: dict[int, Turn | None] = {}  # storage → where it is allocated
        self.twins: dict[int, tuple[int, int]] = {}  # storage of the second or third repeat → (the second's, repeat)
        self.stack_of: dict[int, int] = {}  # storage of the second repeat → its stack
        self.known: dict[Any, Turn | None] = {}
        self.orders = [
            [(i, k) for k in order] for i in grows for order in (range(RECORDED_REPEATS), range(LAST, -1, -1))
        ]
        self.edges: list[tuple[int, list[Event]]] = []  # (first or last repeat, some of its events)
        self.parts: dict[int, list[Part]] = {}
        for piece in (recorded.set_up, *recorded.first, *recorded.then):
            if id(piece) not in self.parts:
                runs = list(self._runs(piece))
                self.edges += [(turn[1], events) for turn, events in runs if turn is not None and turn[1] in (0, LAST)]
                self.parts[id(piece)] = list(self._parts(runs))
        sweeps = [part for parts in self.parts.values() for part in parts if isinstance(part, Sweep)]
        for sweep in sweeps:
            self._pair(sweep)
        for sweep in sweeps:
            pairs = zip(sweep.turns[1], sweep.turns[2], strict=True)
            sweep.inner = [self._inner(sweep.stack, *pair) for pair in pairs]
        self._check_edges()

    # --- whose events ------------------------------------------------------------------------------------------------

    def _runs(self, piece: Sequence[Event]) -> Iterator[tuple[Turn | None, list[Event]]]:
        """The events in order, cut wherever another repeat's begin; None for those outside of all repeats."""
        place: Turn | None = None
        whose: Turn | None = None
        now: Turn | None = None
        events: list[Event] = []
        for event in piece:
            x, size, _ = event
            if size >= 0:
                self.homes[x] = now
            elif size in (PLACED, OWNED):
                if size == PLACED:
                    place = self._at(x)
                else:
                    whose = None if x is None else self._of(x)
                turn = whose or place
                if turn != now:
                    if events:
                        yield from self._apart(now, events)
                    now, events = turn, []
                if size == OWNED:
                    continue
            elif size == TAKEN:
                self.homes[x] = None
            events.append(event)
        if events:
            yield from self._apart(now, events)

    def _apart(self, turn: Turn | None, events: list[Event]) -> Iterator[tuple[Turn | None, list[Event]]]:
        """Events of one repeat. Outside of all, those that free something of one after the other are theirs."""
        if turn is not None or len(events) < RECORDED_REPEATS:
            yield turn, events
            return
        runs = [(home, list(of)) for home, of in groupby(events, self._freed_from)]
        rest: list[Event] = []
        i = 0
        while i < len(runs):
            if [home for home, _ in runs[i : i + RECORDED_REPEATS]] in self.orders:
                if rest:
                    yield None, rest
                yield from runs[i : i + RECORDED_REPEATS]
                rest = []
                i += RECORDED_REPEATS
            else:
                rest += runs[i][1]
                i += 1
        if rest:
            yield None, rest

    def _freed_from(self, event: Event) -> Turn | None:
        x, size, _ = event
        return self.homes.get(x) if size == FREED else None

    def _at(self, place: Place) -> Turn | None:
        """The repeat that a place is in."""
        if place.turn < 0:
            return None
        key = place.turn, place.path
        if key not in self.known:
            self.known[key] = next((turn for i in self.grows if (turn := self._repeat(i, place))), None)
        return self.known[key]

    def _repeat(self, stack: int, place: Place) -> Turn | None:
        loop = self.stacks[stack]
        repeat = (place.turn - loop.before) // loop.period
        return (stack, repeat) if loop.holds(place) and 0 <= repeat < RECORDED_REPEATS else None

    def _of(self, path: Sequence[Any]) -> Turn | None:
        """The repeat that a parameter is in."""
        names: list[str] = []
        for part in path[1:]:
            if type(part) is not int:
                names += [part] if part else []
                continue
            turn = self._at(Place("", part, ".".join(names)))
            if turn is not None:
                return turn
        return None

    def _parts(self, runs: Sequence[tuple[Turn | None, list[Event]]]) -> Iterator[Part]:
        """The sweeps, and the events between them."""
        i = 0
        while i < len(runs):
            turn, events = runs[i]
            if turn is None:
                yield events
                i += 1
                continue
            if turn[1] not in (0, LAST):
                raise NotRepeating
            sweep, end = self._sweep(*turn, runs, i)
            yield events if sweep is None else sweep
            i = end

    def _sweep(
        self, stack: int, repeat: int, runs: Sequence[tuple[Turn | None, list[Event]]], start: int
    ) -> tuple[Sweep | None, int]:
        """The sweep that begins with a run of a stack's first or last repeat, if one does, and where it ends."""
        rising = repeat == 0
        step, end = (1, LAST) if rising else (-1, 0)
        turns: list[list[Event]] = [[] for _ in range(RECORDED_REPEATS)]
        waiting: list[Event] = []
        for i in range(start, len(runs)):
            turn, events = runs[i]
            if turn is None:
                waiting += events
                continue
            if turn not in ((stack, repeat), (stack, repeat + step)):
                break
            turns[repeat] += waiting
            waiting = []
            repeat = turn[1]
            turns[repeat] += events
            if repeat == end:
                return Sweep(stack, rising, turns), i + 1
        return None, start + 1

    # --- one event for all repeats -----------------------------------------------------------------------------------

    def _pair(self, sweep: Sweep) -> None:
        """Finds for each storage of the second repeat its twin in the third."""
        second, third = sweep.turns[1], sweep.turns[2]
        if len(second) != len(third):
            raise NotRepeating
        for (x, size, what), (y, other, of) in zip(second, third, strict=True):
            if size != other or what != of:
                raise NotRepeating
            if size >= 0:
                self.twins[x], self.twins[y] = (x, 1), (x, 2)
                self.stack_of[x] = sweep.stack
            elif size in (TAKEN, NAMED):
                raise NotRepeating

    def _inner(self, stack: int, second: Event, third: Event) -> Inner:
        """What all repeats do, given what the second and the third do."""
        (x, size, what), (y, _, _) = second, third
        if size == PLACED:
            return self._place(x, y)
        of_x, of_y = self.twins.get(x), self.twins.get(y)
        if x == y and of_x is None:
            return Inner(None, x, x, size, what)
        if any(of is not None and self.stack_of[of[0]] != stack for of in (of_x, of_y)):
            raise NotRepeating
        if of_x is not None and of_y is not None and of_x[0] == of_y[0] and of_x[1] < of_y[1]:
            return Inner(0, x, x, size, what)
        if of_x is None and of_y is not None and of_y[1] == 1:  # to the third repeat what the second has
            return Inner(-1, y, x, size, what)
        if of_x is not None and of_y is None and of_x[1] == 2:  # to the second repeat what the third has
            return Inner(1, of_x[0], y, size, what)
        raise NotRepeating

    def _check_edges(self) -> None:
        """Of what the second and the third repeat have, the first one may name the second's, the last one the third's.

        What happens to a storage of both must be said once by themselves: of further repeats, nothing else says it.
        """
        for repeat, events in self.edges:
            far = 2 if repeat == 0 else 1
            for x, size, _ in events:
                if size != PLACED and x in self.twins and self.twins[x][1] == far:
                    raise NotRepeating
        outside: set[tuple[int, int, int]] = set()
        for part in (part for parts in self.parts.values() for part in parts):
            for events in (part.turns[0], part.turns[LAST]) if isinstance(part, Sweep) else (part,):
                outside |= {(*self.twins[x], size) for x, size, _ in events if size in NAMING and x in self.twins}
        if any((x, 2, size) in outside for x, repeat, size in outside if repeat == 1):
            raise NotRepeating

    def _place(self, x: Place, y: Place) -> Inner:
        turn = self._at(x)
        if turn is None and x == y:
            return Inner(None, x, x, PLACED, None)
        if turn is None or self.stacks[turn[0]].further(x, 1) != y:
            raise NotRepeating
        return Inner(0, x, x, PLACED, None)

    # --- the events of a run with more layers ------------------------------------------------------------------------

    def counted(self, repeats: Mapping[int, int]) -> ReplayResult:
        """What a run with that many repeats of each stack's pattern counts, without an allocator; by default of all."""
        events = RepeatedEvents(self, repeats, places=True)
        meter = Meter()
        storages: list[Any] = [None] * events.count
        _count(meter, events.of(self.recorded.set_up), storages)
        found = ReplayResult(set_up=meter.now)
        for piece in self.recorded.first:
            _count(meter, events.of(piece), storages)
        first, meter.peaks = meter.peaks, {}
        meter.place = Place()
        for piece in self.recorded.then:
            _count(meter, events.of(piece), storages)
        meter.place = Place("after")
        found.take_peaks(first, meter.peaks, self.recorded.phases)
        found.after = meter.now
        return found

    def blocks(self, device: CachingAllocator, repeats: Mapping[int, int]) -> AllocatorOverhead:
        """What an allocator adds to a run with that many repeats of each stack's pattern; by default of all."""
        events = RepeatedEvents(self, repeats, places=False)
        score = RequestedBytes(events.count)
        for piece in (self.recorded.set_up, *self.recorded.first, *self.recorded.then):
            device.play(score.steps(events.of(piece)), events.count)
        return AllocatorOverhead.of(device, score)


class RepeatedEvents:
    """The events of a run with that many repeats of each stack's pattern; of all by default.

    places: whether they say where the run is, and what is kept.
    count: the number of storages.
    """

    def __init__(self, whole: RepeatAnalysis, repeats: Mapping[int, int], places: bool) -> None:
        self.whole, self.places = whole, places
        self.between = {i: repeats.get(i, whole.stacks[i].repeats) - 2 for i in whole.grows}
        self.count = max(whole.homes, default=-1) + 1
        self.starts: dict[int, int] = {}
        self.numbers: dict[Any, int] = {}
        for x, stack in whole.stack_of.items():
            self.starts[x] = self.numbers[x] = self.count
            self.count += self.between[stack]
        for x, (second, repeat) in whole.twins.items():
            if repeat == 2:
                self.numbers[x] = self.starts[second] + self.between[whole.stack_of[second]] - 1
        self.pieces: dict[int, list[Event]] = {}

    def of(self, piece: Sequence[Event]) -> list[Event]:
        """The events of a piece of the run."""
        if id(piece) not in self.pieces:
            events = self.pieces[id(piece)] = []
            for part in self.whole.parts[id(piece)]:
                if isinstance(part, Sweep):
                    self._sweep(events, part)
                else:
                    self._once(events, part)
        return self.pieces[id(piece)]

    def _once(self, events: list[Event], part: list[Event]) -> None:
        """Events of the first or last repeat, or outside of all."""
        get = self.numbers.get
        if self.places:
            events += [
                (self._moved(x), size, what) if size == PLACED else (get(x, x), size, what) for x, size, what in part
            ]
        else:
            events += [(get(x, x), size, what) for x, size, what in part if size not in SAID]

    def _sweep(self, events: list[Event], sweep: Sweep) -> None:
        n = self.between[sweep.stack]
        first, *_, last = sweep.turns
        self._once(events, first if sweep.rising else last)
        inner = [one for one in sweep.inner if self.places or one.size not in SAID]
        lines = [self._line(one) for one in inner]
        before = [(i, one) for i, one in enumerate(inner) if one.by == -1]
        after = [(i, one) for i, one in enumerate(inner) if one.by == 1]
        loop = self.whole.stacks[sweep.stack]
        for repeat in range(n) if sweep.rising else range(n - 1, -1, -1):
            made: list[Event]
            if self.places:
                made = [
                    (loop.further(x, repeat) if step and size == PLACED else x + step * repeat, size, what)
                    if step
                    else (x, size, what)
                    for x, step, size, what in lines
                ]
            else:
                made = [(x + step * repeat, size, what) for x, step, size, what in lines]
            if repeat == 0:
                for i, one in before:
                    made[i] = one.edge, one.size, one.what
            if repeat == n - 1:
                for i, one in after:
                    made[i] = one.edge, one.size, one.what
            events += made
        self._once(events, last if sweep.rising else first)

    def _line(self, one: Inner) -> tuple[Any, int, int, Any]:
        """(x, step, size, what) of an event whose storage has the number x + step · repeat."""
        if one.by is None:
            return one.number, 0, one.size, one.what
        if one.size == PLACED:
            return one.number, 1, one.size, one.what
        return self.starts[one.number] + one.by, 1, one.size, one.what

    def _moved(self, place: Place) -> Place:
        """A place, with the further repeats below it."""
        for i, n in self.between.items():
            loop = self.whole.stacks[i]
            if loop.holds(place) and loop.before + LAST * loop.period <= place.turn < loop.end(RECORDED_REPEATS):
                return loop.further(place, n + 2 - RECORDED_REPEATS)
        return place


def _count(meter: Meter, events: Sequence[Event], storages: list[Any]) -> None:
    allocate, free = meter.allocate, meter.free
    for x, size, what in events:
        if size >= 0:
            meter.kind = what
            storages[x] = allocate(size)
        elif size == FREED:
            free(storages[x])
        elif size == PLACED:
            meter.place = x
        elif size == KEPT:
            meter.reclassify(storages[x], what)
        elif size == NAMED:
            storages[x] = storages[what]
        elif size == STREAMED:
            meter.stream = what
        elif storages[x] is None:
            meter.kind = "overhead"
            storages[x] = allocate(what)

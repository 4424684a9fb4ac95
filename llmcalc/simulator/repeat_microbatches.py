"""Passes of micro-batches through chunks of layers, recorded a few times and played for all the others.

A pass allocates and frees its own storages, and may free those of other passes: what its chunk named in the pass of the
micro-batch before, or what all chunks share and replace. So what it does depends on which neighbours have run: on
whether it is the first, whether the micro-batch before is still in flight (of a forward pass), and whether the next one
has already begun (of a backward pass). A rehearsal records each of these cases, most of them several times, and checks
that they do the same; what differs raises `NotRepeating`. The schedule itself then runs with its own variables, and its
passes are played: their events go to an allocator, and their bytes are counted from the most at each place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from .caching_allocator import Step, Stretch, allocation, on_stream, release
from .event_log import FREED, KEPT, NOWHERE, PLACED, STREAMED, TAKEN, Event, Recorder
from .meter import Block, Meter, NoMeter, Peak, Place
from .repeat_layers import NotRepeating
from .strides import Shape, Strides
from .tensor import Dtype, Storage, Tensor


class EventMeter(Meter):
    """A meter that also writes down what is allocated and freed, for an allocator that reads it later.

    count: as of `Recorder`. pieces: the steps in order. opening: how many pieces there are before the first backward
    pass that is played. most: the most bytes of all storages since the beginning.
    """

    def __init__(self) -> None:
        self.count = 0
        self.pieces: list[Stretch] = []
        self.opening = 0
        self._steps: list[Step] = []
        super().__init__()
        self._highest: dict[tuple[int, int], int] = {}
        self._highest_in = self.peaks
        self._further: dict[tuple[int, int], list[tuple[Place, int, dict[str, int]]]] = {}

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, stream: int) -> None:
        self._stream = stream
        self._steps.append(on_stream(stream))

    def allocate(self, size: int) -> Block:
        block = super().allocate(size)
        block.handle = self.count
        if size:
            self._steps.append(allocation(self.count, size))
        self.count += 1
        return block

    def free(self, block: Block) -> None:
        super().free(block)
        if block.bytes:
            self._steps.append(release(block.handle))

    def cut(self) -> None:
        """Ends the piece that is written."""
        if self._steps:
            self.pieces.append((self._steps, 0))
            self._steps = []

    def play(self, trace: PassTrace, home: PassId, below: int, homes: Mapping[PassId, int]) -> int:
        """Plays the pass `home`, of layers that come after `below` more others than in its rehearsal.

        homes: pass → the number of its first storage. Returns that of this pass.
        """
        self.place = further(trace.start, below)
        base = self.count
        self.count += trace.count
        self.cut()
        steps = trace.steps
        if trace.others:
            steps = list(steps)
            for (chunk, kind, number), those in trace.others.items():
                other = chunk, kind, home[2] + number
                first = base if other == home else homes.get(other)
                if first is None:
                    raise NotRepeating
                first -= base
                for at, x in those:
                    steps[at] = first + x, 0, 0  # `release`
        self.pieces.append((steps, base))
        self._count(trace, below)
        return base

    def _count(self, trace: PassTrace, below: int) -> None:
        now, kinds = self.now, self.by_kind
        if self._risen:
            self._here.by_kind = _sum(kinds, trace.settled)
        if self._highest_in is not self.peaks:
            self._highest_in, self._highest = self.peaks, {}
        key = id(trace), below
        peaks = self._further.get(key)
        if peaks is None:
            peaks = self._further[key] = [(further(place, below), bytes, more) for place, bytes, more in trace.peaks]
        end = further(trace.end, below)
        ends_risen = False
        if now > self._highest.get(key, -1):  # else each place had as much before
            self._highest[key] = now
            for place, bytes, more in peaks:
                peak = self.peaks.get(place)
                if peak is None:
                    peak = self.peaks[place] = Peak()
                if now + bytes > peak.bytes:
                    self.peaks[place] = SummedPeak(now + bytes, kinds, more)
                    ends_risen = ends_risen or (place == end and trace.ends_risen)
        self.peak = max(self.peak, now + trace.most)
        self.now += trace.bytes
        self.by_kind = _sum(kinds, trace.kinds)
        self._place, self._here, self._risen = end, self.peaks[end], ends_risen


class SummedPeak(Peak):
    """A peak whose kinds are added up when they are asked for: those before a pass, and how many more it has."""

    __slots__ = ("_by_kind", "before", "more")

    def __init__(self, bytes: int, before: Mapping[str, int], more: Mapping[str, int]) -> None:
        self.bytes, self.before, self.more = bytes, before, more
        self._by_kind: dict[str, int] | None = None

    @property
    def by_kind(self) -> dict[str, int]:
        if self._by_kind is None:
            self._by_kind = _sum(self.before, self.more)
        return self._by_kind

    @by_kind.setter
    def by_kind(self, by_kind: dict[str, int]) -> None:
        self._by_kind = by_kind


def further(place: Place, layers: int) -> Place:
    """The same module, that many layers further up."""
    return place if place.turn < 0 or not layers else place._replace(turn=place.turn + layers)


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {kind: bytes + second.get(kind, 0) for kind, bytes in first.items()}


PassId: TypeAlias = tuple[int, str, int]
"""(chunk, `F`, `L` for a loss or `B`, micro-batch): a pass, with micro-batches numbered through all steps."""

PassCase: TypeAlias = tuple[int, str, int, str]
"""(chunk, kind, 0 for its first and 1 for its second pass, which neighbours have run): passes that do the same."""


class OutputTensor(NamedTuple):
    """A tensor that a pass hands out. number: of its storage, in the pass. kind: what it is counted under."""

    number: int
    bytes: int
    kind: str
    shape: Shape
    dtype: Dtype
    strides: Strides

    def storage(self, meter: EventMeter, base: int) -> Storage:
        """Its storage, in a pass that has been played."""
        storage = Storage.__new__(Storage)
        storage.meter, storage.bytes = meter, self.bytes
        storage.block = Block(self.bytes, self.kind, base + self.number)
        return storage

    def tensor(self, storage: Storage) -> Tensor:
        """The tensor, in that storage."""
        return Tensor(self.shape, self.dtype, storage, self.strides)


@dataclass
class PassTrace:
    """What a pass does.

    steps: what is allocated and freed; storages are numbered in the pass.
    count: how many there are. others: for each other pass of which it frees storages, the steps that do and which.
    bytes, kinds: how many more bytes there are after it. most: the most during it, over what was there.
    peaks: the most at each place, over what was there before the pass. settled: the kinds at the first event that may
    follow a peak from before. start, end: the places then. ends_risen: whether the peak there is still rising.
    made: what it hands out: its output, or gradients by the numbers of the tensors whose they are.
    entered: the kind under which what entered it is counted from here on; None for as before.
    """

    steps: list[Step] = field(default_factory=list)
    count: int = 0
    others: dict[PassId, list[tuple[int, int]]] = field(default_factory=dict)
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    most: int = 0
    peaks: list[tuple[Place, int, dict[str, int]]] = field(default_factory=list)
    settled: dict[str, int] = field(default_factory=dict)
    start: Place = NOWHERE
    end: Place = NOWHERE
    ends_risen: bool = False
    made: tuple[tuple[int, OutputTensor], ...] = ()
    entered: str | None = None

    def relative(self, home: PassId) -> PassTrace:
        """The same with micro-batches of other passes as seen from its own."""
        chunk, _, number = home
        if any(other != chunk for other, *_ in self.others):
            raise NotRepeating
        others = {(of, kind, i - number): those for (of, kind, i), those in self.others.items()}
        return PassTrace(**{**self.__dict__, "others": others})


class PassCounter:
    """Which passes have run.

    forwards, backwards: how many of each chunk. fresh: whether none of a step's backward passes of a chunk has run;
    always false where what the first one makes stays for the steps that follow.
    """

    def __init__(self, chunks: int) -> None:
        self.forwards, self.backwards = [0] * chunks, [0] * chunks
        self.fresh = [False] * chunks

    def begin_step(self) -> None:
        """Says that the first backward passes that follow make gradients."""
        self.fresh = [True] * len(self.fresh)

    def next_forward(self, chunk: int) -> tuple[PassCase, PassId]:
        """The case of a chunk's next forward pass, and which pass it is."""
        number = self.forwards[chunk]
        self.forwards[chunk] += 1
        return self._case(chunk, "F", number), (chunk, "F", number)

    def next_loss(self, chunk: int) -> tuple[PassCase, PassId]:
        """The case of the loss that follows a forward pass."""
        number = self.forwards[chunk] - 1
        return self._case(chunk, "L", number), (chunk, "L", number)

    def _case(self, chunk: int, kind: str, number: int) -> PassCase:
        before = "flying" if self.backwards[chunk] < number else "done"
        return chunk, kind, _nth(number), before if number else ""

    def next_backward(self, chunk: int) -> tuple[PassCase, PassId]:
        """The case of a chunk's next backward pass, and which pass it is."""
        number = self.backwards[chunk]
        self.backwards[chunk] += 1
        after = "begun" if self.forwards[chunk] > number + 1 else "alone"
        fresh, self.fresh[chunk] = self.fresh[chunk], False
        return (chunk, "B", _nth(number), f"{after}, fresh" if fresh else after), (chunk, "B", number)


def _nth(number: int) -> int:
    """The first pass makes what stays, so what the second one finds has other numbers than what later ones find."""
    return min(number, 2)


class RecordedPass(NamedTuple):
    """The events of a pass in a rehearsal: from, to. place: where it begins. entered: the storage that entered it.

    made: what it may hand out: number, a tensor like it, its storage.
    """

    case: PassCase
    home: PassId
    start: int
    end: int
    place: Place
    entered: int | None
    made: list[tuple[int, Tensor, int]]


class PassRecorder(PassCounter):
    """Runs passes and records them."""

    def __init__(self, meter: Recorder, chunks: int) -> None:
        super().__init__(chunks)
        self.meter = meter
        self.pieces: list[RecordedPass] = []

    def forward(self, chunk: int, entered: Tensor | None, run: Callable[[], Tensor]) -> Tensor:
        """Runs a forward pass. run: gives its output."""
        return self._run(*self.next_forward(chunk), entered, run)

    def loss(self, chunk: int, output: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Computes the loss of the last forward pass."""
        return self._run(*self.next_loss(chunk), output, run)

    def _run(self, case: PassCase, home: PassId, entered: Tensor | None, run: Callable[[], Tensor]) -> Tensor:
        start, place, self.meter.says_again = len(self.meter.events), self.meter.place, True
        made = run()
        x = None if entered is None else entered.storage.block.handle
        self.pieces.append(RecordedPass(case, home, start, len(self.meter.events), place, x, [shown(0, made)]))
        return made

    def backward(self, chunk: int, leaves: Sequence[Tensor], run: Callable[[], None]) -> None:
        """Runs a backward pass, after which these tensors may have their gradients."""
        case, home = self.next_backward(chunk)
        start, place, self.meter.says_again = len(self.meter.events), self.meter.place, True
        run()
        made = [shown(i, leaf.grad) for i, leaf in enumerate(leaves) if leaf.grad is not None]
        self.pieces.append(RecordedPass(case, home, start, len(self.meter.events), place, None, made))

    def traces(self) -> dict[PassCase, PassTrace]:
        """What each case does. Raises `NotRepeating` if what does not differ in its neighbours differs."""
        return TraceReader(self.meter.events, self.pieces).found


def shown(number: int, made: Tensor) -> tuple[int, Tensor, int]:
    """A tensor without its storage, which would be kept, and the number of that."""
    return number, Tensor(made.shape, made.dtype, _NOWHERE, made.strides), made.storage.block.handle


_NOWHERE = Storage(NoMeter(), 0)


class TraceReader:
    """Reads the events of a rehearsal. found: what each case does."""

    def __init__(self, events: Sequence[Event], pieces: Sequence[RecordedPass]) -> None:
        self.events = events
        self.sizes: dict[int, int] = {}
        self.kinds: dict[int, str] = {}
        self.homes: dict[int, tuple[PassId, int]] = {}
        self.shown = {storage for piece in pieces for _, _, storage in piece.made}
        self.found: dict[PassCase, PassTrace] = {}
        at = 0
        for piece in pieces:
            self._between(events[at : piece.start])
            at = piece.end
            trace = self._trace(piece)
            if piece.home[2]:
                trace = trace.relative(piece.home)
            known = self.found.setdefault(piece.case, trace)
            if known != trace:
                raise NotRepeating
        self._between(events[at:])

    def _between(self, events: Sequence[Event]) -> None:
        """Events outside of passes, which free nothing of them but what they hand out."""
        for x, size, what in events:
            if size >= 0:
                self.sizes[x], self.kinds[x] = size, what
            elif size == TAKEN:
                self.sizes[x], self.kinds[x] = what, "overhead"
            elif size == KEPT:
                self.kinds[x] = what
            elif size == FREED and x in self.homes and x not in self.shown:
                raise NotRepeating

    def _trace(self, piece: RecordedPass) -> PassTrace:  # noqa: PLR0915
        trace, kinds = PassTrace(), dict[str, int]()
        own: dict[int, int] = {}
        here, now, risen, settled = self._first_place(piece), 0, False, False
        trace.start = here
        peaks: dict[Place, tuple[int, dict[str, int]]] = {}
        for x, size, what in self.events[piece.start : piece.end]:
            if size == TAKEN:
                size, what = what, "overhead"
            if size >= 0:
                own[x] = len(own)
                if size:
                    trace.steps.append(allocation(own[x], size))
                self.sizes[x], self.kinds[x] = size, what
                self.homes[x] = piece.home, own[x]
                now += size
                kinds[what] = kinds.get(what, 0) + size
                if size and (here not in peaks or now > peaks[here][0]):
                    peaks[here], risen = (now, {}), True
                    trace.most = max(trace.most, now)
            elif size == FREED:
                if risen:
                    peaks[here], risen = (peaks[here][0], dict(kinds)), False
                if not settled:
                    settled, trace.settled = True, dict(kinds)
                self._freed(x, own, trace)
                now -= self.sizes[x]
                kinds[self.kinds[x]] = kinds.get(self.kinds[x], 0) - self.sizes[x]
            elif size == PLACED:
                if x == here:
                    continue
                if risen:
                    peaks[here], risen = (peaks[here][0], dict(kinds)), False
                if not settled:
                    settled, trace.settled = True, dict(kinds)
                here = x
                if here not in peaks or now > peaks[here][0]:
                    peaks[here], risen = (now, {}), True
            elif size == KEPT:
                if x == piece.entered:
                    trace.entered = what
                elif x not in own and (x not in self.homes or x in self.shown):
                    raise NotRepeating  # of another pass only what that keeps to itself
                kinds[self.kinds[x]] = kinds.get(self.kinds[x], 0) - self.sizes[x]
                kinds[what] = kinds.get(what, 0) + self.sizes[x]
                self.kinds[x] = what
            elif size == STREAMED:
                trace.steps.append(on_stream(what))
            else:
                raise NotRepeating
        if risen:
            peaks[here] = peaks[here][0], dict(kinds)
        if not settled:
            trace.settled = dict(kinds)
        trace.count, trace.bytes, trace.kinds = len(own), now, kinds
        trace.peaks = [(place, bytes, more) for place, (bytes, more) in peaks.items()]
        trace.end, trace.ends_risen = here, risen
        trace.made = tuple((i, self._made(like, own[x], x)) for i, like, x in piece.made if x in own)
        if piece.home[1] != "B" and not trace.made:
            raise NotRepeating
        return trace

    def _freed(self, x: int, own: Mapping[int, int], trace: PassTrace) -> None:
        """Adds that a storage is freed, which may be of another pass."""
        if x not in own and (x not in self.homes or x in self.shown):
            raise NotRepeating
        if not self.sizes[x]:
            return
        if x not in own:
            home, number = self.homes[x]
            trace.others.setdefault(home, []).append((len(trace.steps), number))
        trace.steps.append(release(own.get(x, 0)))

    def _first_place(self, piece: RecordedPass) -> Place:
        """Where a pass begins, which it may say itself."""
        if piece.start < piece.end:
            x, size, _ = self.events[piece.start]
            if size == PLACED:
                return x  # type: ignore[no-any-return]
        return piece.place

    def _made(self, like: Tensor, number: int, storage: int) -> OutputTensor:
        return OutputTensor(number, self.sizes[storage], self.kinds[storage], like.shape, like.dtype, like.strides)


class PassPlayer(PassCounter):
    """Plays passes in the place of running them. below: of each chunk, how many more layers come before it than in the
    rehearsal.
    """

    def __init__(self, meter: EventMeter, traces: Mapping[PassCase, PassTrace], below: Sequence[int]) -> None:
        super().__init__(len(below))
        self.meter, self.traces, self.below = meter, traces, below
        self.homes: dict[PassId, int] = {}

    def forward(self, chunk: int, entered: Tensor | None, run: Callable[[], Tensor]) -> Tensor:
        """Plays a forward pass."""
        return self._given(chunk, *self.next_forward(chunk), entered)

    def loss(self, chunk: int, output: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Plays the loss of the last forward pass."""
        return self._given(chunk, *self.next_loss(chunk), output)

    def _given(self, chunk: int, case: PassCase, home: PassId, entered: Tensor | None) -> Tensor:
        trace, base = self._play(chunk, case, home)
        if entered is not None and trace.entered is not None:
            entered.storage.block.kind = trace.entered
        ((_, made),) = trace.made
        return made.tensor(made.storage(self.meter, base))

    def backward(self, chunk: int, leaves: Sequence[Tensor], run: Callable[[], None]) -> None:
        """Plays a backward pass."""
        if not any(self.backwards):
            self.meter.opening = len(self.meter.pieces)
        trace, base = self._play(chunk, *self.next_backward(chunk))
        storages: dict[int, Storage] = {}  # gradients may be parts of one tensor
        for i, made in trace.made:
            if made.number not in storages:
                storages[made.number] = made.storage(self.meter, base)
            leaves[i].grad = made.tensor(storages[made.number])

    def _play(self, chunk: int, case: PassCase, home: PassId) -> tuple[PassTrace, int]:
        trace = self.traces.get(case)
        if trace is None:
            raise NotRepeating
        base = self.meter.play(trace, home, self.below[chunk], self.homes)
        self.homes[home] = base
        return trace, base

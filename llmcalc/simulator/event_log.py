"""What a run allocates and frees, written down event by event, so that it can be played again (`unfolding`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..algebra import Number
from .meter import MOVABLE, Block, Place

Event: TypeAlias = tuple[Any, int, Any]
"""(number of a storage, its bytes, its kind) where one is allocated; else one of the marks below is in the middle."""

FREED = -1
"""(number, FREED, None): the storage is freed."""

KEPT = -2
"""(number, KEPT, kind): from here on it is counted under that kind."""

TAKEN = -3
"""(number, TAKEN, bytes): a workspace, which is allocated if it is not there yet."""

NAMED = -4
"""(number, NAMED, other number): from here on this number means the storage of the other one."""

PLACED = -5
"""(place, PLACED, None): from here on the run is there."""

OWNED = -6
"""(path of a parameter, OWNED, None): a loop over parameters has come to that one; None at its end."""

STREAMED = -7
"""(−1, STREAMED, number): from here on storages are allocated on that stream."""


NOWHERE = Place("", -2)


class Recorder:
    """A meter that writes events down and counts nothing. The handle of a storage's block is its number.

    kind, place, whose, stream: as of `Meter`. count: the number of storages so far.
    says_again: whether the next place is written down also if the run is there already; false by default.
    apart: where parameters that a pass makes are written down; None (default) for where everything is.
    """

    def __init__(self) -> None:
        self.kind = "temporary"
        self.events: list[Event] = []
        self.apart: list[Event] | None = None
        self.count = 0
        self.says_again = False
        self._place = Place()
        self._whose: Any = None
        self._stream = 0

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, stream: int) -> None:
        self._stream = stream
        self.events.append((-1, STREAMED, stream))

    @property
    def place(self) -> Place:
        return self._place

    @place.setter
    def place(self, place: Place) -> None:
        if place != self._place or self.says_again:
            self._place, self.says_again = place, False
            self.events.append((place, PLACED, None))

    @property
    def whose(self) -> Any:
        return self._whose

    @whose.setter
    def whose(self, path: Any) -> None:
        self._whose = path
        self.events.append((path, OWNED, None))

    def allocate(self, size: Number) -> Block:
        number, kind = self.count, self.kind
        self.count = number + 1
        if kind == "weights" and self.apart is not None:
            self.apart += ((self._place, PLACED, None), (number, size, kind))
            return Block(size, kind, number)
        self.events.append((number, TAKEN, size) if kind == "overhead" else (number, size, kind))
        return Block(size, kind, number)

    def free(self, block: Block) -> None:
        self.events.append((block.handle, FREED, None))

    def reclassify(self, block: Block, kind: str) -> None:
        if block.kind != kind and block.kind in MOVABLE:
            block.kind = kind
            self.events.append((block.handle, KEPT, kind))

    def cut(self) -> list[Event]:
        """The events since the last cut. The next ones say again where the run is."""
        events, self.events = self.events, []
        self._place = NOWHERE
        return events


@dataclass(frozen=True)
class RecordedEvents:
    """The events of a run, in pieces.

    set_up: of its set-up.
    first: of a step before the one that counts, if there is one.
    then: of the step that counts. A piece may be in both steps: its storages of the first step are free by then.
    phases: the phases of the step that counts.
    """

    set_up: Sequence[Event]
    first: Sequence[Sequence[Event]]
    then: Sequence[Sequence[Event]]
    phases: Sequence[str]


def made(piece: Sequence[Event]) -> dict[int, int]:
    """The storages that are allocated in a piece: number → bytes. Workspaces, which stay, are not among them."""
    return {x: size for x, size, _ in piece if size >= 0}


def freed(piece: Sequence[Event]) -> set[int]:
    """The storages that are freed in a piece."""
    return {x for x, size, _ in piece if size == FREED}


def renamed(old: Sequence[Event], new: Sequence[Event]) -> list[Event]:
    """Events after which the numbers of an old piece's storages mean those of a new piece, which made as many."""
    return [(x, NAMED, y) for x, y in zip(made(old), made(new), strict=True)]


def repeatable(batch: Sequence[Event], passes: Sequence[Event], then: Sequence[Event], again: Sequence[Event]) -> bool:
    """Whether the events of a step's passes are those of the next step's too.

    They are if nothing outlives them but gradients, workspaces and the tokens of a batch. batch: the events that make
    the tokens. then: the events that free the gradients. again: the events that make the next tokens.
    """
    own, tokens = made(passes).keys(), made(batch).keys()
    return (
        freed(passes) <= own | tokens
        and own - freed(passes) - freed(again) == freed(then)
        and list(made(batch).values()) == list(made(again).values())
    )


def passing(update: Sequence[Event]) -> bool:
    """Whether all that is made in an optimizer's step is freed in it, and nothing else."""
    return made(update).keys() == freed(update)

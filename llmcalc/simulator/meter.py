"""Counts the bytes of storages by kind, and remembers the most of every module in every phase."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..algebra import Number

KINDS = ("weights", "gradients", "optimizer", "activations", "temporary", "communication", "cache", "overhead")
"""What memory is counted under. Activations are what the backward pass reads; temporary is everything else that a pass
makes and that does not outlive it.
"""


MOVABLE = ("temporary", "activations")
"""Kinds of storages that come under another kind when something keeps them."""


class Place(NamedTuple):
    """Where memory is allocated.

    phase: the part of the step (`forward`, `backward`, …). turn: the index of the layer; −1 outside the layers.
    path: the path of the module.
    """

    phase: str = ""
    turn: int = -1
    path: str = ""

    def in_backward(self) -> Place:
        """The same module in the backward pass."""
        return Place("backward", self.turn, self.path)


class Device(Protocol):
    """Where blocks of memory come from.

    peak_allocated, peak_requested, peak_reserved: the most of each sum. allocated, requested: the sums now.
    """

    allocated: int
    requested: int
    peak_allocated: int
    peak_requested: int
    peak_reserved: int

    def allocate(self, bytes: int, stream: int = 0) -> Any:
        """Returns a block for that many bytes."""

    def free(self, handle: Any) -> None:
        """Takes a block back."""


class Block:
    """The memory of one storage. bytes: those of its tensor. kind: what it is counted under. handle: the device's."""

    __slots__ = ("bytes", "handle", "kind")

    def __init__(self, size: int, kind: str, handle: Any = None) -> None:
        self.bytes, self.kind, self.handle = size, kind, handle


class Peak:
    """The most bytes at one place. by_kind: what they are; it adds up to `bytes`."""

    __slots__ = ("by_kind", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self.by_kind: dict[str, int] = {}

    @property
    def kinds(self) -> dict[str, int]:
        """Every kind, also those of which there is nothing."""
        return {kind: self.by_kind.get(kind, 0) for kind in KINDS}


class Meter:
    """Counts the bytes of storages.

    device: where blocks come from, which counts for itself; None for nowhere.
    kind: what new storages are counted under. place: where they are allocated.
    whose: the path of the parameter to which a loop over parameters has come; None outside of one.
    stream: on which new storages are allocated, 0 by default.
    now: the bytes of all storages, by_kind: the same by kind. peak: the most since the last `restart`.
    peaks: place → the most while it ran, since then.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device = device
        self.kind = "temporary"
        self.whose: Any = None
        self.stream = 0
        self.now = self.peak = 0
        self.by_kind: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.peaks: dict[Place, Peak] = {}
        self._place = Place()
        self._here = self.peaks.setdefault(self._place, Peak())
        self._risen = False

    @property
    def place(self) -> Place:
        return self._place

    @place.setter
    def place(self, place: Place) -> None:
        if place != self._place:
            if self._risen:
                self._settle()
            self._place = place
            self._here = self.peaks.setdefault(place, Peak())
            if self.now > self._here.bytes:
                self._here.bytes, self._risen = self.now, True

    def _settle(self) -> None:
        """Notes by kind what stands at the last peak, before anything is freed."""
        self._here.by_kind = dict(self.by_kind)
        self._risen = False

    def allocate(self, size: Number) -> Block:
        block = Block(size, self.kind, None if self.device is None else self.device.allocate(size, self.stream))
        self.now = now = self.now + size
        self.by_kind[self.kind] += size
        self.peak = max(self.peak, now)
        if now > self._here.bytes:
            self._here.bytes, self._risen = now, True
        return block

    def free(self, block: Block) -> None:
        if self._risen:
            self._settle()
        self.now -= block.bytes
        self.by_kind[block.kind] -= block.bytes
        if self.device is not None:
            self.device.free(block.handle)

    def reclassify(self, block: Block, kind: str) -> None:
        """From here on the block is counted under that kind; what is a weight or an input stays one."""
        if block.kind in MOVABLE:
            self.by_kind[block.kind] -= block.bytes
            self.by_kind[kind] += block.bytes
            block.kind = kind

    def restart(self) -> None:
        """Forgets the peaks so far."""
        self.peak = self.now
        self.peaks = {}
        self._here = self.peaks[self._place] = Peak()
        self._here.bytes, self._risen = self.now, True


class NoMeter:
    """Counts nothing: for sizes that are symbols."""

    kind = ""
    place = Place()
    whose: Any = None
    stream = 0

    def allocate(self, size: Number) -> None:
        return None

    def free(self, block: None) -> None: ...

    def reclassify(self, block: None, kind: str) -> None: ...

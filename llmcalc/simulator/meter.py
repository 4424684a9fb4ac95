"""Counts the bytes of storages by kind (weights, gradients, …), and each module's peak in each phase."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..algebra import Number

MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "temporary", "communication", "cache", "overhead")
"""Kinds of storages. Activations are tensors that the backward pass reads; temporary are all other tensors of a pass,
freed before the pass ends.
"""


RECLASSIFIABLE_KINDS = ("temporary", "activations")
"""The two kinds between which a storage's bytes move when a tensor is saved."""


class AllocationPlace(NamedTuple):
    """The module and the phase of the run (such as the backward pass) in which memory is allocated.

    phase: part of the step (`forward`, `backward`, …).
    layer_index: index of the layer; −1 outside the layers.
    path: the path of the module.
    """

    phase: str = ""
    layer_index: int = -1
    path: str = ""

    def place_in_backward(self) -> AllocationPlace:
        """Returns the same module in the backward pass."""
        return AllocationPlace("backward", self.layer_index, self.path)


class MemoryAllocator(Protocol):
    """The interface of a simulated device's memory allocator.

    allocated, requested: bytes of blocks in use, and of the tensors in them.
    peak_allocated, peak_requested, peak_reserved: the peak of each sum, and of the bytes of segments.
    """

    allocated: int
    requested: int
    peak_allocated: int
    peak_requested: int
    peak_reserved: int

    def allocate(self, block_bytes: int, cuda_stream: int = 0) -> Any:
        """Allocates a block and returns the block's handle."""

    def free(self, block_handle: Any) -> None:
        """Frees a block of memory."""


class Block:
    """The simulated memory block of one tensor storage.

    bytes: bytes of its tensor.
    memory_kind: the kind that it is counted under.
    block_handle: the handle that the device returned.
    """

    __slots__ = ("bytes", "handle", "kind")

    def __init__(self, nbytes: int, memory_kind: str, block_handle: Any = None) -> None:
        self.bytes: int = nbytes
        self.kind: str = memory_kind
        self.handle: Any = block_handle


class MemoryPeak:
    """The peak memory of one module in one phase, in bytes. by_kind: the bytes of each kind, which sum to `bytes`."""

    __slots__ = ("by_kind", "bytes")

    def __init__(self) -> None:
        self.bytes: int = 0
        self.by_kind: dict[str, int] = {}

    @property
    def bytes_of_all_kinds(self) -> dict[str, int]:
        """Returns bytes by kind of memory, with 0 for missing kinds."""
        return {memory_kind: self.by_kind.get(memory_kind, 0) for memory_kind in MEMORY_KINDS}

    def copy(self) -> MemoryPeak:
        """Returns a copy of the peak."""
        copied_peak = MemoryPeak()
        copied_peak.bytes, copied_peak.by_kind = self.bytes, dict(self.by_kind)
        return copied_peak


class Meter:
    """Counts the live bytes of tensor storages, and their peaks.

    allocator: the allocator of the blocks, which counts for itself; None for no allocator.
    kind: the kind of new storages.
    place: the place of new storages.
    parameter_path: path of the parameter that a loop over parameters has reached; None outside of a loop.
    stream: CUDA stream of new storages, default 0.
    live_bytes, by_kind: bytes of all storages, and the same by kind.
    peak_bytes: the peak since the last `restart`.
    peaks: place → its peak since the last `restart`.
    """

    def __init__(self, allocator: MemoryAllocator | None = None) -> None:
        self.allocator = allocator
        self.kind = "temporary"
        self.parameter_path: Any = None
        self.stream = 0
        self.live_bytes: int = 0
        self.peak_bytes: int = 0
        self.by_kind: dict[str, int] = dict.fromkeys(MEMORY_KINDS, 0)
        self.peaks: dict[AllocationPlace, MemoryPeak] = {}
        self._place = AllocationPlace()
        self._current_peak = self.peaks.setdefault(self._place, MemoryPeak())
        self._has_unstored_peak = False

    @property
    def place(self) -> AllocationPlace:
        return self._place

    @place.setter
    def place(self, allocation_place: AllocationPlace) -> None:
        if allocation_place != self._place:
            if self._has_unstored_peak:
                self._store_peak_by_kind()
            self._place = allocation_place
            self._current_peak = self.peaks.setdefault(allocation_place, MemoryPeak())
            if self.live_bytes > self._current_peak.bytes:
                self._current_peak.bytes, self._has_unstored_peak = self.live_bytes, True

    def _store_peak_by_kind(self) -> None:
        """Stores the bytes of each kind of memory at the current peak, before these bytes change."""
        self._current_peak.by_kind = dict(self.by_kind)
        self._has_unstored_peak = False

    def allocate(self, nbytes: Number) -> Block:
        memory_kind, allocator, current_peak = self.kind, self.allocator, self._current_peak
        self.live_bytes = live_bytes = self.live_bytes + nbytes
        self.by_kind[memory_kind] += nbytes
        if live_bytes > current_peak.bytes:  # else it is no peak of the run either
            current_peak.bytes, self._has_unstored_peak = live_bytes, True
            if live_bytes > self.peak_bytes:  # noqa: PLR1730
                self.peak_bytes = live_bytes
        return Block(nbytes, memory_kind, None if allocator is None else allocator.allocate(nbytes, self.stream))

    def free(self, block: Block) -> None:
        if self._has_unstored_peak:
            self._store_peak_by_kind()
        self.live_bytes -= block.bytes
        self.by_kind[block.kind] -= block.bytes
        if self.allocator is not None:
            self.allocator.free(block.handle)

    def reclassify(self, block: Block, memory_kind: str) -> None:
        """Moves a block's bytes to another memory kind in the counts, unless they are weights or inputs."""
        if block.kind in RECLASSIFIABLE_KINDS:
            self.by_kind[block.kind] -= block.bytes
            self.by_kind[memory_kind] += block.bytes
            block.kind = memory_kind

    def restart(self) -> None:
        """Resets the recorded peaks."""
        self.peak_bytes = self.live_bytes
        self.peaks = {}
        self._current_peak = self.peaks[self._place] = MemoryPeak()
        self._current_peak.bytes, self._has_unstored_peak = self.live_bytes, True


class NoMeter:
    """A meter that counts no bytes."""

    kind: str = ""
    place: AllocationPlace = AllocationPlace()
    parameter_path: Any = None
    stream = 0

    def allocate(self, nbytes: Number) -> None:
        return None

    def free(self, block: None) -> None: ...

    def reclassify(self, block: None, memory_kind: str) -> None: ...

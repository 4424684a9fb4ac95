"""The peaks and sizes in bytes that a replay of two training steps measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .caching_allocator import CachingAllocator
from .meter import AllocationPlace, MemoryAllocator, MemoryPeak

STEP_PHASES = ("forward", "backward", "step")
"""The parts of a training step, in order."""


@dataclass
class ReplayResult:
    """The peaks and sizes in bytes after a replay of two steps.

    set_up_bytes: bytes after set-up.
    final_bytes: bytes after the second step.
    reserved_bytes: the allocator's peak of reserved bytes; 0 without an allocator.
    rounding_bytes: bytes of the allocator's blocks beyond the requested ones, at the peak of each; 0 without an
        allocator.
    rounding_bytes_after: rounding bytes after the second step.
    micro_batches: the micro-batches of a step after which the allocator's bytes are read, of more in all; 0 for all.
    peaks: place → its peak in the second step; for the optimizer, in either step.
    bytes_per_repeat: place in the second repeat of a pattern → bytes that every further repeat adds, up to the one
        before the last; empty if all layers were replayed.
    """

    set_up_bytes: int = 0
    final_bytes: int = 0
    reserved_bytes: int = 0
    rounding_bytes: int = 0
    rounding_bytes_after: int = 0
    micro_batches: int = 0
    peaks: Mapping[AllocationPlace, MemoryPeak] = field(default_factory=dict)
    bytes_per_repeat: Mapping[AllocationPlace, int] = field(default_factory=dict)

    def copy(self) -> ReplayResult:
        """Returns a copy of the result."""
        return replace(self, peaks={allocation_place: peak.copy() for allocation_place, peak in self.peaks.items()})

    def read_allocator(
        self, allocator: MemoryAllocator | CachingAllocator, requested_bytes: int, peak_requested: int
    ) -> None:
        """Reads an allocator's counters. requested_bytes, peak_requested: bytes at the end and at the peak."""
        self.reserved_bytes = allocator.peak_reserved
        self.rounding_bytes = allocator.peak_allocated - peak_requested
        self.rounding_bytes_after = allocator.allocated - requested_bytes

    def estimate_from_shorter_replay(self, shorter_replay: ReplayResult, micro_batches: int) -> None:
        """Estimates the allocator's bytes from a replay of fewer micro-batches, plus the tensors of the others."""
        self.reserved_bytes = shorter_replay.reserved_bytes + max(0, self.peak[1].bytes - shorter_replay.peak[1].bytes)
        self.rounding_bytes = shorter_replay.rounding_bytes
        self.rounding_bytes_after = shorter_replay.rounding_bytes_after
        self.micro_batches = micro_batches

    def store_step_peaks(
        self,
        first_step_peaks: Mapping[AllocationPlace, MemoryPeak],
        second_step_peaks: Mapping[AllocationPlace, MemoryPeak],
        phases: Sequence[str] = STEP_PHASES,
    ) -> None:
        """Stores the peaks of the second step; for the optimizer, the higher peak of both steps."""
        self.peaks = {peak_place: peak for peak_place, peak in second_step_peaks.items() if peak_place.phase in phases}
        step_place = AllocationPlace("step")
        if step_place in first_step_peaks and first_step_peaks[step_place].bytes > second_step_peaks[step_place].bytes:
            self.peaks[step_place] = first_step_peaks[step_place]

    @property
    def peak(self) -> tuple[AllocationPlace, MemoryPeak]:
        """The highest peak over all modules and phases."""
        return max(self.peaks.items(), key=lambda place_and_peak: place_and_peak[1].bytes)

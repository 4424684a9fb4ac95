"""What a replay of training steps finds, in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .caching_allocator import CachingAllocator
from .meter import Device, Peak, Place

PHASES = ("forward", "backward", "step")
"""The parts of a training step, in order."""


@dataclass
class ReplayResult:
    """What a replay of two steps found, in bytes.

    set_up: after set-up. peaks: place → the most in the second step, and in the first step of the optimizer.
    after: after the second step.
    reserved: the most that the allocator reserved. slop: how many more bytes its blocks have than tensors ask for, at
        the most of each; slop_after: after the second step. All 0 without an allocator.
    slopes: of a run of few layers that stands for many, a place in the second repeat of a stack's pattern → how much
        more every further repeat has there, up to the one before the last.
    """

    set_up: int = 0
    after: int = 0
    reserved: int = 0
    slop: int = 0
    slop_after: int = 0
    peaks: Mapping[Place, Peak] = field(default_factory=dict)
    slopes: Mapping[Place, int] = field(default_factory=dict)

    def read(self, device: Device | CachingAllocator, requested: int, peak_requested: int) -> None:
        """Takes what an allocator counted. requested, peak_requested: bytes of tensors after the run, and the most."""
        self.reserved = device.peak_reserved
        self.slop = device.peak_allocated - peak_requested
        self.slop_after = device.allocated - requested

    def take_peaks(
        self, first: Mapping[Place, Peak], then: Mapping[Place, Peak], phases: Sequence[str] = PHASES
    ) -> None:
        """Takes the peaks of a later step in these phases, and that of the optimizer's first step if it is higher."""
        self.peaks = {place: peak for place, peak in then.items() if place.phase in phases}
        step = Place("step")
        if step in first and first[step].bytes > then[step].bytes:
            self.peaks[step] = first[step]

    @property
    def peak(self) -> tuple[Place, Peak]:
        """The place of the highest peak."""
        return max(self.peaks.items(), key=lambda one: one[1].bytes)

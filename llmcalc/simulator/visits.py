"""Lists the peaks of a pass in the order of its modules, and has those of a pass with one repeat of layers less.

A repeat between the first and the last adds the bytes that it saves to what comes after it in the forward pass and
before it in the backward pass, and changes nothing else. So a run of four repeats also has the peaks of three, if two
neighbouring repeats differ by these bytes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .layer_loops import LayerStack
from .meter import AllocationPlace, Meter, Peak

Visits: TypeAlias = list[tuple[AllocationPlace, Peak]]
"""(place, the peak until the next place), in the order of a pass."""


class VisitMeter(Meter):
    """A meter that counts the peak of every visit of a place, and no bytes by kind at peaks.

    visits: the visits since the last `restart`.
    """

    def __init__(self) -> None:
        self.visits: Visits = []
        super().__init__()

    @property
    def place(self) -> AllocationPlace:
        return self._place

    @place.setter
    def place(self, allocation_place: AllocationPlace) -> None:
        if allocation_place != self._place:
            self._place = allocation_place
            self._begin_visit()

    def restart(self) -> None:
        self.visits = []
        self._begin_visit()

    def _begin_visit(self) -> None:
        self._current_peak = Peak()
        self._current_peak.bytes = self.now
        self.visits.append((self._place, self._current_peak))

    def _settle_peak(self) -> None:
        self._peak_is_unsettled = False

    def visit_peaks(self, bytes_before: int) -> VisitPeaks:
        """Returns the peaks since the last `restart`, minus `bytes_before`, the bytes allocated then."""
        return VisitPeaks([(place, peak.bytes - bytes_before) for place, peak in self.visits])


class VisitPeaks(NamedTuple):
    """The peak bytes of a pass. visits: (place, peak bytes until the next place), in order."""

    visits: Sequence[tuple[AllocationPlace, int]]

    def by_path(self) -> dict[str, int]:
        """Returns the peak bytes of each module path; at least 0."""
        peak_by_path: dict[str, int] = {}
        for place, peak_bytes in self.visits:
            peak_by_path[place.path] = max(peak_by_path.get(place.path, 0), peak_bytes)
        return peak_by_path

    def repeat_starts(self, layer_stack: LayerStack, repeats: Sequence[int]) -> list[int] | None:
        """Returns the index of the first visit of each of these repeats of a stack, in the order of the pass.

        None if a layer is visited before or after its turn.
        """
        turns = [
            (place.layer_index - layer_stack.before) // layer_stack.period if place.layer_index >= 0 else None
            for place, _ in self.visits
        ]
        turns_of_layers = [turn for turn in turns if turn is not None]
        if turns_of_layers != sorted(turns_of_layers, reverse=repeats[0] > repeats[-1]):
            return None
        return [turns.index(repeat) for repeat in repeats] if {*repeats} <= {*turns} else None

    def added_bytes(self, start: int, next_start: int, count: int, added_layers: int) -> int | None:
        """Returns by how many bytes the peaks of one part of the pass exceed those of another part.

        start, next_start: the first visits of the smaller and of the larger part. count: visits of each.
        added_layers: by how many the larger part's indices of layers exceed those of the smaller one.
        None if the parts differ in anything else.
        """
        part, next_part = self.visits[start : start + count], self.visits[next_start : next_start + count]
        added_bytes = next_part[0][1] - part[0][1]
        expected_part = [
            (
                place if place.layer_index < 0 else place._replace(layer_index=place.layer_index + added_layers),
                peak_bytes + added_bytes,
            )
            for place, peak_bytes in part
        ]
        return added_bytes if expected_part == next_part else None


def forward_without_repeat(peaks: VisitPeaks, layer_stack: LayerStack) -> tuple[VisitPeaks, int] | None:
    """Returns the peaks of a forward pass of three repeats, and the bytes that a repeat saves.

    peaks: those of four repeats. layer_stack: the stack of the repeats, whose layers are numbered as in the pass.
    None if the second, the third and the layers of the fourth repeat do not do the same.
    """
    starts, period = peaks.repeat_starts(layer_stack, (1, 2, 3)), layer_stack.period
    if starts is None:
        return None
    second, third, fourth = starts
    count = fourth - third
    count_in_layers = max(i for i in range(1, count + 1) if peaks.visits[third + i - 1][0].layer_index >= 0)
    saved_bytes = peaks.added_bytes(second, third, count, period)
    if third - second != count or saved_bytes != peaks.added_bytes(third, fourth, count_in_layers, period):
        return None
    if saved_bytes is None:
        return None
    later_visits = [(place, peak_bytes - saved_bytes) for place, peak_bytes in peaks.visits[fourth:]]
    return VisitPeaks([*peaks.visits[:third], *later_visits]), saved_bytes


def backward_without_repeat(peaks: VisitPeaks, layer_stack: LayerStack, saved_bytes: int) -> VisitPeaks | None:
    """Returns the peaks of a backward pass of three repeats.

    peaks, layer_stack: as of `forward_without_repeat`. saved_bytes: the bytes that a repeat saves.
    None if the third and the second repeat do not do the same, or free other bytes.
    """
    starts = peaks.repeat_starts(layer_stack, (2, 1, 0))
    if starts is None:
        return None
    third, second, first = starts
    count = first - second
    if second - third != count or peaks.added_bytes(second, third, count, layer_stack.period) != saved_bytes:
        return None
    earlier_visits = [(place, peak_bytes - saved_bytes) for place, peak_bytes in peaks.visits[:second]]
    return VisitPeaks([*earlier_visits, *peaks.visits[first:]])

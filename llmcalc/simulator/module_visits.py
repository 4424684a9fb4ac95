"""Records memory peaks per module visit, and derives the peaks of a pass with one layer repeat more or less.

A repeat between the first and the last adds the bytes that it saves to what comes after it in the forward pass and
before it in the backward pass, and changes nothing else. So a run of four repeats also has the peaks of three, if two
neighbouring repeats differ by these bytes alone. A run of three has those of four, if the first repeat too does in the
backward pass what the second does: with kernels of Megatron-Core it does, with torch's it often leaves other tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .layer_stacks import LayerStack
from .meter import AllocationPlace, MemoryPeak, Meter
from .simulated_work import SIMULATED_WORK


class ModuleVisit(NamedTuple):
    """One visit to a module in a pass: from its entry until another module or phase begins.

    place: the module and phase.
    peak_bytes: the peak bytes of the stay.
    work_units_before: units of `SimulatedWork` in the pass before the stay.
    """

    place: AllocationPlace
    peak_bytes: int
    work_units_before: int


class VisitMeter(Meter):
    """A meter that records the peak bytes of every module visit, without bytes by kind."""

    def __init__(self) -> None:
        self._visits: list[tuple[AllocationPlace, MemoryPeak, int]] = []
        super().__init__()

    @property
    def place(self) -> AllocationPlace:
        return self._place

    @place.setter
    def place(self, visit_place: AllocationPlace) -> None:
        if visit_place != self._place:
            self._place = visit_place
            self._begin_visit()

    def restart(self) -> None:
        self.peak_bytes: int = self.live_bytes
        self._visits = []
        self._begin_visit()

    def _begin_visit(self) -> None:
        self._current_peak = MemoryPeak()
        self._current_peak.bytes = self.live_bytes
        self._visits.append((self._place, self._current_peak, SIMULATED_WORK.units))

    def _store_peak_by_kind(self) -> None:
        self._has_unstored_peak = False

    def pass_visits(self, bytes_before: int) -> PassVisits:
        """Returns the visits since the last `restart`. bytes_before: the bytes subtracted from their peaks."""
        work_units_before = self._visits[0][2]
        module_visits = [
            ModuleVisit(module_place, peak.bytes - bytes_before, work_units - work_units_before)
            for module_place, peak, work_units in self._visits
        ]
        return PassVisits(module_visits, SIMULATED_WORK.units - work_units_before)


class PassVisits(NamedTuple):
    """The module visits of a pass in order. work_units: units of `SimulatedWork` of the pass."""

    visits: Sequence[ModuleVisit]
    work_units: int

    def peak_by_path(self) -> dict[str, int]:
        """Returns module path → peak bytes in the pass, at least 0."""
        peak_by_path: dict[str, int] = {}
        for module_place, peak_bytes, _ in self.visits:
            peak_by_path[module_place.path] = max(peak_by_path.get(module_place.path, 0), peak_bytes)
        return peak_by_path

    def repeat_starts(self, layer_stack: LayerStack, repeats: Sequence[int]) -> list[int] | None:
        """Returns, for each repeat of a stack, the index of its first visit, in the order of the pass.

        None if a layer is visited before or after its turn.
        """
        repeat_indices = [
            (module_visit.place.layer_index - layer_stack.layers_before) // layer_stack.layer_period
            if module_visit.place.layer_index >= 0
            else None
            for module_visit in self.visits
        ]
        repeats_in_order = [layer_repeat for layer_repeat in repeat_indices if layer_repeat is not None]
        if repeats_in_order != sorted(repeats_in_order, reverse=repeats[0] > repeats[-1]):
            return None
        if {*repeats} <= {*repeat_indices}:
            return [repeat_indices.index(stack_repeat) for stack_repeat in repeats]
        return None

    def added_bytes(self, start_index: int, later_start_index: int, visit_count: int, added_layers: int) -> int | None:
        """Returns the bytes by which the peaks of later visits exceed those of earlier visits.

        start_index, later_start_index: the first visits of both parts. visit_count: visits of each part.
        added_layers: by how many the later part's indices of layers exceed those of the earlier part.
        None if the parts differ in anything else.
        """
        earlier_visits = self.visits[start_index : start_index + visit_count]
        later_visits = self.visits[later_start_index : later_start_index + visit_count]
        added_bytes = later_visits[0].peak_bytes - earlier_visits[0].peak_bytes
        expected_visits = [
            (
                module_place
                if module_place.layer_index < 0
                else module_place._replace(layer_index=module_place.layer_index + added_layers),
                peak_bytes + added_bytes,
            )
            for module_place, peak_bytes, _ in earlier_visits
        ]
        return added_bytes if expected_visits == [module_visit[:2] for module_visit in later_visits] else None

    def without_visits(self, start_index: int, end_index: int) -> PassVisits:
        """Returns the pass without the visits from index `start_index` to index `end_index`, which is kept."""
        removed_work = self.visits[end_index].work_units_before - self.visits[start_index].work_units_before
        later_visits = [
            visit._replace(work_units_before=visit.work_units_before - removed_work)
            for visit in self.visits[end_index:]
        ]
        return PassVisits([*self.visits[:start_index], *later_visits], self.work_units - removed_work)

    def visit_count_in_layers(self, start_index: int, visit_count: int) -> int:
        """Returns the number of visits from `start_index` to the last visit in a layer, among `visit_count` visits."""
        return max(
            count for count in range(1, visit_count + 1) if self.visits[start_index + count - 1].place.layer_index >= 0
        )

    def with_repeated_visits(self, start_index: int, end_index: int) -> PassVisits:
        """Returns the pass with the visits from index `start_index` to index `end_index` twice in a row."""
        added_work = self.visits[end_index].work_units_before - self.visits[start_index].work_units_before
        later_visits = [
            visit._replace(work_units_before=visit.work_units_before + added_work)
            for visit in self.visits[start_index:]
        ]
        return PassVisits([*self.visits[:end_index], *later_visits], self.work_units + added_work)

    def with_more_bytes(self, start_index: int, end_index: int, added_bytes: int) -> PassVisits:
        """Returns the pass with `added_bytes` more at the peaks of the visits from `start_index` to `end_index`."""
        module_visits = list(self.visits)
        module_visits[start_index:end_index] = [
            visit._replace(peak_bytes=visit.peak_bytes + added_bytes) for visit in module_visits[start_index:end_index]
        ]
        return PassVisits(module_visits, self.work_units)


def forward_without_repeat(forward_pass: PassVisits, layer_stack: LayerStack) -> tuple[PassVisits, int] | None:
    """Derives a forward pass with three layer repeats from one with four. Also returns the bytes saved per repeat.

    forward_pass: of four repeats. layer_stack: the stack of the repeats, whose layers are numbered as in the pass.
    None if the second, the third and the layers of the fourth repeat do not do the same.
    """
    start_indices, layer_period = forward_pass.repeat_starts(layer_stack, (1, 2, 3)), layer_stack.layer_period
    if start_indices is None:
        return None
    second_repeat_start, third_repeat_start, fourth_repeat_start = start_indices
    visit_count = fourth_repeat_start - third_repeat_start
    visit_count_in_layers = forward_pass.visit_count_in_layers(third_repeat_start, visit_count)
    saved_bytes = forward_pass.added_bytes(second_repeat_start, third_repeat_start, visit_count, layer_period)
    if third_repeat_start - second_repeat_start != visit_count or saved_bytes != forward_pass.added_bytes(
        third_repeat_start, fourth_repeat_start, visit_count_in_layers, layer_period
    ):
        return None
    if saved_bytes is None:
        return None
    shorter_pass = forward_pass.with_more_bytes(fourth_repeat_start, len(forward_pass.visits), -saved_bytes)
    return shorter_pass.without_visits(third_repeat_start, fourth_repeat_start), saved_bytes


def backward_without_repeat(backward_pass: PassVisits, layer_stack: LayerStack, saved_bytes: int) -> PassVisits | None:
    """Derives a backward pass with three layer repeats from one with four.

    backward_pass, layer_stack: as of `forward_without_repeat`. saved_bytes: the bytes that a repeat saves.
    None if the third and the second repeat do not do the same, or free other bytes.
    """
    start_indices = backward_pass.repeat_starts(layer_stack, (2, 1, 0))
    if start_indices is None:
        return None
    third_repeat_start, second_repeat_start, first_repeat_start = start_indices
    visit_count = first_repeat_start - second_repeat_start
    if (
        second_repeat_start - third_repeat_start != visit_count
        or backward_pass.added_bytes(third_repeat_start, second_repeat_start, visit_count, -layer_stack.layer_period)
        != -saved_bytes
    ):
        return None
    return backward_pass.with_more_bytes(0, second_repeat_start, -saved_bytes).without_visits(
        second_repeat_start, first_repeat_start
    )


def forward_with_repeat(forward_pass: PassVisits, layer_stack: LayerStack) -> tuple[PassVisits, int] | None:
    """Derives a forward pass with four layer repeats from one with three. Also returns the bytes saved per repeat.

    forward_pass: of three repeats. layer_stack: the stack of the repeats, whose layers are numbered as in the pass.
    None if the second repeat and the layers of the third do not do the same.
    """
    start_indices, layer_period = forward_pass.repeat_starts(layer_stack, (1, 2)), layer_stack.layer_period
    if start_indices is None:
        return None
    second_repeat_start, third_repeat_start = start_indices
    visit_count = third_repeat_start - second_repeat_start
    visit_count_in_layers = forward_pass.visit_count_in_layers(second_repeat_start, visit_count)
    saved_bytes = forward_pass.added_bytes(second_repeat_start, third_repeat_start, visit_count_in_layers, layer_period)
    if saved_bytes is None:
        return None
    longer_pass = forward_pass.with_repeated_visits(second_repeat_start, third_repeat_start)
    return longer_pass.with_more_bytes(third_repeat_start, len(longer_pass.visits), saved_bytes), saved_bytes


def backward_with_repeat(backward_pass: PassVisits, layer_stack: LayerStack, saved_bytes: int) -> PassVisits | None:
    """Derives a backward pass with four layer repeats from one with three.

    backward_pass, layer_stack: as of `forward_with_repeat`. saved_bytes: the bytes that a repeat saves.
    None if the second repeat and the layers of the first do not do the same, or free other bytes.
    """
    start_indices = backward_pass.repeat_starts(layer_stack, (1, 0))
    if start_indices is None:
        return None
    second_repeat_start, first_repeat_start = start_indices
    visit_count = first_repeat_start - second_repeat_start
    visit_count_in_layers = backward_pass.visit_count_in_layers(second_repeat_start, visit_count)
    if (
        backward_pass.added_bytes(
            second_repeat_start, first_repeat_start, visit_count_in_layers, -layer_stack.layer_period
        )
        != -saved_bytes
    ):
        return None
    longer_pass = backward_pass.with_repeated_visits(second_repeat_start, first_repeat_start)
    return longer_pass.with_more_bytes(0, first_repeat_start, saved_bytes)


class DerivedPasses(NamedTuple):
    """The passes of a micro-batch, derived for other layer repeats. repeat_bytes: bytes that a repeat saves."""

    forward: PassVisits
    backward: PassVisits
    repeat_bytes: int


def derive_passes_with_fewer_repeats(
    forward_pass: PassVisits, backward_pass: PassVisits, layer_stack: LayerStack
) -> DerivedPasses | None:
    """Derives passes with three layer repeats from passes with four; None if the inner repeats differ."""
    shorter_forward = forward_without_repeat(forward_pass, layer_stack)
    if shorter_forward is None:
        return None
    forward_visits, repeat_bytes = shorter_forward
    backward_visits = backward_without_repeat(backward_pass, layer_stack, repeat_bytes)
    return None if backward_visits is None else DerivedPasses(forward_visits, backward_visits, repeat_bytes)


def derive_passes_with_more_repeats(
    forward_pass: PassVisits, backward_pass: PassVisits, layer_stack: LayerStack
) -> DerivedPasses | None:
    """Derives passes with four layer repeats from passes with three; None if the repeats differ."""
    longer_forward = forward_with_repeat(forward_pass, layer_stack)
    if longer_forward is None:
        return None
    forward_visits, repeat_bytes = longer_forward
    backward_visits = backward_with_repeat(backward_pass, layer_stack, repeat_bytes)
    return None if backward_visits is None else DerivedPasses(forward_visits, backward_visits, repeat_bytes)

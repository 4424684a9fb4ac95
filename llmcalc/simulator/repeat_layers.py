"""Derives the memory events of a run with many layers from the recorded events of few layers.

The recorded run has four repeats of each stack's pattern of layers. Wherever its events pass through the repeats one
after the other (set-up and forward pass upwards, backward pass downwards, an optimizer over all parameters), the second
and the third repeat must do the same, each with its own storages and those of its neighbours. Then every repeat between
the first and the last does it. This is checked event by event: what differs raises `NotRepeatingError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from .caching_allocator import SINGLE_REPEAT, AllocatorStepEncoder, CachingAllocator, StepList
from .event_log import (
    FREE_EVENT,
    PARAMETER_EVENT,
    PLACE_EVENT,
    RECLASSIFY_EVENT,
    RENAME_EVENT,
    STREAM_EVENT,
    WORKSPACE_EVENT,
    Event,
    RecordedEvents,
)
from .layer_pattern import RECORDED_REPEATS
from .layer_stacks import LayerStack
from .meter import AllocationPlace, Meter
from .replay_result import ReplayResult

LAST_RECORDED_REPEAT = RECORDED_REPEATS - 1

NAMING_EVENTS = FREE_EVENT, RECLASSIFY_EVENT
"""Marks of the events that refer to a storage number."""

EVENTS_IGNORED_BY_ALLOCATOR = PLACE_EVENT, RECLASSIFY_EVENT
"""Marks of the events that do not change an allocator's state."""

StackRepeat: TypeAlias = tuple[int, int]
"""A repeat of a layer pattern: (index of the stack, index of the repeat)."""


class NotRepeatingError(Exception):
    """Raised when layers or passes that should have identical memory events differ."""


class AllocatorOverhead(NamedTuple):
    """The bytes that a caching allocator reserves beyond the bytes that tensors request.

    requested_bytes: the highest sum of bytes that tensors request.
    rounding_bytes: bytes of the blocks in use beyond the requested ones, at the peak of each.
    free_bytes: bytes of the segments beyond the blocks in use, at their peak.
    rounding_bytes_after: rounding bytes after the run.
    """

    requested_bytes: int
    rounding_bytes: int
    free_bytes: int
    rounding_bytes_after: int

    @staticmethod
    def read_overhead(allocator: CachingAllocator, step_encoder: AllocatorStepEncoder) -> AllocatorOverhead:
        """Returns an allocator's overhead at the end of a replay. step_encoder: the counter of the requested bytes."""
        rounding_bytes = allocator.peak_allocated - step_encoder.peak_requested
        free_bytes = allocator.peak_reserved - allocator.peak_allocated
        return AllocatorOverhead(
            step_encoder.peak_requested, rounding_bytes, free_bytes, allocator.allocated - step_encoder.requested
        )

    @staticmethod
    def combine(run_overheads: Sequence[AllocatorOverhead]) -> AllocatorOverhead:
        """Returns the overhead of consecutive runs, each of which has an allocator of its own."""
        requested_bytes = max(run_overhead.requested_bytes for run_overhead in run_overheads)
        rounding_bytes = max(run_overhead.rounding_bytes for run_overhead in run_overheads)
        reserved_bytes = max(
            run_overhead.requested_bytes + run_overhead.rounding_bytes + run_overhead.free_bytes
            for run_overhead in run_overheads
        )
        return AllocatorOverhead(
            requested_bytes,
            rounding_bytes,
            reserved_bytes - requested_bytes - rounding_bytes,
            run_overheads[-1].rounding_bytes_after,
        )

    def extrapolate(
        self, longer_overhead: AllocatorOverhead, missing_layers: int, added_layers: int
    ) -> AllocatorOverhead:
        """Extrapolates the overhead to `missing_layers` more layers, from a run that has `added_layers` more."""
        return AllocatorOverhead(
            *(
                max(0, longer_bytes + (longer_bytes - shorter_bytes) * missing_layers // added_layers)
                for shorter_bytes, longer_bytes in zip(self, longer_overhead, strict=True)
            )
        )


class InnerRepeatEvent(NamedTuple):
    """A memory event of the repeats between the first and the last, as a function of the repeat's index.

    owner_offset: the repeat that allocates the storage, relative to this one (0, −1 before, 1 after); None for a
        storage that is the same in all repeats.
    storage_number: the number of the storage in the second repeat; for a storage of all repeats, its number.
    storage_of_outer_repeat: the number of the storage of the first or the last repeat, which a neighbouring repeat
        uses.
    nbytes, event_detail: the two other fields of an `Event`.
    """

    owner_offset: int | None
    storage_number: Any
    storage_of_outer_repeat: Any
    nbytes: int
    event_detail: Any


@dataclass
class LayerSweep:
    """The memory events of one sweep through a stack's layers, in one list per repeat of the layer pattern.

    stack_index: the number of the stack.
    is_ascending: whether they go from the first repeat to the last.
    events_by_repeat: the events of each repeat, with those that follow it until the next repeat begins.
    inner_events: the events of every repeat between the first and the last.
    """

    stack_index: int
    is_ascending: bool
    events_by_repeat: list[list[Event]]
    inner_events: list[InnerRepeatEvent] = field(default_factory=list)

    @property
    def events_in_order(self) -> list[list[Event]]:
        """The memory events of all repeats in the order in which they run."""
        return self.events_by_repeat if self.is_ascending else self.events_by_repeat[::-1]


SweepOrEvents: TypeAlias = list[Event] | LayerSweep

InnerRepeatEventLine: TypeAlias = tuple[Any, int, int, Any]
"""An event of every inner repeat as (x, step, size, value); its storage number is x + step · repeat."""


class RepeatAnalysis:
    """Finds the memory events of every layer repeat in a recorded run, and replays any number of repeats.

    recorded_events: a run with `RECORDED_REPEATS` repeats of the stacks in `repeating_stacks`, and all repeats of the
        other stacks.
    stacks: all stacks of the model.
    repeating_stacks: the numbers of the stacks whose repeats may vary.
    Raises `NotRepeatingError` if the repeats differ.
    """

    def __init__(
        self, recorded_events: RecordedEvents, layer_stacks: Sequence[LayerStack], repeating_stacks: Sequence[int]
    ) -> None:
        self.recorded_events: RecordedEvents = recorded_events
        self.stacks: Sequence[LayerStack] = layer_stacks
        self.repeating_stacks: Sequence[int] = repeating_stacks
        self.allocating_repeat: dict[int, StackRepeat | None] = {}  # storage → the repeat that allocates it
        self.counterparts: dict[int, tuple[int, int]] = {}  # storage of repeat 1 or 2 → (its twin in repeat 1, repeat)
        self.stack_of_storage: dict[int, int] = {}  # storage of repeat 1 → its stack
        self.repeat_cache: dict[Any, StackRepeat | None] = {}
        repeat_directions = (range(RECORDED_REPEATS), range(LAST_RECORDED_REPEAT, -1, -1))
        self.release_orders: list[list[tuple[int, int]]] = [
            [(stack_index, repeat_index) for repeat_index in repeat_direction]
            for stack_index in repeating_stacks
            for repeat_direction in repeat_directions
        ]
        self.outer_repeat_events: list[tuple[int, list[Event]]] = []  # (first or last repeat, some of its events)
        self.sweeps_and_events: dict[int, list[SweepOrEvents]] = {}
        for section_events in (recorded_events.set_up, *recorded_events.first_step, *recorded_events.reported_step):
            if id(section_events) not in self.sweeps_and_events:
                event_groups = list(self._split_by_repeat(section_events))
                self.outer_repeat_events += [
                    (layer_repeat[1], memory_events)
                    for layer_repeat, memory_events in event_groups
                    if layer_repeat is not None and layer_repeat[1] in (0, LAST_RECORDED_REPEAT)
                ]
                self.sweeps_and_events[id(section_events)] = list(self._sweeps_and_events(event_groups))
        layer_sweeps = [
            sweep_or_events
            for sweeps_and_events in self.sweeps_and_events.values()
            for sweep_or_events in sweeps_and_events
            if isinstance(sweep_or_events, LayerSweep)
        ]
        for layer_sweep in layer_sweeps:
            self._pair_storages(layer_sweep)
        for layer_sweep in layer_sweeps:
            repeat_pairs = zip(layer_sweep.events_by_repeat[1], layer_sweep.events_by_repeat[2], strict=True)
            layer_sweep.inner_events = [
                self._event_of_inner_repeats(layer_sweep.stack_index, *event_pair) for event_pair in repeat_pairs
            ]
        self._check_outer_repeats()

    # --- the events of each repeat -----------------------------------------------------------------------------------

    def _split_by_repeat(self, section_events: Sequence[Event]) -> Iterator[tuple[StackRepeat | None, list[Event]]]:
        """Yields the events in groups, each with its layer repeat, or with None outside of repeats."""
        repeat_of_place: StackRepeat | None = None
        repeat_of_parameter: StackRepeat | None = None
        layer_repeat: StackRepeat | None = None
        memory_events: list[Event] = []
        for memory_event in section_events:
            storage_number, nbytes, _ = memory_event
            if nbytes >= 0:
                self.allocating_repeat[storage_number] = layer_repeat
            elif nbytes in (PLACE_EVENT, PARAMETER_EVENT):
                if nbytes == PLACE_EVENT:
                    repeat_of_place = self._repeat_of_place(storage_number)
                else:
                    repeat_of_parameter = None if storage_number is None else self._repeat_of_parameter(storage_number)
                next_repeat = repeat_of_parameter or repeat_of_place
                if next_repeat != layer_repeat:
                    if memory_events:
                        yield from self._split_releases(layer_repeat, memory_events)
                    layer_repeat, memory_events = next_repeat, []
                if nbytes == PARAMETER_EVENT:
                    continue
            elif nbytes == WORKSPACE_EVENT:
                self.allocating_repeat[storage_number] = None
            memory_events.append(memory_event)
        if memory_events:
            yield from self._split_releases(layer_repeat, memory_events)

    def _split_releases(
        self, layer_repeat: StackRepeat | None, memory_events: list[Event]
    ) -> Iterator[tuple[StackRepeat | None, list[Event]]]:
        """Yields events with their layer repeat. A release between repeats belongs to the repeat that allocated.

        That holds where the releases pass through all recorded repeats in order, or through all but the first or the
        last one, which may release elsewhere.
        """
        if layer_repeat is not None or len(memory_events) < RECORDED_REPEATS - 1:
            yield layer_repeat, memory_events
            return
        event_groups = [
            (allocating_repeat, list(release_events))
            for allocating_repeat, release_events in groupby(memory_events, self._repeat_of_allocation)
        ]
        pending_events: list[Event] = []
        group_index = 0
        while group_index < len(event_groups):
            release_order = self._release_order_of_repeats(
                [repeat_index for repeat_index, _ in event_groups[group_index : group_index + RECORDED_REPEATS]]
            )
            if release_order:
                if pending_events:
                    yield None, pending_events
                pending_events = []
                for repeat_index in release_order:
                    if group_index < len(event_groups) and event_groups[group_index][0] == repeat_index:
                        yield event_groups[group_index]
                        group_index += 1
                    else:
                        yield repeat_index, []
            else:
                pending_events += event_groups[group_index][1]
                group_index += 1
        if pending_events:
            yield None, pending_events

    def _release_order_of_repeats(self, origin_repeats: list[StackRepeat | None]) -> list[StackRepeat]:
        """Returns the layer repeats in the order in which the first storage of each is freed; empty without frees."""
        if origin_repeats in self.release_orders:
            return origin_repeats  # type: ignore[return-value]
        first_origins = origin_repeats[: RECORDED_REPEATS - 1]
        return next(
            (
                repeat_order
                for repeat_order in self.release_orders
                if first_origins in (repeat_order[1:], repeat_order[:-1])
            ),
            [],
        )

    def _repeat_of_allocation(self, memory_event: Event) -> StackRepeat | None:
        """Returns the layer repeat in which the storage that this event frees was allocated."""
        storage_number, nbytes, _ = memory_event
        return self.allocating_repeat.get(storage_number) if nbytes == FREE_EVENT else None

    def _repeat_of_place(self, allocation_place: AllocationPlace) -> StackRepeat | None:
        """Returns the layer repeat that contains a module, by the module's path."""
        if allocation_place.layer_index < 0:
            return None
        place_without_phase = allocation_place.layer_index, allocation_place.path
        if place_without_phase not in self.repeat_cache:
            stack_repeats = (
                self._repeat_in_stack(stack_index, allocation_place) for stack_index in self.repeating_stacks
            )
            self.repeat_cache[place_without_phase] = next((repeat for repeat in stack_repeats if repeat), None)
        return self.repeat_cache[place_without_phase]

    def _repeat_in_stack(self, stack_index: int, allocation_place: AllocationPlace) -> StackRepeat | None:
        """Returns the repeat of a stack's layer pattern that contains a module; None outside of repeats."""
        layer_stack = self.stacks[stack_index]
        repeat_index = (allocation_place.layer_index - layer_stack.layers_before) // layer_stack.layer_period
        if layer_stack.contains(allocation_place) and 0 <= repeat_index < RECORDED_REPEATS:
            return (stack_index, repeat_index)
        return None

    def _repeat_of_parameter(self, parameter_path: Sequence[Any]) -> StackRepeat | None:
        """Returns the layer repeat that contains a parameter."""
        module_names: list[str] = []
        for path_part in parameter_path[1:]:
            if type(path_part) is not int:
                module_names += [path_part] if path_part else []
                continue
            layer_repeat = self._repeat_of_place(AllocationPlace("", path_part, ".".join(module_names)))
            if layer_repeat is not None:
                return layer_repeat
        return None

    def _sweeps_and_events(
        self, event_groups: Sequence[tuple[StackRepeat | None, list[Event]]]
    ) -> Iterator[SweepOrEvents]:
        """Yields each sweep through a stack's layers, and between sweeps the lists of other events."""
        group_index = 0
        while group_index < len(event_groups):
            layer_repeat, memory_events = event_groups[group_index]
            if layer_repeat is None:
                yield memory_events
                group_index += 1
                continue
            if layer_repeat[1] not in (0, LAST_RECORDED_REPEAT):
                raise NotRepeatingError
            layer_sweep, next_group_index = self._find_layer_sweep(*layer_repeat, event_groups, group_index)
            yield memory_events if layer_sweep is None else layer_sweep
            group_index = next_group_index

    def _find_layer_sweep(
        self,
        stack_index: int,
        repeat_index: int,
        event_groups: Sequence[tuple[StackRepeat | None, list[Event]]],
        first_group_index: int,
    ) -> tuple[LayerSweep | None, int]:
        """Returns the layer sweep that starts at a group of events (None if none does), and the next group's index.

        stack_index, repeat_index: of the run at `first_group_index`, which is that of the stack's first or last repeat.
        """
        is_ascending = repeat_index == 0
        direction_step, last_repeat = (1, LAST_RECORDED_REPEAT) if is_ascending else (-1, 0)
        events_by_repeat: list[list[Event]] = [[] for _ in range(RECORDED_REPEATS)]
        events_outside_repeats: list[Event] = []  # outside of all repeats, after the last run of a repeat
        for group_index in range(first_group_index, len(event_groups)):
            stack_and_repeat, memory_events = event_groups[group_index]
            if stack_and_repeat is None:
                events_outside_repeats += memory_events
                continue
            if stack_and_repeat not in ((stack_index, repeat_index), (stack_index, repeat_index + direction_step)):
                break
            events_by_repeat[repeat_index] += events_outside_repeats
            events_outside_repeats = []
            repeat_index = stack_and_repeat[1]
            events_by_repeat[repeat_index] += memory_events
            if repeat_index == last_repeat:
                return LayerSweep(stack_index, is_ascending, events_by_repeat), group_index + 1
        return None, first_group_index + 1

    # --- one event for all repeats -----------------------------------------------------------------------------------

    def _pair_storages(self, layer_sweep: LayerSweep) -> None:
        """Pairs each storage of the second repeat with the matching storage of the third repeat."""
        second_repeat, third_repeat = layer_sweep.events_by_repeat[1], layer_sweep.events_by_repeat[2]
        if len(second_repeat) != len(third_repeat):
            raise NotRepeatingError
        for (second_storage, nbytes, event_detail), (third_storage, third_nbytes, third_detail) in zip(
            second_repeat, third_repeat, strict=True
        ):
            if nbytes != third_nbytes or event_detail != third_detail:
                raise NotRepeatingError
            if nbytes >= 0:
                self.counterparts[second_storage], self.counterparts[third_storage] = (
                    (second_storage, 1),
                    (second_storage, 2),
                )
                self.stack_of_storage[second_storage] = layer_sweep.stack_index
            elif nbytes in (WORKSPACE_EVENT, RENAME_EVENT):
                raise NotRepeatingError

    def _event_of_inner_repeats(self, stack_index: int, second_event: Event, third_event: Event) -> InnerRepeatEvent:
        """Derives the event of every inner repeat from the matching events in the second and third repeat."""
        (second_storage, nbytes, event_detail), (third_storage, _, _) = second_event, third_event
        if nbytes == PLACE_EVENT:
            return self._inner_place_event(second_storage, third_storage)
        second_counterpart, third_counterpart = (
            self.counterparts.get(second_storage),
            self.counterparts.get(third_storage),
        )
        if second_storage == third_storage and second_counterpart is None:
            return InnerRepeatEvent(None, second_storage, second_storage, nbytes, event_detail)
        if any(
            counterpart is not None and self.stack_of_storage[counterpart[0]] != stack_index
            for counterpart in (second_counterpart, third_counterpart)
        ):
            raise NotRepeatingError
        if (
            second_counterpart is not None
            and third_counterpart is not None
            and second_counterpart[0] == third_counterpart[0]
            and second_counterpart[1] < third_counterpart[1]
        ):
            return InnerRepeatEvent(0, second_storage, second_storage, nbytes, event_detail)
        # the third repeat uses a storage of the second
        if second_counterpart is None and third_counterpart is not None and third_counterpart[1] == 1:
            return InnerRepeatEvent(-1, third_storage, second_storage, nbytes, event_detail)
        # the second repeat uses a storage of the third
        if second_counterpart is not None and third_counterpart is None and second_counterpart[1] == 2:
            return InnerRepeatEvent(1, second_counterpart[0], third_storage, nbytes, event_detail)
        raise NotRepeatingError

    def _check_outer_repeats(self) -> None:
        """Raises `NotRepeatingError` if an event outside of inner repeats uses a storage that every repeat has.

        The first repeat may use storages of repeat 1, the last repeat those of repeat 2. Where both storages of a pair
        of counterparts are released or reclassified outside of the inner repeats, the same would happen in further
        repeats, for which no event was recorded.
        """
        for layer_repeat, memory_events in self.outer_repeat_events:
            inner_repeat = 2 if layer_repeat == 0 else 1
            for storage_number, nbytes, _ in memory_events:
                if (
                    nbytes != PLACE_EVENT
                    and storage_number in self.counterparts
                    and self.counterparts[storage_number][1] == inner_repeat
                ):
                    raise NotRepeatingError
        outer_events: set[tuple[int, int, int]] = set()
        for sweep_or_events in (
            sweep_or_events
            for sweeps_and_events in self.sweeps_and_events.values()
            for sweep_or_events in sweeps_and_events
        ):
            for memory_events in (
                (sweep_or_events.events_by_repeat[0], sweep_or_events.events_by_repeat[LAST_RECORDED_REPEAT])
                if isinstance(sweep_or_events, LayerSweep)
                else (sweep_or_events,)
            ):
                if any(
                    nbytes == RENAME_EVENT
                    and (renamed_storage in self.counterparts or storage_number_before in self.counterparts)
                    for renamed_storage, nbytes, storage_number_before in memory_events
                ):
                    raise NotRepeatingError
                outer_events |= {
                    (*self.counterparts[storage_number], nbytes)
                    for storage_number, nbytes, _ in memory_events
                    if nbytes in NAMING_EVENTS and storage_number in self.counterparts
                }
        if any(
            (storage_in_second_repeat, 2, nbytes) in outer_events
            for storage_in_second_repeat, repeat_number, nbytes in outer_events
            if repeat_number == 1
        ):
            raise NotRepeatingError

    def _inner_place_event(self, second_place: AllocationPlace, third_place: AllocationPlace) -> InnerRepeatEvent:
        """Returns the module and phase of an inner repeat's event, from those in the second and third repeat."""
        layer_repeat = self._repeat_of_place(second_place)
        if layer_repeat is None and second_place == third_place:
            return InnerRepeatEvent(None, second_place, second_place, PLACE_EVENT, None)
        if layer_repeat is None or self.stacks[layer_repeat[0]].place_in_later_repeat(second_place, 1) != third_place:
            raise NotRepeatingError
        return InnerRepeatEvent(0, second_place, second_place, PLACE_EVENT, None)

    # --- a run with more repeats -------------------------------------------------------------------------------------

    def count_bytes(
        self,
        repeats_by_stack: Mapping[int, int],
        extra_set_up_events: Callable[[FullRunEvents], list[Event]] | None = None,
    ) -> ReplayResult:
        """Counts a run's tensor bytes without an allocator. repeats_by_stack: layer repeats per stack, by default all.

        extra_set_up_events: allocations after the set-up that depend on the number of repeats; default none.
        """
        full_run = FullRunEvents(self, repeats_by_stack)
        memory_meter = Meter()
        set_up_events = full_run.events_of_full_run(self.recorded_events.set_up)
        added_events = extra_set_up_events(full_run) if extra_set_up_events is not None else []
        blocks: list[Any] = [None] * (full_run.storage_count + len(added_events))
        _replay_on_meter(memory_meter, [*set_up_events, *added_events], blocks)
        replay_result = ReplayResult(set_up_bytes=memory_meter.live_bytes)
        for section_events in self.recorded_events.first_step:
            _replay_on_meter(memory_meter, full_run.events_of_full_run(section_events), blocks)
        first_step_peaks, memory_meter.peaks = memory_meter.peaks, {}
        memory_meter.place = AllocationPlace()
        for section_events in self.recorded_events.reported_step:
            _replay_on_meter(memory_meter, full_run.events_of_full_run(section_events), blocks)
        memory_meter.place = AllocationPlace("after")
        replay_result.store_step_peaks(first_step_peaks, memory_meter.peaks, self.recorded_events.phases)
        replay_result.final_bytes = memory_meter.live_bytes
        return replay_result

    def allocator_steps(
        self, extra_set_up_events: Callable[[FullRunEvents], list[Event]]
    ) -> tuple[list[StepList], int, AllocatorStepEncoder]:
        """Returns the allocations and frees of the full run, its number of storages, and its requested bytes."""
        full_run = FullRunEvents(self, {})
        added_events = extra_set_up_events(full_run)
        storage_count = full_run.storage_count + len(added_events)
        step_encoder = AllocatorStepEncoder(storage_count)
        step_lists: list[StepList] = []
        for section_events in (
            self.recorded_events.set_up,
            *self.recorded_events.first_step,
            *self.recorded_events.reported_step,
        ):
            for repeat_events, storage_offsets in full_run.events_with_repeats(section_events):
                allocator_steps = step_encoder.encode_repeated_events(repeat_events, storage_offsets)
                step_lists += [(allocator_steps, storage_offset) for storage_offset in storage_offsets]
            if section_events is self.recorded_events.set_up:
                step_lists.append((step_encoder.steps(added_events), 0))
        return step_lists, storage_count, step_encoder

    def allocator_overhead(self, allocator: CachingAllocator, repeats_by_stack: Mapping[int, int]) -> AllocatorOverhead:
        """Returns the allocator's overhead of a run. repeats_by_stack: stack → number of repeats, by default all."""
        full_run = FullRunEvents(self, repeats_by_stack)
        step_encoder = AllocatorStepEncoder(full_run.storage_count)
        for section_events in (
            self.recorded_events.set_up,
            *self.recorded_events.first_step,
            *self.recorded_events.reported_step,
        ):
            for repeat_events, storage_offsets in full_run.events_with_repeats(section_events):
                allocator_steps = step_encoder.encode_repeated_events(repeat_events, storage_offsets)
                allocator.run_repeats(allocator_steps, full_run.storage_count, storage_offsets)
        return AllocatorOverhead.read_overhead(allocator, step_encoder)


class FullRunEvents:
    """The memory events of a run in which each stack has a chosen number of layer repeats.

    storage_count: the number of storages.
    """

    def __init__(self, repeat_analysis: RepeatAnalysis, repeats_by_stack: Mapping[int, int]) -> None:
        self.analysis: RepeatAnalysis = repeat_analysis
        self.inner_repeat_counts: dict[int, int] = {
            stack_index: repeats_by_stack.get(stack_index, repeat_analysis.stacks[stack_index].repeat_count) - 2
            for stack_index in repeat_analysis.repeating_stacks
        }
        self.storage_count: int = max(repeat_analysis.allocating_repeat, default=-1) + 1
        self.first_storage_numbers: dict[int, int] = {}
        self.storage_numbers: dict[Any, int] = {}
        for storage_number, stack_index_of_storage in repeat_analysis.stack_of_storage.items():
            self.first_storage_numbers[storage_number] = self.storage_numbers[storage_number] = self.storage_count
            self.storage_count += self.inner_repeat_counts[stack_index_of_storage]
        for storage_number, (counterpart_storage, layer_repeat) in repeat_analysis.counterparts.items():
            if layer_repeat == 2:
                self.storage_numbers[storage_number] = (
                    self.first_storage_numbers[counterpart_storage]
                    + self.inner_repeat_counts[repeat_analysis.stack_of_storage[counterpart_storage]]
                    - 1
                )
        self.events_by_section: dict[int, list[Event]] = {}

    def events_of_full_run(self, section_events: Sequence[Event]) -> list[Event]:
        """Returns the full run's events for a section of the recorded events."""
        if id(section_events) not in self.events_by_section:
            full_run_events = self.events_by_section[id(section_events)] = []
            for sweep_or_events in self.analysis.sweeps_and_events[id(section_events)]:
                if isinstance(sweep_or_events, LayerSweep):
                    for repeat_events in self._events_of_sweep(
                        sweep_or_events,
                        [self._event_by_repeat(memory_event) for memory_event in sweep_or_events.inner_events],
                    ):
                        full_run_events += repeat_events
                else:
                    full_run_events += self._renumbered_events(sweep_or_events)
        return self.events_by_section[id(section_events)]

    def numbers_in_full_run(self, storage_number: int) -> Sequence[int]:
        """Returns the numbers that a recorded storage has in the full run: one per inner repeat, or a single number."""
        if storage_number in self.first_storage_numbers:
            first_number = self.first_storage_numbers[storage_number]
            return range(
                first_number, first_number + self.inner_repeat_counts[self.analysis.stack_of_storage[storage_number]]
            )
        return (self.storage_numbers.get(storage_number, storage_number),)

    def events_with_repeats(self, section_events: Sequence[Event]) -> Iterator[tuple[list[Event], range]]:
        """Yields lists of allocations and frees, each with the consecutive repeats that have these events.

        The events are those of repeat 0; a storage x of it is x + r in repeat r.
        """
        for sweep_or_events in self.analysis.sweeps_and_events[id(section_events)]:
            if not isinstance(sweep_or_events, LayerSweep):
                yield _events_of_allocator(self._renumbered_events(sweep_or_events)), SINGLE_REPEAT
                continue
            inner_events = [self._event_by_repeat(memory_event) for memory_event in sweep_or_events.inner_events]
            repeat_order = self._repeat_order(sweep_or_events)
            repeat_events = self._events_of_sweep(sweep_or_events, inner_events)
            if (
                any(not storage_increment and nbytes == FREE_EVENT for _, storage_increment, nbytes, _ in inner_events)
                or len(repeat_order) <= 2
            ):
                yield from ((_events_of_allocator(memory_events), SINGLE_REPEAT) for memory_events in repeat_events)
                continue
            for memory_events in (
                next(repeat_events),
                next(repeat_events),
            ):  # the first repeat, and the next one, which may use storages of it
                yield _events_of_allocator(memory_events), SINGLE_REPEAT
            yield (
                _events_of_allocator(
                    [
                        (recorded_storage, nbytes, event_detail)
                        for recorded_storage, _, nbytes, event_detail in inner_events
                    ]
                ),
                repeat_order[1:-1],
            )
            yield (
                _events_of_allocator(self._events_of_repeat(sweep_or_events, inner_events, repeat_order[-1])),
                SINGLE_REPEAT,
            )
            yield _events_of_allocator(self._renumbered_events(sweep_or_events.events_in_order[-1])), SINGLE_REPEAT

    def _renumbered_events(self, memory_events: Sequence[Event]) -> list[Event]:
        """Returns events outside of inner repeats with the storage numbers of the full run."""
        full_run_number = self.storage_numbers.get
        return [
            (self.place_in_full_run(recorded_storage), nbytes, event_detail)
            if nbytes == PLACE_EVENT
            else (full_run_number(recorded_storage, recorded_storage), nbytes, event_detail)
            for recorded_storage, nbytes, event_detail in memory_events
        ]

    def _repeat_order(self, layer_sweep: LayerSweep) -> range:
        """Returns the indices of the inner repeats in the order in which they run: ascending in forward passes."""
        inner_repeats = range(self.inner_repeat_counts[layer_sweep.stack_index])
        return inner_repeats if layer_sweep.is_ascending else inner_repeats[::-1]

    def _events_of_sweep(
        self, layer_sweep: LayerSweep, inner_events: Sequence[InnerRepeatEventLine]
    ) -> Iterator[list[Event]]:
        """Yields the events of all repeats in order of execution. inner_events: events of the inner repeats."""
        yield self._renumbered_events(layer_sweep.events_in_order[0])
        for repeat_index in self._repeat_order(layer_sweep):
            yield self._events_of_repeat(layer_sweep, inner_events, repeat_index)
        yield self._renumbered_events(layer_sweep.events_in_order[-1])

    def _events_of_repeat(
        self, layer_sweep: LayerSweep, inner_events: Sequence[InnerRepeatEventLine], repeat_index: int
    ) -> list[Event]:
        """Returns the events of one inner repeat. inner_events: the events of the inner repeats."""
        place_in_later_repeat = self.analysis.stacks[layer_sweep.stack_index].place_in_later_repeat
        memory_events = [
            (
                place_in_later_repeat(storage_number, repeat_index)
                if storage_increment and nbytes == PLACE_EVENT
                else storage_number + storage_increment * repeat_index
                if storage_increment
                else storage_number,
                nbytes,
                event_detail,
            )
            for storage_number, storage_increment, nbytes, event_detail in inner_events
        ]
        for end_repeat, owner_offset in ((0, -1), (self.inner_repeat_counts[layer_sweep.stack_index] - 1, 1)):
            if repeat_index == end_repeat:  # the storages of a neighbour that is the first or the last repeat
                for event_index, memory_event in enumerate(layer_sweep.inner_events):
                    if memory_event.owner_offset == owner_offset:
                        memory_events[event_index] = (
                            memory_event.storage_of_outer_repeat,
                            memory_event.nbytes,
                            memory_event.event_detail,
                        )
        return memory_events

    def _event_by_repeat(self, memory_event: InnerRepeatEvent) -> InnerRepeatEventLine:
        """Returns a recorded event as a function of the inner repeat's index."""
        if memory_event.owner_offset is None:
            return memory_event.storage_number, 0, memory_event.nbytes, memory_event.event_detail
        if memory_event.nbytes == PLACE_EVENT:
            return memory_event.storage_number, 1, memory_event.nbytes, memory_event.event_detail
        return (
            self.first_storage_numbers[memory_event.storage_number] + memory_event.owner_offset,
            1,
            memory_event.nbytes,
            memory_event.event_detail,
        )

    def place_in_full_run(self, allocation_place: AllocationPlace) -> AllocationPlace:
        """Returns a recorded module and phase with the layer index that the module has in the full run."""
        for stack_index, inner_repeats in self.inner_repeat_counts.items():
            layer_stack = self.analysis.stacks[stack_index]
            first_layer_of_last_repeat = layer_stack.layers_before + LAST_RECORDED_REPEAT * layer_stack.layer_period
            if layer_stack.contains(
                allocation_place
            ) and first_layer_of_last_repeat <= allocation_place.layer_index < layer_stack.end_index(RECORDED_REPEATS):
                return layer_stack.place_in_later_repeat(allocation_place, inner_repeats + 2 - RECORDED_REPEATS)
        return allocation_place


def _events_of_allocator(memory_events: Sequence[Event]) -> list[Event]:
    """Returns the events that allocate or free memory, without the events that only count bytes."""
    return [memory_event for memory_event in memory_events if memory_event[1] not in EVENTS_IGNORED_BY_ALLOCATOR]


def _replay_on_meter(memory_meter: Meter, memory_events: Sequence[Event], blocks: list[Any]) -> None:
    """Counts the bytes of events on a meter. blocks: storage → block on the meter."""
    allocate_block, free_block = memory_meter.allocate, memory_meter.free
    for storage_number, nbytes, event_detail in memory_events:
        if nbytes >= 0:
            memory_meter.kind = event_detail
            blocks[storage_number] = allocate_block(nbytes)
        elif nbytes == FREE_EVENT:
            free_block(blocks[storage_number])
        elif nbytes == PLACE_EVENT:
            memory_meter.place = storage_number
        elif nbytes == RECLASSIFY_EVENT:
            memory_meter.reclassify(blocks[storage_number], event_detail)
        elif nbytes == RENAME_EVENT:
            blocks[storage_number] = blocks[event_detail]
        elif nbytes == STREAM_EVENT:
            memory_meter.stream = event_detail
        elif blocks[storage_number] is None:  # the mark of a workspace that does not exist yet
            memory_meter.kind = "overhead"
            blocks[storage_number] = allocate_block(event_detail)

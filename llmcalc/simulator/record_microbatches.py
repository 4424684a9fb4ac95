"""Records passes of a few micro-batches, with one trace for all passes that have the same memory events.

A pass allocates and frees its own storages. It may also free storages of other passes: those that its chunk referred to
in the pass of the micro-batch before, or shared ones that every pass replaces. So its events depend on which neighbours
have run: on whether it is the first pass, whether the micro-batch before is still in flight (forward pass), and whether
the next one has already begun (backward pass).

Passes with the same neighbours are a group. A recorded run has each group, most of them several times, and the passes
of a group must do the same; if they differ, `NotRepeatingError` is raised. Where a backward pass runs layers again, it
also leaves tensors to the chunk's next pass, so that the groups of such runs have the kind of the chunk's previous pass
as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..frozen import frozen
from .caching_allocator import MIN_BLOCK_SIZE, NO_SIZE, UNIT_BITS, encode_stream_switch
from .event_log import FREE_EVENT, PLACE_EVENT, RECLASSIFY_EVENT, STREAM_EVENT, WORKSPACE_EVENT, Event, EventRecorder
from .meter import AllocationPlace, NoMeter
from .pass_trace import FIRST_PASS, OutputTensor, PassGroup, PassId, PassTrace
from .repeat_layers import NotRepeatingError
from .tensor import Storage, Tensor


class PassCounter:
    """Counts passes, and assigns each to a group of passes with the same memory events.

    distinguishes_previous_pass: whether the group of a pass has the kind of the chunk's previous pass; default false.
    forwards, backwards: chunk → the number of its passes.
    allocates_gradients: chunk → whether none of its backward passes of this step has run; always false where
        gradients stay allocated between steps.
    previous_pass_id: the pass before the counted one in its chunk; None for the first one, and where groups do not have
        it.
    """

    def __init__(self, chunk_count: int, distinguishes_previous_pass: bool = False) -> None:
        self.forwards: list[int] = [0] * chunk_count
        self.backwards: list[int] = [0] * chunk_count
        self.allocates_gradients: list[bool] = [False] * chunk_count
        self.distinguishes_previous_pass = distinguishes_previous_pass
        self.previous_pass_id: PassId | None = None
        self._last_pass_ids: list[PassId | None] = [None] * chunk_count

    def begin_step(self) -> None:
        """Begins a training step, in which each chunk's first backward pass allocates gradients."""
        self.allocates_gradients = [True] * len(self.allocates_gradients)

    def next_forward(self, model_chunk: int) -> tuple[PassGroup, PassId]:
        """Counts a forward pass of a model chunk, and returns its group and id."""
        pass_number = self.forwards[model_chunk]
        self.forwards[model_chunk] += 1
        return self._group_with_previous_kind(
            self._pass_group(model_chunk, "F", pass_number), (model_chunk, "F", pass_number)
        )

    def next_loss(self, model_chunk: int) -> tuple[PassGroup, PassId]:
        """Returns group and id of the loss computation that follows a model chunk's last forward pass."""
        pass_number = self.forwards[model_chunk] - 1
        return self._pass_group(model_chunk, "L", pass_number), (model_chunk, "L", pass_number)

    def _pass_group(self, model_chunk: int, pass_kind: str, pass_number: int) -> PassGroup:
        """Returns the group of a pass; all passes of a group have the same memory events."""
        previous_state = "flying" if self.backwards[model_chunk] < pass_number else "done"
        return model_chunk, pass_kind, _distinct_pass_number(pass_number), previous_state if pass_number else ""

    def next_backward(self, model_chunk: int) -> tuple[PassGroup, PassId]:
        """Counts a backward pass of a model chunk, and returns its group and id."""
        pass_number = self.backwards[model_chunk]
        self.backwards[model_chunk] += 1
        next_state = "begun" if self.forwards[model_chunk] > pass_number + 1 else "alone"
        is_first_backward, self.allocates_gradients[model_chunk] = self.allocates_gradients[model_chunk], False
        pass_state = f"{next_state}, fresh" if is_first_backward else next_state
        return self._group_with_previous_kind(
            (model_chunk, "B", _distinct_pass_number(pass_number), pass_state), (model_chunk, "B", pass_number)
        )

    def _group_with_previous_kind(self, pass_group: PassGroup, pass_id: PassId) -> tuple[PassGroup, PassId]:
        """Returns the group extended by the kind of the chunk's previous pass, if groups distinguish these kinds."""
        if not self.distinguishes_previous_pass:
            return pass_group, pass_id
        model_chunk, pass_kind, pass_number, pass_state = pass_group
        self.previous_pass_id, self._last_pass_ids[model_chunk] = self._last_pass_ids[model_chunk], pass_id
        if self.previous_pass_id is not None:
            pass_state += f" {self.previous_pass_id[1]}{'' if self.previous_pass_id[2] else FIRST_PASS}"
        return (model_chunk, pass_kind, pass_number, pass_state), pass_id


def _distinct_pass_number(pass_number: int) -> int:
    """Returns the pass's number, but at most 2, because passes from number 2 on have the same events.

    The first pass allocates persistent tensors, so that passes 0, 1 and later ones are recorded separately.
    """
    return min(pass_number, 2)


PassOutput: TypeAlias = tuple[int, Tensor, int]
"""A tensor that may outlive a pass: (number, a tensor of the same shape, number of its storage)."""


class RecordedPass(NamedTuple):
    """One forward or backward pass of a recorded run.

    first_event_index, end_event_index: indices of its events.
    start_place: the place in which it starts.
    input_storage: number of the storage of its input; None without an input.
    outputs: the tensors that may outlive the pass.
    previous_pass_id: the chunk's previous pass; None (default) for none, and where groups do not have it.
    """

    pass_group: PassGroup
    pass_id: PassId
    first_event_index: int
    end_event_index: int
    start_place: AllocationPlace
    input_storage: int | None
    outputs: list[PassOutput]
    previous_pass_id: PassId | None = None


class PassRecorder(PassCounter):
    """Runs passes and records their memory events. distinguishes_previous_pass: as in `PassCounter`."""

    def __init__(
        self, memory_meter: EventRecorder, chunk_count: int, distinguishes_previous_pass: bool = False
    ) -> None:
        super().__init__(chunk_count, distinguishes_previous_pass)
        self.meter = memory_meter
        self.passes: list[RecordedPass] = []

    def forward(self, model_chunk: int, input_tensor: Tensor | None, compute: Callable[[], Tensor]) -> Tensor:
        """Runs and records a forward pass. compute: the function that computes the pass's output."""
        return self._record_pass(*self.next_forward(model_chunk), input_tensor, compute)

    def loss(self, model_chunk: int, output: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Runs and records the loss computation that follows the chunk's last forward pass."""
        return self._record_pass(*self.next_loss(model_chunk), output, compute)

    def _record_pass(
        self, pass_group: PassGroup, pass_id: PassId, input_tensor: Tensor | None, compute_output: Callable[[], Tensor]
    ) -> Tensor:
        first_event_index, start_place, self.meter.is_place_pending = len(self.meter.events), self.meter.place, True
        pass_output = compute_output()
        input_storage = None if input_tensor is None else input_tensor.storage.block.handle
        outputs = self._outputs_that_outlive_pass(pass_group[0], pass_output)
        self._store_pass(pass_group, pass_id, first_event_index, start_place, input_storage, outputs)
        return pass_output

    def _store_pass(
        self,
        pass_group: PassGroup,
        pass_id: PassId,
        first_event_index: int,
        start_place: AllocationPlace,
        input_storage: int | None,
        outputs: list[PassOutput],
    ) -> None:
        """Appends a pass whose events end now to the recorded passes. Arguments: as in `RecordedPass`."""
        event_range, previous_pass_id = (first_event_index, len(self.meter.events)), self.previous_pass_id
        self.passes.append(
            RecordedPass(pass_group, pass_id, *event_range, start_place, input_storage, outputs, previous_pass_id)
        )

    def _outputs_that_outlive_pass(self, model_chunk: int, pass_output: Tensor) -> list[PassOutput]:
        """Returns the tensors that may outlive a model chunk's forward pass, as in `RecordedPass.outputs`."""
        return [output_without_storage(0, pass_output)]

    def backward(self, model_chunk: int, gradient_leaves: Sequence[Any], compute: Callable[[], None]) -> None:
        """Runs and records a backward pass. gradient_leaves: tensors that may receive gradients."""
        pass_group, pass_id = self.next_backward(model_chunk)
        first_event_index, start_place, self.meter.is_place_pending = len(self.meter.events), self.meter.place, True
        compute()
        gradients = [
            output_without_storage(leaf_index, gradient_leaf.grad)
            for leaf_index, gradient_leaf in enumerate(gradient_leaves)
            if gradient_leaf.grad is not None
        ]
        self._store_pass(pass_group, pass_id, first_event_index, start_place, None, gradients)

    def traces(self) -> dict[PassGroup, PassTrace]:
        """Returns one trace for each group of passes. Raises `NotRepeatingError` if passes of a group differ."""
        return RecordedPasses(self.meter.events, self.passes).traces()

    def recorded_passes(self) -> RecordedPasses:
        """Ends the recording and returns the recorded passes. Memory events after this call belong to no pass."""
        return RecordedPasses(self.meter.take_events(), self.passes)


@frozen
class RecordedPasses:
    """The passes of a recorded run. events: the run's memory events."""

    events: Sequence[Event]
    passes: Sequence[RecordedPass]

    def traces(self, allocated_before: Collection[int] = ()) -> dict[PassGroup, PassTrace]:
        """Returns one trace for each group of passes. Raises `NotRepeatingError` if passes of a group differ.

        allocated_before: storages that exist before the recorded passes, which then neither allocate nor free them.
        """
        memory_events, recorded_passes = self.events, self.passes
        if allocated_before:
            event_indices = [
                event_index
                for event_index, (storage_number, nbytes, _) in enumerate(memory_events)
                if nbytes == PLACE_EVENT or storage_number not in allocated_before
            ]
            memory_events = [memory_events[event_index] for event_index in event_indices]
            recorded_passes = [
                recorded_pass._replace(
                    first_event_index=bisect_left(event_indices, recorded_pass.first_event_index),
                    end_event_index=bisect_left(event_indices, recorded_pass.end_event_index),
                )
                for recorded_pass in recorded_passes
            ]
        return add_unrecorded_groups(TraceReader(memory_events, recorded_passes).traces)


def add_unrecorded_groups(pass_traces: Mapping[PassGroup, PassTrace]) -> dict[PassGroup, PassTrace]:
    """Adds traces for groups of passes that were not recorded but follow from recorded groups.

    A recorded run has one second pass of a kind, in one of its states, and one pass after each first pass. If a second
    pass does what later ones do, it does so in their other states too. A first pass allocates more than later ones, so
    that its storages have other numbers; a pass that frees them tells which these are.
    """
    all_traces = dict(pass_traces)
    for model_chunk in {model_chunk for model_chunk, *_ in pass_traces}:
        second_traces, later_traces = (
            {
                (pass_group[1], pass_group[3]): pass_traces[pass_group]
                for pass_group in pass_traces
                if (pass_group[0], pass_group[2]) == (model_chunk, pass_number)
            }
            for pass_number in (1, 2)
        )
        trace_pairs_of_groups = {
            (pass_kind, pass_state): (pass_trace, later_traces[pass_kind, pass_state.removesuffix(FIRST_PASS)])
            for (pass_kind, pass_state), pass_trace in second_traces.items()
            if (pass_kind, pass_state.removesuffix(FIRST_PASS)) in later_traces
        }
        if trace_pairs_of_groups.keys() != second_traces.keys() or not all(
            pass_trace.has_equal_events(later_trace) for pass_trace, later_trace in trace_pairs_of_groups.values()
        ):
            continue
        storage_numbers: dict[str, dict[int, int]] = {}
        for (_, pass_state), (pass_trace, later_trace) in trace_pairs_of_groups.items():
            if pass_state.endswith(FIRST_PASS):
                storage_releases = pass_trace.releases_of_previous_pass(model_chunk)
                later_releases = later_trace.releases_of_previous_pass(model_chunk)
                release_pairs = zip(later_releases, storage_releases, strict=True)
                storage_numbers.setdefault(pass_state[-2], {}).update(
                    (old_storage, new_storage) for (_, old_storage), (_, new_storage) in release_pairs
                )
        for (pass_kind, pass_state), pass_trace in later_traces.items():
            all_traces.setdefault((model_chunk, pass_kind, 1, pass_state), pass_trace)
            second_trace = pass_trace.with_previous_storage_numbers(
                model_chunk, storage_numbers.get(pass_state[-1], {})
            )
            if second_trace is not None:
                for pass_number in (1, 2):
                    all_traces.setdefault((model_chunk, pass_kind, pass_number, pass_state + FIRST_PASS), second_trace)
    return all_traces


def output_without_storage(output_number: int, tensor: Tensor) -> PassOutput:
    """Returns the output's number, a copy of its tensor without memory, and the number of its storage."""
    shape_template = Tensor(tensor.shape, tensor.dtype, _NO_STORAGE, tensor.strides)
    return output_number, shape_template, tensor.storage.block.handle


_NO_STORAGE = Storage(NoMeter(), 0)


NO_PEAK = -(NO_SIZE << UNIT_BITS)
"""Peak of a place before any peak is recorded: fewer bytes than any run has."""


class TraceReader:
    """Reads one trace of memory events per group of passes from the events of a recorded run.

    traces: group → the trace of its passes.
    storage_bytes, storage_kinds: storage → its bytes, and the kind that it is counted under.
    allocating_passes: storage → the pass that allocates it, and its number there.
    output_storages: the storages that may outlive their pass.
    Raises `NotRepeatingError` if passes of a group differ.
    """

    def __init__(self, memory_events: Sequence[Event], recorded_passes: Sequence[RecordedPass]) -> None:
        self.events = memory_events
        self.storage_bytes: dict[int, int] = {}
        self.storage_kinds: dict[int, str] = {}
        self.allocating_passes: dict[int, tuple[PassId, int]] = {}
        self.output_storages: set[int] = {
            storage for recorded_pass in recorded_passes for _, _, storage in recorded_pass.outputs
        }
        self.traces: dict[PassGroup, PassTrace] = {}
        previous_pass_end = 0
        for recorded_pass in recorded_passes:
            self._read_events_between_passes(memory_events[previous_pass_end : recorded_pass.first_event_index])
            previous_pass_end = recorded_pass.end_event_index
            pass_trace = self._trace_of_pass(recorded_pass)
            if recorded_pass.pass_id[2] or recorded_pass.previous_pass_id is not None:
                pass_trace = pass_trace.with_relative_numbers(recorded_pass.pass_id, recorded_pass.previous_pass_id)
            if self.traces.setdefault(recorded_pass.pass_group, pass_trace) != pass_trace:
                raise NotRepeatingError
        self._read_events_between_passes(memory_events[previous_pass_end:])

    def _read_events_between_passes(self, memory_events: Sequence[Event]) -> None:
        """Reads the events between two passes, in which only outputs of passes may be freed."""
        for storage_number, nbytes, event_detail in memory_events:
            if nbytes >= 0:
                self.storage_bytes[storage_number], self.storage_kinds[storage_number] = nbytes, event_detail
            elif nbytes == WORKSPACE_EVENT:
                self.storage_bytes[storage_number], self.storage_kinds[storage_number] = event_detail, "overhead"
            elif nbytes == RECLASSIFY_EVENT:
                self.storage_kinds[storage_number] = event_detail
            elif (
                nbytes == FREE_EVENT
                and storage_number in self.allocating_passes
                and storage_number not in self.output_storages
            ):
                raise NotRepeatingError

    def _trace_of_pass(self, recorded_pass: RecordedPass) -> PassTrace:  # noqa: PLR0915
        """Returns the trace of one pass. The loop calls no method, because a run may have a million events."""
        current_place = self._start_place(recorded_pass)
        bytes_of_storages = self.storage_bytes
        memory_kinds = self.storage_kinds
        allocating_passes = self.allocating_passes
        pass_id = recorded_pass.pass_id
        pass_trace, storage_numbers = PassTrace(start_place=current_place), dict[int, int]()
        allocator_steps, storage_releases = pass_trace.allocator_steps, pass_trace.releases_of_other_passes
        bytes_by_kind: dict[str, int] = {}
        peaks: dict[AllocationPlace, tuple[int, dict[str, int]]] = {}  # of places, stored once they are final
        live_bytes = pass_peak = 0
        place_peak_bytes, is_rising = NO_PEAK, False  # is_rising: whether the bytes now are the peak of the place
        kinds_at_first_release: dict[str, int] | None = None
        for storage_number, nbytes, event_detail in self.events[
            recorded_pass.first_event_index : recorded_pass.end_event_index
        ]:
            if nbytes >= 0 or nbytes == WORKSPACE_EVENT:
                storage_bytes, memory_kind = (nbytes, event_detail) if nbytes >= 0 else (event_detail, "overhead")
                number_in_pass = len(storage_numbers)
                allocating_passes[storage_number] = pass_id, number_in_pass
                storage_numbers[storage_number] = number_in_pass
                bytes_of_storages[storage_number], memory_kinds[storage_number] = storage_bytes, memory_kind
                bytes_by_kind[memory_kind] = bytes_by_kind.get(memory_kind, 0) + storage_bytes
                if storage_bytes:
                    allocator_steps.append((number_in_pass, (storage_bytes + MIN_BLOCK_SIZE - 1) >> UNIT_BITS))
                    live_bytes += storage_bytes
                    if live_bytes > place_peak_bytes:
                        place_peak_bytes, is_rising = live_bytes, True
                        pass_peak = max(pass_peak, live_bytes)
            elif nbytes == FREE_EVENT:
                released_number = storage_numbers.get(storage_number)
                if released_number is None:
                    self._refuse_storage_of_other_pass(storage_number, storage_numbers)
                storage_bytes, memory_kind = bytes_of_storages[storage_number], memory_kinds[storage_number]
                if storage_bytes:
                    if released_number is None:
                        other_pass_id, number_in_other_pass = allocating_passes[storage_number]
                        storage_releases.setdefault(other_pass_id, []).append(
                            (len(allocator_steps), number_in_other_pass)
                        )
                    allocator_steps.append((released_number or 0, 0))  # `encode_release`
                if is_rising:
                    peaks[current_place], is_rising = (place_peak_bytes, bytes_by_kind.copy()), False
                if kinds_at_first_release is None:
                    kinds_at_first_release = bytes_by_kind.copy()
                live_bytes -= storage_bytes
                bytes_by_kind[memory_kind] = bytes_by_kind.get(memory_kind, 0) - storage_bytes
            elif nbytes == PLACE_EVENT:
                if storage_number != current_place:
                    if is_rising:
                        peaks[current_place] = place_peak_bytes, bytes_by_kind.copy()
                    if kinds_at_first_release is None:
                        kinds_at_first_release = bytes_by_kind.copy()
                    current_place = storage_number
                    place_peak_bytes = peaks[current_place][0] if current_place in peaks else NO_PEAK
                    is_rising = live_bytes > place_peak_bytes
                    place_peak_bytes = max(place_peak_bytes, live_bytes)
            elif nbytes == RECLASSIFY_EVENT:
                if storage_number == recorded_pass.input_storage:
                    pass_trace.kind_of_input_after_pass = event_detail
                else:
                    self._refuse_storage_of_other_pass(storage_number, storage_numbers)
                storage_bytes, memory_kind = bytes_of_storages[storage_number], memory_kinds[storage_number]
                bytes_by_kind[memory_kind] = bytes_by_kind.get(memory_kind, 0) - storage_bytes
                bytes_by_kind[event_detail] = bytes_by_kind.get(event_detail, 0) + storage_bytes
                memory_kinds[storage_number] = event_detail
            elif nbytes == STREAM_EVENT:
                allocator_steps.append(encode_stream_switch(event_detail))
            else:
                raise NotRepeatingError
        if is_rising:
            peaks[current_place] = place_peak_bytes, bytes_by_kind.copy()
        pass_trace.ends_at_peak, pass_trace.end_place = is_rising, current_place
        pass_trace.storage_count = len(storage_numbers)
        pass_trace.final_bytes = live_bytes
        pass_trace.bytes_by_kind = bytes_by_kind
        pass_trace.peak_bytes = pass_peak
        if kinds_at_first_release is None:
            kinds_at_first_release = bytes_by_kind.copy()
        pass_trace.kinds_at_first_release = kinds_at_first_release
        pass_trace.peaks_by_place = [
            (allocation_place, peak_bytes, peak_kinds) for allocation_place, (peak_bytes, peak_kinds) in peaks.items()
        ]
        pass_trace.outputs = tuple(
            (output_index, self._describe_output(output_template, storage_numbers[output_storage], output_storage))
            for output_index, output_template, output_storage in recorded_pass.outputs
            if output_storage in storage_numbers
        )
        if pass_id[1] != "B" and not pass_trace.outputs:
            raise NotRepeatingError
        return pass_trace

    def _refuse_storage_of_other_pass(self, storage_number: int, storage_numbers: Mapping[int, int]) -> None:
        """Raises `NotRepeatingError` for a storage that belongs to no pass, or is another pass's output."""
        if storage_number not in storage_numbers and (
            storage_number not in self.allocating_passes or storage_number in self.output_storages
        ):
            raise NotRepeatingError

    def _start_place(self, recorded_pass: RecordedPass) -> AllocationPlace:
        """Returns the module and phase in which a pass starts, read from its first event that has a place."""
        if recorded_pass.first_event_index < recorded_pass.end_event_index:
            start_place, nbytes, _ = self.events[recorded_pass.first_event_index]
            if nbytes == PLACE_EVENT:
                return start_place  # type: ignore[no-any-return]
        return recorded_pass.start_place

    def _describe_output(
        self, output_template: Tensor, storage_number_in_pass: int, storage_number_in_run: int
    ) -> OutputTensor:
        """Creates the description of a pass's output tensor, from which a replay creates the tensor."""
        return OutputTensor(
            storage_number_in_pass,
            self.storage_bytes[storage_number_in_run],
            self.storage_kinds[storage_number_in_run],
            output_template.shape,
            output_template.dtype,
            output_template.strides,
        )

"""Replays the passes of all micro-batches from a few recorded passes.

The schedule runs with its own variables, and its passes are replayed from the traces of `record_microbatches`: their
events go to an allocator, and the peak of each place follows from the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from .caching_allocator import AllocatorStep, StepList, encode_allocation, encode_release, encode_stream_switch
from .meter import AllocationPlace, Block, MemoryPeak, Meter
from .pass_trace import PREVIOUS_PASS, PassGroup, PassId, PassTrace
from .record_microbatches import PassCounter
from .repeat_layers import NotRepeatingError
from .tensor import Storage, Tensor

PeaksOfPass: TypeAlias = Sequence[tuple[AllocationPlace, int, dict[str, int]]]
"""Peaks of a pass: (module and phase, peak, bytes of each kind at the peak), relative to the start of the pass."""

ShiftedPlaces: TypeAlias = tuple[AllocationPlace, AllocationPlace, PeaksOfPass]
"""Start place, end place and peaks of a pass trace, moved from the recorded layers to later layers."""


class EventMeter(Meter):
    """A meter that also lists the allocations and frees, for a later replay on the simulated allocator.

    storage_count: the number of storages so far.
    step_lists: the allocator's steps, in order.
    """

    def __init__(self) -> None:
        self.storage_count: int = 0
        self.step_lists: list[StepList] = []
        self._steps: list[AllocatorStep] = []
        super().__init__()
        self._highest_peak: dict[tuple[int, int], int] = {}
        self._place_of_highest_peak = self.peaks
        self._shifted_places: dict[tuple[int, int], ShiftedPlaces] = {}

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, cuda_stream: int) -> None:
        self._stream = cuda_stream
        self._steps.append(encode_stream_switch(cuda_stream))

    def allocate(self, nbytes: int) -> Block:
        block = super().allocate(nbytes)
        block.handle = self.storage_count
        if nbytes:
            self._steps.append(encode_allocation(self.storage_count, nbytes))
        self.storage_count += 1
        return block

    def free(self, block: Block) -> None:
        super().free(block)
        if block.bytes:
            self._steps.append(encode_release(block.handle))

    def end_event_list(self) -> None:
        """Ends the current list of allocations and frees, and starts the next."""
        if self._steps:
            self.step_lists.append((self._steps, 0))
            self._steps = []

    def replay_pass(
        self,
        pass_trace: PassTrace,
        pass_id: PassId,
        added_layers: int,
        first_storage_numbers: Mapping[PassId, int],
        previous_pass_id: PassId | None = None,
    ) -> int:
        """Replays a recorded pass, and returns the number of the pass's first storage.

        added_layers: layers before the pass's chunk that the recorded run did not have.
        first_storage_numbers: pass → the number of its first storage, for the passes so far.
        previous_pass_id: the chunk's previous pass; None (default) where the trace does not refer to it.
        """
        start_place, end_place, peaks = self._places_in_later_layer(pass_trace, added_layers)
        self.place = start_place
        first_storage_number = self.storage_count
        self.storage_count += pass_trace.storage_count
        self.end_event_list()
        allocator_steps = pass_trace.allocator_steps
        if pass_trace.releases_of_other_passes:
            allocator_steps = list(allocator_steps)
            for (chunk, pass_kind, pass_offset), storage_releases in pass_trace.releases_of_other_passes.items():
                other_pass_id = (
                    previous_pass_id if pass_kind == PREVIOUS_PASS else (chunk, pass_kind, pass_id[2] + pass_offset)
                )
                other_first_storage: int | None = first_storage_number
                if other_pass_id != pass_id:
                    other_first_storage = first_storage_numbers.get(other_pass_id or pass_id)
                if other_first_storage is None:
                    raise NotRepeatingError
                other_first_storage -= first_storage_number
                for step_index, storage_number in storage_releases:
                    allocator_steps[step_index] = other_first_storage + storage_number, 0  # `encode_release`
        self.step_lists.append((allocator_steps, first_storage_number))
        self._count_pass(pass_trace, added_layers, end_place, peaks)
        return first_storage_number

    def _places_in_later_layer(self, pass_trace: PassTrace, added_layers: int) -> ShiftedPlaces:
        """Returns a trace's modules and phases with layer indices increased by `added_layers`; results are cached."""
        places_key = id(pass_trace), added_layers
        shifted_places = self._shifted_places.get(places_key)
        if shifted_places is None:
            peaks = [
                (place_in_later_layer(allocation_place, added_layers), peak_bytes, bytes_by_kind)
                for allocation_place, peak_bytes, bytes_by_kind in pass_trace.peaks_by_place
            ]
            start_place, end_place = (
                place_in_later_layer(recorded_place, added_layers)
                for recorded_place in (pass_trace.start_place, pass_trace.end_place)
            )
            shifted_places = self._shifted_places[places_key] = start_place, end_place, peaks
        return shifted_places

    def _count_pass(
        self, pass_trace: PassTrace, added_layers: int, end_place: AllocationPlace, peaks: PeaksOfPass
    ) -> None:
        """Counts the bytes of a replayed pass, and the peak of each module.

        end_place, peaks: those of the trace, with all layer indices shifted.
        """
        bytes_before, bytes_by_kind_before = self.live_bytes, self.by_kind
        if self._has_unstored_peak:
            self._current_peak.by_kind = _add_byte_counts(bytes_by_kind_before, pass_trace.kinds_at_first_release)
        if self._place_of_highest_peak is not self.peaks:
            self._place_of_highest_peak, self._highest_peak = self.peaks, {}
        trace_and_layers = id(pass_trace), added_layers
        is_rising = False
        if bytes_before > self._highest_peak.get(trace_and_layers, -1):  # else each place had as much before
            self._highest_peak[trace_and_layers] = bytes_before
            for allocation_place, peak_bytes, bytes_by_kind in peaks:
                peak = self.peaks.get(allocation_place)
                if peak is None:
                    peak = self.peaks[allocation_place] = MemoryPeak()
                if bytes_before + peak_bytes > peak.bytes:
                    self.peaks[allocation_place] = SummedPeak(
                        bytes_before + peak_bytes, bytes_by_kind_before, bytes_by_kind
                    )
                    is_rising = is_rising or (allocation_place == end_place and pass_trace.ends_at_peak)
        self.peak_bytes: int = max(self.peak_bytes, bytes_before + pass_trace.peak_bytes)
        self.live_bytes += pass_trace.final_bytes
        self.by_kind = _add_byte_counts(bytes_by_kind_before, pass_trace.bytes_by_kind)
        self._place, self._current_peak, self._has_unstored_peak = end_place, self.peaks[end_place], is_rising


class SummedPeak(MemoryPeak):
    """A peak whose bytes by kind are summed on demand: the bytes before a pass plus the bytes that the pass adds."""

    __slots__ = ("_by_kind", "added_bytes", "bytes_before")

    def __init__(self, bytes: int, bytes_before: Mapping[str, int], added_bytes: Mapping[str, int]) -> None:
        self.bytes: int = bytes
        self.bytes_before: Mapping[str, int] = bytes_before
        self.added_bytes: Mapping[str, int] = added_bytes
        self._by_kind: dict[str, int] | None = None

    @property
    def by_kind(self) -> dict[str, int]:
        if self._by_kind is None:
            self._by_kind = _add_byte_counts(self.bytes_before, self.added_bytes)
        return self._by_kind

    @by_kind.setter
    def by_kind(self, bytes_by_kind: dict[str, int]) -> None:
        self._by_kind = bytes_by_kind


def place_in_later_layer(allocation_place: AllocationPlace, added_layers: int) -> AllocationPlace:
    """Returns the same module and phase in a layer that is `added_layers` later."""
    if allocation_place.layer_index < 0 or not added_layers:
        return allocation_place
    phase, layer_index, path = allocation_place
    return AllocationPlace(phase, layer_index + added_layers, path)


def _add_byte_counts(first_counts: Mapping[str, int], second_counts: Mapping[str, int]) -> dict[str, int]:
    """Adds two tables of bytes by kind of memory."""
    return {kind: count + second_counts.get(kind, 0) for kind, count in first_counts.items()}


class PassReplayer(PassCounter):
    """Replays recorded passes, instead of simulating every pass.

    pass_traces: group → the trace of its passes.
    added_layers: chunk → layers before it that the recorded run did not have.
    distinguishes_previous_pass: as of `PassCounter`, as in the recorded run.
    """

    def __init__(
        self,
        memory_meter: EventMeter,
        pass_traces: Mapping[PassGroup, PassTrace],
        added_layers: Sequence[int],
        distinguishes_previous_pass: bool = False,
    ) -> None:
        super().__init__(len(added_layers), distinguishes_previous_pass)
        self.meter: EventMeter = memory_meter
        self.traces: Mapping[PassGroup, PassTrace] = pass_traces
        self.added_layers: Sequence[int] = added_layers
        self.first_storage_numbers: dict[PassId, int] = {}

    def forward(self, model_chunk: int, input_tensor: Tensor | None, compute: Callable[[], Tensor]) -> Tensor:
        """Replays the recorded forward pass of a chunk."""
        return self._replay_forward(model_chunk, *self.next_forward(model_chunk), input_tensor)

    def loss(self, model_chunk: int, output: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Replays the recorded loss that follows the last forward pass."""
        return self._replay_forward(model_chunk, *self.next_loss(model_chunk), output)

    def _replay_forward(
        self, model_chunk: int, pass_group: PassGroup, pass_id: PassId, input_tensor: Tensor | None
    ) -> Tensor:
        """Replays a forward pass and returns the output."""
        pass_trace, first_storage_number = self._replay_pass(model_chunk, pass_group, pass_id)
        if input_tensor is not None and pass_trace.kind_of_input_after_pass is not None:
            input_tensor.storage.block.kind = pass_trace.kind_of_input_after_pass
        ((_, pass_output),) = pass_trace.outputs
        return pass_output.create_tensor(pass_output.create_storage(self.meter, first_storage_number))

    def backward(self, model_chunk: int, gradient_leaves: Sequence[Tensor], compute: Callable[[], None]) -> None:
        """Replays the recorded backward pass of a chunk."""
        pass_trace, first_storage_number = self._replay_pass(model_chunk, *self.next_backward(model_chunk))
        storages: dict[int, Storage] = {}  # gradients may be parts of one tensor
        for output_index, gradient in pass_trace.outputs:
            if gradient.storage_number not in storages:
                storages[gradient.storage_number] = gradient.create_storage(self.meter, first_storage_number)
            gradient_leaves[output_index].grad = gradient.create_tensor(storages[gradient.storage_number])

    def _replay_pass(self, model_chunk: int, pass_group: PassGroup, pass_id: PassId) -> tuple[PassTrace, int]:
        """Replays a pass, and returns the trace and the number of the pass's first storage."""
        pass_trace = self.traces.get(pass_group)
        if pass_trace is None:
            raise NotRepeatingError
        first_storage_number = self.meter.replay_pass(
            pass_trace, pass_id, self.added_layers[model_chunk], self.first_storage_numbers, self.previous_pass_id
        )
        self.first_storage_numbers[pass_id] = first_storage_number
        return pass_trace, first_storage_number

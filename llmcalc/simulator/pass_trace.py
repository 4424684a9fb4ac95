"""The memory events (allocations and frees) of one forward or backward pass, relative to the pass's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from .caching_allocator import AllocatorStep
from .event_log import NOWHERE
from .meter import AllocationPlace, Block, Meter
from .repeat_layers import NotRepeatingError
from .strides import Shape, Strides
from .tensor import Dtype, Storage, Tensor

PassId: TypeAlias = tuple[int, str, int]
"""The id of a pass: (chunk, kind, micro-batch), with micro-batches numbered through all steps.

kind: `F` for forward, `L` for a loss, `B` for backward.
"""

PREVIOUS_PASS = "previous"
"""Stands, in a trace, for the kind of the chunk's previous pass, whatever that kind is."""

FIRST_PASS = "0"
"""Suffix of the neighbour state of a pass whose previous pass is the chunk's first pass of its kind."""

PassGroup: TypeAlias = tuple[int, str, int, str]
"""The key of a group of passes with equal events: (chunk, kind, number up to 2, which neighbouring passes have run)."""


class OutputTensor(NamedTuple):
    """A tensor that outlives the pass that allocates it: an output or a gradient.

    storage_number: number of its storage among those of the pass.
    bytes: bytes of the storage.
    memory_kind: the kind that the storage is counted under.
    """

    storage_number: int
    bytes: int
    memory_kind: str
    shape: Shape
    dtype: Dtype
    strides: Strides

    def create_storage(self, memory_meter: Meter, first_storage_number: int) -> Storage:
        """Creates the tensor's storage in a replayed pass. first_storage_number: the number of its first storage."""
        storage = Storage.__new__(Storage)
        storage.meter, storage.bytes = memory_meter, self.bytes
        storage.block = Block(self.bytes, self.memory_kind, first_storage_number + self.storage_number)
        return storage

    def create_tensor(self, storage: Storage) -> Tensor:
        """Returns a tensor with the output's shape and number format on a storage."""
        return Tensor(self.shape, self.dtype, storage, self.strides)


@dataclass
class PassTrace:
    """The allocations and frees of a forward or backward pass, relative to the start of the pass.

    allocator_steps: the allocator's steps; storages are numbered in the pass.
    storage_count: the number of storages.
    releases_of_other_passes: other pass → the steps in which this pass frees its storages, as (step, storage).
    final_bytes, bytes_by_kind: bytes after the pass, and the same by kind.
    peak_bytes: the peak of the pass.
    peaks_by_place: the peak at each place.
    kinds_at_first_release: bytes by kind when the peak before the pass can no longer rise.
    start_place, end_place: the places in which the pass starts and ends.
    ends_at_peak: whether the bytes at the end are the peak of that place, and may still rise.
    outputs: the output, or gradients, each with its number: 0, or that of the parameter.
    kind_of_input_after_pass: the kind under which the pass's input is counted from the pass on; None if it does not
        change.
    """

    allocator_steps: list[AllocatorStep] = field(default_factory=list)
    storage_count: int = 0
    releases_of_other_passes: dict[PassId, list[tuple[int, int]]] = field(default_factory=dict)
    final_bytes: int = 0
    bytes_by_kind: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    peaks_by_place: list[tuple[AllocationPlace, int, dict[str, int]]] = field(default_factory=list)
    kinds_at_first_release: dict[str, int] = field(default_factory=dict)
    start_place: AllocationPlace = NOWHERE
    end_place: AllocationPlace = NOWHERE
    ends_at_peak: bool = False
    outputs: tuple[tuple[int, OutputTensor], ...] = ()
    kind_of_input_after_pass: str | None = None

    def with_relative_numbers(self, pass_id: PassId, previous_pass_id: PassId | None) -> PassTrace:
        """Returns the trace with micro-batch numbers of other passes relative to this pass's number.

        previous_pass_id: the chunk's previous pass, which the trace names `PREVIOUS_PASS`; None where groups do not
            have it.
        """
        model_chunk, _, pass_number = pass_id
        storage_releases: dict[PassId, list[tuple[int, int]]] = {}
        for other_pass_id, pass_releases in self.releases_of_other_passes.items():
            other_chunk, pass_kind, other_pass_number = other_pass_id
            if other_chunk != model_chunk:
                raise NotRepeatingError
            is_previous_pass = other_pass_id == previous_pass_id
            storage_releases[
                (model_chunk, PREVIOUS_PASS, 0)
                if is_previous_pass
                else (model_chunk, pass_kind, other_pass_number - pass_number)
            ] = pass_releases
        return replace(self, releases_of_other_passes=storage_releases)

    def has_equal_events(self, other_trace: PassTrace) -> bool:
        """Whether another trace has the same events; numbers of the previous pass's storages may differ."""
        releases_of_traces = (
            {
                pass_id: [index for index, _ in releases] if pass_id[1] == PREVIOUS_PASS else releases
                for pass_id, releases in pass_trace.releases_of_other_passes.items()
            }
            for pass_trace in (self, other_trace)
        )
        first_releases, second_releases = releases_of_traces
        return (
            first_releases == second_releases
            and replace(self, releases_of_other_passes=other_trace.releases_of_other_passes) == other_trace
        )

    def releases_of_previous_pass(self, model_chunk: int) -> list[tuple[int, int]]:
        """Returns this pass's frees of storages of the chunk's previous pass: (index of the event, storage)."""
        return self.releases_of_other_passes.get((model_chunk, PREVIOUS_PASS, 0), [])

    def with_previous_storage_numbers(
        self, model_chunk: int, new_storage_numbers: Mapping[int, int]
    ) -> PassTrace | None:
        """Returns the trace with renumbered storages of the previous pass; None if it uses an unknown storage."""
        storage_releases = self.releases_of_previous_pass(model_chunk)
        if not storage_releases:
            return self
        if any(storage_number not in new_storage_numbers for _, storage_number in storage_releases):
            return None
        renumbered_releases = {
            (model_chunk, PREVIOUS_PASS, 0): [
                (index, new_storage_numbers[old_storage_number]) for index, old_storage_number in storage_releases
            ]
        }
        return replace(self, releases_of_other_passes=self.releases_of_other_passes | renumbered_releases)

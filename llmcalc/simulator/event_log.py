"""The log of a replayed run's memory events: allocations and releases, which `repeat_layers` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..algebra import Number
from ..frozen import frozen
from .meter import RECLASSIFIABLE_KINDS, AllocationPlace, Block

Event: TypeAlias = tuple[Any, int, Any]
"""A memory event: (storage number, bytes, kind) for an allocation; all other events have a mark such as `FREE_EVENT` as
second element.
"""

FREE_EVENT = -1
"""Mark of (storage number, mark, None): the storage is freed."""

RECLASSIFY_EVENT = -2
"""Mark of (storage number, mark, kind): from here on the storage is counted under this kind of memory."""

WORKSPACE_EVENT = -3
"""Mark of (storage number, mark, bytes): a workspace is allocated if it does not exist yet."""

RENAME_EVENT = -4
"""Mark of (new number, mark, storage number): from here on the new number refers to this storage."""

PLACE_EVENT = -5
"""Mark of (place, mark, None): from here on the run is in this place (module and phase)."""

PARAMETER_EVENT = -6
"""Mark of (parameter path, mark, None): a loop over parameters reaches this parameter; None at its end."""

STREAM_EVENT = -7
"""Mark of (−1, mark, stream): from here on storages are allocated on this CUDA stream."""


NOWHERE = AllocationPlace("", -2)


class EventRecorder:
    """A meter that records allocations and releases, and counts no bytes. A block's handle is its storage's number.

    kind, place, parameter_path, stream: as in `Meter`.
    events: the events so far.
    storage_count: the number of storages so far.
    is_place_pending: whether to record the next place even if it is the current one; default false.
    parameter_events: the list for allocations of parameters; None (default) for `events`.
    """

    def __init__(self) -> None:
        self.kind = "temporary"
        self.events: list[Event] = []
        self.parameter_events: list[Event] | None = None
        self.storage_count: int = 0
        self.is_place_pending: bool = False
        self._place = AllocationPlace()
        self._parameter_path: Any = None
        self._stream = 0

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, cuda_stream: int) -> None:
        self._stream = cuda_stream
        self.events.append((-1, STREAM_EVENT, cuda_stream))

    @property
    def place(self) -> AllocationPlace:
        return self._place

    @place.setter
    def place(self, allocation_place: AllocationPlace) -> None:
        if allocation_place != self._place or self.is_place_pending:
            self._place = allocation_place
            self.is_place_pending = False
            self.events.append((allocation_place, PLACE_EVENT, None))

    @property
    def parameter_path(self) -> Any:
        return self._parameter_path

    @parameter_path.setter
    def parameter_path(self, path: Any) -> None:
        self._parameter_path = path
        self.events.append((path, PARAMETER_EVENT, None))

    def allocate(self, nbytes: Number) -> Block:
        storage_number, memory_kind = self.storage_count, self.kind
        self.storage_count = storage_number + 1
        if memory_kind == "weights" and self.parameter_events is not None:
            self.parameter_events += ((self._place, PLACE_EVENT, None), (storage_number, nbytes, memory_kind))
            return Block(nbytes, memory_kind, storage_number)
        self.events.append(
            (storage_number, WORKSPACE_EVENT, nbytes)
            if memory_kind == "overhead"
            else (storage_number, nbytes, memory_kind)
        )
        return Block(nbytes, memory_kind, storage_number)

    def free(self, block: Block) -> None:
        self.events.append((block.handle, FREE_EVENT, None))

    def reclassify(self, block: Block, memory_kind: str) -> None:
        if block.kind != memory_kind and block.kind in RECLASSIFIABLE_KINDS:
            block.kind = memory_kind
            self.events.append((block.handle, RECLASSIFY_EVENT, memory_kind))

    def take_events(self) -> list[Event]:
        """Returns the events since the last call and empties the log; the next event states its module and phase."""
        memory_events, self.events = self.events, []
        self._place = NOWHERE
        return memory_events


@frozen
class RecordedEvents:
    """The recorded allocations and releases of a run: of its set-up, and of each part of its steps.

    set_up: events of the set-up.
    first_step: pieces of the first step; empty if only one step runs.
    reported_step: pieces of the step whose memory is reported. A piece may be in both steps: the second step starts
        after the piece's storages are freed.
    phases: phases of the reported step.
    depends_on_shard: whether a rank with another shard of the parameters may have other events; true by default.
    """

    set_up: Sequence[Event]
    first_step: Sequence[Sequence[Event]]
    reported_step: Sequence[Sequence[Event]]
    phases: Sequence[str]
    depends_on_shard: bool = True

    def with_workspace(self, workspace_bytes: int) -> RecordedEvents:
        """Returns the events with cuBLAS workspaces of `workspace_bytes` bytes; 0 removes the workspaces."""

        def with_workspace_bytes(memory_events: Sequence[Event]) -> list[Event]:
            return [
                (storage_number, nbytes, workspace_bytes if nbytes == WORKSPACE_EVENT else event_detail)
                for storage_number, nbytes, event_detail in memory_events
                if workspace_bytes or nbytes != WORKSPACE_EVENT
            ]

        first_step, reported_step = (
            list(map(with_workspace_bytes, step_events)) for step_events in (self.first_step, self.reported_step)
        )
        return RecordedEvents(with_workspace_bytes(self.set_up), first_step, reported_step, self.phases)


def allocated_bytes(memory_events: Sequence[Event]) -> dict[int, int]:
    """Returns the bytes of each storage that the events allocate, without workspaces."""
    return {storage_number: nbytes for storage_number, nbytes, _ in memory_events if nbytes >= 0}


def released_storages(memory_events: Sequence[Event]) -> set[int]:
    """Returns the storages that the events release."""
    return {storage_number for storage_number, nbytes, _ in memory_events if nbytes == FREE_EVENT}


def rename_events(old_events: Sequence[Event], new_events: Sequence[Event]) -> list[Event]:
    """Returns events after which the old storages' numbers refer to the new storages, in the same order."""
    return [
        (old_storage, RENAME_EVENT, new_storage)
        for old_storage, new_storage in zip(allocated_bytes(old_events), allocated_bytes(new_events), strict=True)
    ]


def is_repeatable(
    batch_events: Sequence[Event],
    pass_events: Sequence[Event],
    zero_grad_events: Sequence[Event],
    next_batch_events: Sequence[Event],
) -> bool:
    """Whether the next training step's passes repeat the recorded memory events.

    They have if only gradients, workspaces and the tokens of a batch outlive a pass.

    batch_events: events that allocate the tokens.
    pass_events: events of the passes.
    zero_grad_events: events that free the gradients.
    next_batch_events: events that allocate the next tokens.
    """
    pass_storages, batch_storages = allocated_bytes(pass_events).keys(), allocated_bytes(batch_events).keys()
    return (
        released_storages(pass_events) <= pass_storages | batch_storages
        and pass_storages - released_storages(pass_events) - released_storages(next_batch_events)
        == released_storages(zero_grad_events)
        and list(allocated_bytes(batch_events).values()) == list(allocated_bytes(next_batch_events).values())
    )


def is_self_contained(update_events: Sequence[Event]) -> bool:
    """Whether an optimizer step frees all storages that it allocates, and no others."""
    return allocated_bytes(update_events).keys() == released_storages(update_events)

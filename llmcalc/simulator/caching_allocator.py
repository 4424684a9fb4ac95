"""Replays allocations and releases on a model of torch's CUDA caching allocator.

torch 2.13, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp; its constants are in
c10/core/AllocatorConfig.h. A segment is memory that the allocator has reserved on the device with one cudaMalloc. It
consists of blocks, each in use or free. A pool holds the free blocks of one stream that serve small or large requests.
The bytes of blocks in use are allocated, those of segments reserved.

There is no object for a block, and none is handed out, so that a run is replayed quickly. The free blocks of a pool are
grouped by size, since replayed layers free thousands of blocks of a few sizes. Sizes and addresses are counted in units
of 512 bytes, and addresses downward: a block starts at its end in memory, so that the lowest address is the last of a
sorted list, and a part that is split off keeps its start. No memory is returned to the device, and so an expandable
segment has one range of addresses without memory, at its end. An allocator with an object for each block, in the tests,
gives the same sums.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from .event_log import FREE_EVENT, RENAME_EVENT, STREAM_EVENT, WORKSPACE_EVENT, Event
from .simulated_work import SIMULATED_WORK

MIN_BLOCK_SIZE = 512
"""The size of a block is a multiple of this number of bytes (kMinBlockSize)."""

SMALL_SIZE = 1 << 20
"""Bytes of the largest block that the small pool serves (kSmallSize)."""

SMALL_BUFFER = 2 << 20
"""Bytes of a segment of the small pool, and of a page of an expandable small segment (kSmallBuffer)."""

LARGE_BUFFER = 20 << 20
"""Bytes of a segment for a large block below `MIN_LARGE_ALLOC`, and of a page of an expandable large segment
(kLargeBuffer).

In torch 2.13 it is the default of the option large_segment_size_mb.
"""

MIN_LARGE_ALLOC = 10 << 20
"""A block of at least this many bytes gets a segment of its size, rounded up to `ROUND_LARGE` (kMinLargeAlloc)."""

ROUND_LARGE = 2 << 20
"""The size of a segment for a block of at least `MIN_LARGE_ALLOC` bytes is a multiple of this (kRoundLarge)."""

UNIT_BITS = MIN_BLOCK_SIZE.bit_length() - 1
"""Sizes and addresses are counted in units of 2^UNIT_BITS bytes."""

SMALL_UNITS, LARGE_UNITS, ROUND_UNITS = SMALL_SIZE >> UNIT_BITS, MIN_LARGE_ALLOC >> UNIT_BITS, ROUND_LARGE >> UNIT_BITS

AllocatorStep: TypeAlias = tuple[int, int]
"""A step of the allocator: (storage number, units) for an allocation, (storage number, 0) for a release, (−1 − stream,
0) for a change of the stream. Storages without bytes have no steps.
"""

SINGLE_REPEAT = range(1)
"""The repeats of events that occur only once."""

NO_SIZE = 1 << 136
"""A number larger than the size of any block of the largest allowed model, in units."""

NO_BLOCK = 0, 0, 0
"""The block of a storage that is not allocated."""

StepList: TypeAlias = tuple[list[AllocatorStep], int]
"""A list of allocator steps, and the offset that is added to their storage numbers."""


def encode_allocation(storage_number: int, nbytes: int) -> AllocatorStep:
    """Encodes the allocation of a storage as an allocator step. nbytes: at least 1."""
    return storage_number, (nbytes + MIN_BLOCK_SIZE - 1) >> UNIT_BITS


def encode_release(storage_number: int) -> AllocatorStep:
    """Encodes the release of a storage as an allocator step."""
    return storage_number, 0


def encode_stream_switch(cuda_stream: int) -> AllocatorStep:
    """Encodes, as an allocator step, the switch of later allocations to a CUDA stream."""
    return -1, -1 - cuda_stream


class BlockPool:
    """The free blocks of one CUDA stream, either for small or for large requests.

    starts: start of a free block → its size.
    ends: end of a free block → its start.
    sizes: sizes of free blocks in order, and NO_SIZE; also sizes without blocks, until a search comes upon them.
    by_size: size → the sorted starts of its free blocks.
    least_remainder: units that must remain for a block to be split.
    growth_units: units of a new segment, or by which an expandable segment grows.
    segment_bound: the end of its segments, or the start of an expandable segment.
    """

    __slots__ = ("by_size", "ends", "growth_units", "least_remainder", "segment_bound", "sizes", "starts")

    def __init__(self, is_small: bool, is_expandable: bool) -> None:
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.sizes: list[int] = [NO_SIZE]
        self.by_size: dict[int, list[int]] = {NO_SIZE: [0]}
        self.least_remainder: int = 1 if is_small or is_expandable else SMALL_UNITS + 1
        self.growth_units: int = (SMALL_BUFFER if is_small else LARGE_BUFFER) >> UNIT_BITS
        self.segment_bound: int = 0

    def add(self, block_start: int, block_size: int) -> None:
        """Adds a free block to the pool."""
        self.starts[block_start], self.ends[block_start + block_size] = block_size, block_start
        if block_size not in self.by_size:
            self.by_size[block_size] = []
            insort(self.sizes, block_size)
        insort(self.by_size[block_size], block_start)

    def remove(self, block_start: int) -> int:
        """Removes a free block and returns its size."""
        block_size = self.starts.pop(block_start)
        del self.ends[block_start + block_size]
        self.by_size[block_size].remove(block_start)
        return block_size

    def smallest_free_size(self, size_index: int) -> int:
        """Returns the smallest size with free blocks, from an index of `sizes` on, and drops sizes without any."""
        while not self.by_size[block_size := self.sizes[size_index]]:
            del self.by_size[block_size], self.sizes[size_index]
        return block_size

    def reserve(self, block_units: int) -> tuple[int, int]:
        """Adds a new segment with a free block of at least `block_units` units (get_allocation_size).

        Returns the size of the block and the reserved units.
        """
        block_size = self.growth_units if block_units < LARGE_UNITS else -(-block_units // ROUND_UNITS) * ROUND_UNITS
        self.add(self.segment_bound + 1, block_size)  # blocks of two segments never touch
        self.segment_bound += 1 + block_size
        return block_size, block_size

    def grow(self, block_units: int) -> tuple[int, int]:
        """Adds pages to the expandable segment, so that its last free block has at least this many units.

        Returns the size of the block and the reserved units (try_allocate_expandable_block).
        """
        block_size = self.remove(self.segment_bound) if self.segment_bound in self.starts else 0
        reserved_units = -(-(block_units - block_size) // self.growth_units) * self.growth_units
        self.segment_bound -= reserved_units
        self.add(self.segment_bound, block_size + reserved_units)
        return block_size + reserved_units, reserved_units


class CachingAllocator:
    """torch's caching allocator, initially empty, on a device with unlimited memory.

    expandable_segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    allocated, peak_allocated: bytes of blocks in use (torch.cuda.memory_allocated, max_memory_allocated).
    reserved, peak_reserved: bytes of segments (torch.cuda.memory_reserved, max_memory_reserved).

    Rules, each with the function of CUDACachingAllocator.cpp that has it:
    - round_size: a request is rounded up to a multiple of 512 bytes (kMinBlockSize).
    - get_pool: blocks of up to 1 MiB (kSmallSize) come from the small pool, larger ones from the large pool. A freed
      block serves only the stream that it was allocated on.
    - get_free_block: best fit. The smallest free block that is large enough; among equal ones the lowest address.
    - get_allocation_size: if none fits, a new segment of 2 MiB (kSmallBuffer) in the small pool; in the large pool one
      of 20 MiB (kLargeBuffer), from 10 MiB on (kMinLargeAlloc) of the block's size rounded up to 2 MiB (kRoundLarge).
    - should_split: a block is split if at least 512 bytes remain; in the large pool if more than 1 MiB remains. A rest
      that is not split off counts as allocated: it is slop.
    - free_block, try_merge_blocks: a freed block merges with free neighbours in its segment.

    Rules of expandable segments:
    - try_allocate_expandable_block: each pool of a stream has one segment, which grows by pages of 2 MiB (small pool,
      kSmallBuffer) or 20 MiB (large pool, kLargeBuffer). Growing starts at the free block before the lowest unmapped
      addresses that leave enough room.
    - get_free_block: a free block that can grow counts with the size that it can grow to. So the free block at the end
      of the segment is chosen only if no other fits.
    - should_split: blocks of the large pool are also split if at least 512 bytes remain.

    Not modelled:
    - returning cached segments and pages to the device on request (release_cached_blocks, unmap_block).
    - other options: max_split_size_mb, roundup_power2_divisions, garbage_collection_threshold, large_segment_size_mb.
      Their defaults apply.
    - private pools (CUDA graphs, torch.cuda.MemPool).
    - Tensor.record_stream: torch reuses such a block only after the recorded stream has finished with it.
    - a full device: torch returns cached segments when cudaMalloc fails, and tries again.
    - addresses chosen by the driver. Here a new segment lies below all older ones. This decides only between free
      blocks of equal size in different segments. Of nine runs on an H100, replayed event by event, the reserved bytes
      are equal with this order, and up to 6 % off in five with the opposite one (tests/data/gpu).
    """

    def __init__(self, expandable_segments: bool = False) -> None:
        self.expandable_segments = expandable_segments
        self.allocated: int = 0
        self.reserved: int = 0
        self.peak_allocated: int = 0
        self._pools: list[BlockPool] = []
        self._pool_of_stream: dict[int, int] = {}  # the number of its small pool; that of its large pool is next
        self._stream = 0
        self._blocks_by_storage: list[
            tuple[int, int, int]
        ] = []  # start, units and number of the pool of each storage's block

    @property
    def peak_reserved(self) -> int:
        """Peak reserved bytes. It equals `reserved`, because no memory returns to the device."""
        return self.reserved

    def _small_pool_number(self, cuda_stream: int) -> int:
        """Returns the number of a stream's pool for small requests. The next number is the pool for large requests."""
        if cuda_stream not in self._pool_of_stream:
            self._pool_of_stream[cuda_stream] = len(self._pools)
            self._pools += [BlockPool(is_small_pool, self.expandable_segments) for is_small_pool in (True, False)]
        return self._pool_of_stream[cuda_stream]

    def run_steps(  # noqa: PLR0915
        self, allocator_steps: Collection[AllocatorStep], storage_count: int, storage_offset: int = 0
    ) -> None:
        """Replays encoded allocator steps on the allocator. Storages keep their numbers across calls.

        storage_count: the number of storages so far.
        storage_offset: offset of the storage numbers in these steps, default 0.
        """
        SIMULATED_WORK.units += len(allocator_steps)
        blocks_by_number, is_expandable = self._blocks_by_storage, self.expandable_segments
        blocks_by_number += [NO_BLOCK] * (storage_count - len(blocks_by_number))
        allocated_units, peak_units = self.allocated >> UNIT_BITS, self.peak_allocated >> UNIT_BITS
        small_pool_number = self._small_pool_number(self._stream)
        pool_tables = [(pool.starts, pool.ends, pool.sizes, pool.by_size, pool.least_remainder) for pool in self._pools]
        for storage_number, encoded_units in allocator_steps:
            if encoded_units > 0:
                pool_number = small_pool_number if encoded_units <= SMALL_UNITS else small_pool_number + 1
                block_starts, block_ends, block_sizes, block_starts_by_size, least_remainder = pool_tables[pool_number]
                block_starts_of_size = None if is_expandable else block_starts_by_size.get(encoded_units)
                if block_starts_of_size:
                    block_start = block_starts_of_size.pop()
                    del block_starts[block_start], block_ends[block_start + encoded_units]
                    blocks_by_number[storage_number + storage_offset] = block_start, encoded_units, pool_number
                    allocated_units += encoded_units
                else:
                    size_index = bisect_left(block_sizes, encoded_units)
                    block_size = block_sizes[size_index]
                    block_starts_of_size = block_starts_by_size[block_size]
                    while not block_starts_of_size:
                        del block_starts_by_size[block_size], block_sizes[size_index]
                        block_size = block_sizes[size_index]
                        block_starts_of_size = block_starts_by_size[block_size]
                    if block_size == NO_SIZE or is_expandable:
                        block_size = self._choose_block(pool_number, encoded_units)
                        block_starts_of_size = block_starts_by_size[block_size]
                    block_start = block_starts_of_size.pop()
                    remainder_size = block_size - encoded_units
                    del block_ends[block_start + block_size]
                    if remainder_size < least_remainder:
                        del block_starts[block_start]
                        blocks_by_number[storage_number + storage_offset] = block_start, block_size, pool_number
                        allocated_units += block_size
                    else:
                        block_end = block_start + remainder_size
                        block_starts[block_start], block_ends[block_end] = remainder_size, block_start
                        blocks_by_number[storage_number + storage_offset] = block_end, encoded_units, pool_number
                        allocated_units += encoded_units
                        block_starts_of_size = block_starts_by_size.get(remainder_size)
                        if block_starts_of_size is None:
                            block_starts_by_size[remainder_size] = [block_start]
                            insort(block_sizes, remainder_size)
                        elif not block_starts_of_size or block_starts_of_size[-1] < block_start:
                            block_starts_of_size.append(block_start)
                        else:
                            insort(block_starts_of_size, block_start)
                if allocated_units > peak_units:  # noqa: PLR1730
                    peak_units = allocated_units
            elif not encoded_units:
                block_start, block_size, pool_number = blocks_by_number[storage_number + storage_offset]
                block_starts, block_ends, block_sizes, block_starts_by_size, _ = pool_tables[pool_number]
                allocated_units -= block_size
                block_end = block_start + block_size
                if block_end in block_starts:  # the block after it is free too
                    merged_size = block_starts.pop(block_end)
                    block_starts_of_size = block_starts_by_size[merged_size]
                    if block_starts_of_size[-1] == block_end:
                        block_starts_of_size.pop()
                    else:
                        del block_starts_of_size[bisect_left(block_starts_of_size, block_end)]
                    block_size += merged_size
                    block_end += merged_size
                if block_start in block_ends:
                    merged_start = block_ends.pop(block_start)
                    merged_size = block_start - merged_start
                    block_starts_of_size = block_starts_by_size[merged_size]
                    if block_starts_of_size[-1] == merged_start:
                        block_starts_of_size.pop()
                    else:
                        del block_starts_of_size[bisect_left(block_starts_of_size, merged_start)]
                    block_start = merged_start
                    block_size += merged_size
                block_starts[block_start], block_ends[block_end] = block_size, block_start
                block_starts_of_size = block_starts_by_size.get(block_size)
                if block_starts_of_size is None:
                    block_starts_by_size[block_size] = [block_start]
                    insort(block_sizes, block_size)
                elif not block_starts_of_size or block_starts_of_size[-1] < block_start:
                    block_starts_of_size.append(block_start)
                else:
                    insort(block_starts_of_size, block_start)
            else:
                self._stream = -1 - encoded_units
                small_pool_number = self._small_pool_number(self._stream)
                pool_tables += [
                    (
                        block_pool.starts,
                        block_pool.ends,
                        block_pool.sizes,
                        block_pool.by_size,
                        block_pool.least_remainder,
                    )
                    for block_pool in self._pools[len(pool_tables) :]
                ]
        self.allocated, self.peak_allocated = allocated_units << UNIT_BITS, peak_units << UNIT_BITS

    def run_repeats(
        self, allocator_steps: Collection[AllocatorStep], storage_count: int, storage_offsets: range
    ) -> None:
        """Replays the steps of consecutive equal layers. storage_offsets: the offset of each layer's storage numbers.

        Layers often take turns with two blocks. A repeat that leaves the free blocks of two repeats before, and whose
        next one releases the same block as two repeats before, is followed by repeats of these two, which are not run.
        """
        allocated_storages = {storage_number for storage_number, encoded_units in allocator_steps if encoded_units > 0}
        released_storages = {storage_number for storage_number, encoded_units in allocator_steps if not encoded_units}
        earlier_storages, unreleased_storages = (
            released_storages - allocated_storages,
            allocated_storages - released_storages,
        )
        releases_previous_repeat = all(
            storage_number + storage_offsets.step in unreleased_storages for storage_number in earlier_storages
        )
        blocks_by_number = self._blocks_by_storage
        allocator_states: list[tuple[object, ...]] = []
        skip_end_index = 0
        for repeat_index, storage_offset in enumerate(storage_offsets):
            if repeat_index < skip_end_index:
                for storage_number in unreleased_storages:
                    earlier_block = blocks_by_number[storage_number + storage_offsets[repeat_index - 2]]
                    blocks_by_number[storage_number + storage_offset] = earlier_block
                continue
            allocated_before = self.allocated
            self.run_steps(allocator_steps, storage_count, storage_offset)
            if skip_end_index or not releases_previous_repeat or self.allocated != allocated_before:
                allocator_states.clear()
                continue
            allocator_states.append(
                (self._stream, self.reserved, [dict(block_pool.starts) for block_pool in self._pools])
            )
            if (
                len(allocator_states) > 2
                and repeat_index + 2 < len(storage_offsets)
                and allocator_states[-1] == allocator_states[-3]
            ):
                next_offset, previous_offset = storage_offsets[repeat_index + 1], storage_offsets[repeat_index - 1]
                if all(
                    blocks_by_number[storage_number + next_offset] == blocks_by_number[storage_number + previous_offset]
                    for storage_number in earlier_storages
                ):
                    skipped_count = (len(storage_offsets) - repeat_index - 1) // 2 * 2
                    skip_end_index = repeat_index + 1 + skipped_count
                    SIMULATED_WORK.units += len(allocator_steps) * skipped_count

    def _choose_block(self, pool_number: int, block_units: int) -> int:
        """Returns the size of the pool's free block for a request of `block_units` units (get_free_block).

        The block is the last one of its size. One that can grow counts with the size that it can grow to, so that
        others come first. Without a block, memory is reserved.
        """
        block_pool, is_expandable = self._pools[pool_number], self.expandable_segments
        size_index = bisect_left(block_pool.sizes, block_units)
        block_size = block_pool.smallest_free_size(size_index)
        if is_expandable and block_size != NO_SIZE and block_pool.by_size[block_size] == [block_pool.segment_bound]:
            next_size = block_pool.smallest_free_size(size_index + 1)
            block_size = block_size if next_size == NO_SIZE else next_size
        if block_size == NO_SIZE:
            block_size, reserved_units = (block_pool.grow if is_expandable else block_pool.reserve)(block_units)
            self.reserved += reserved_units << UNIT_BITS
        return block_size


def replay_step_lists(
    step_lists: Sequence[StepList], storage_count: int, expandable_segments: bool
) -> CachingAllocator:
    """Replays a run's allocations and frees, and returns the allocator. storage_count: the run's number of storages."""
    allocator = CachingAllocator(expandable_segments)
    for allocator_steps, storage_offset in step_lists:
        allocator.run_steps(allocator_steps, storage_count, storage_offset)
    return allocator


class AllocatorStepEncoder:
    """Encodes lists of memory events as allocator steps, one after the other, and counts the requested bytes.

    storage_count: the number of storages.
    requested, peak_requested: bytes of tensors so far, and their peak.
    """

    def __init__(self, storage_count: int) -> None:
        self.requested: int = 0
        self.peak_requested: int = 0
        self._bytes_by_storage: list[Any] = [None] * storage_count
        self._renamed_storages: dict[Any, Any] = {}

    def encode_repeated_events(self, memory_events: Sequence[Event], storage_offsets: range) -> list[AllocatorStep]:
        """Encodes memory events of consecutive equal layers, and returns the allocator steps of the first layer.

        memory_events: events of repeat 0; its storage x is x + r in repeat r, with an equal size.
        """
        if storage_offsets == SINGLE_REPEAT:
            return self.steps(memory_events)
        first_offset, lowest_offset, repeat_count = storage_offsets[0], min(storage_offsets), len(storage_offsets)
        requested_before, peak_before = self.requested, self.peak_requested
        self.peak_requested = requested_before
        allocator_steps = self.steps(
            [
                (recorded_storage + first_offset, nbytes, event_detail)
                for recorded_storage, nbytes, event_detail in memory_events
            ]
        )
        bytes_of_later_repeats = (repeat_count - 1) * (self.requested - requested_before)
        self.requested += bytes_of_later_repeats
        self.peak_requested = max(peak_before, self.peak_requested + max(0, bytes_of_later_repeats))
        for storage_number, nbytes, _ in memory_events:
            if nbytes >= 0:
                self._bytes_by_storage[
                    storage_number + lowest_offset : storage_number + lowest_offset + repeat_count
                ] = [nbytes] * repeat_count
        return [(storage_number - first_offset, encoded_units) for storage_number, encoded_units in allocator_steps]

    def steps(self, memory_events: Sequence[Event]) -> list[AllocatorStep]:
        """Encodes the next memory events of the run as allocator steps."""
        bytes_of_storage, renamed_storages = self._bytes_by_storage, self._renamed_storages
        requested_bytes, peak_requested = self.requested, self.peak_requested
        allocator_steps: list[AllocatorStep] = []
        append_step = allocator_steps.append
        storage_number: Any
        for storage_number, nbytes, event_detail in memory_events:
            if nbytes == FREE_EVENT:
                if renamed_storages:
                    storage_number = renamed_storages.get(storage_number, storage_number)
                storage_bytes = bytes_of_storage[storage_number]
                if storage_bytes:
                    append_step((storage_number, 0))
                    requested_bytes -= storage_bytes
                continue
            if nbytes == WORKSPACE_EVENT:
                if bytes_of_storage[storage_number] is not None:
                    continue
                nbytes = event_detail
            if nbytes > 0:
                bytes_of_storage[storage_number] = nbytes
                if renamed_storages:
                    renamed_storages.pop(storage_number, None)
                append_step((storage_number, (nbytes + MIN_BLOCK_SIZE - 1) >> UNIT_BITS))
                requested_bytes += nbytes
                if requested_bytes > peak_requested:  # noqa: PLR1730
                    peak_requested = requested_bytes
            elif nbytes == RENAME_EVENT:
                renamed_storages[storage_number] = renamed_storages.get(event_detail, event_detail)
            elif nbytes == STREAM_EVENT:
                append_step(encode_stream_switch(event_detail))
            else:
                bytes_of_storage[storage_number] = 0
        self.requested = requested_bytes
        self.peak_requested = peak_requested
        return allocator_steps

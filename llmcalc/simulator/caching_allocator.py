"""Replays allocations and releases on a model of torch's CUDA caching allocator.

torch 2.13, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp; its constants are in
c10/core/AllocatorConfig.h. A segment is memory that the allocator has reserved on the device with one cudaMalloc. It
consists of blocks, each in use or free. A pool holds the free blocks of one stream that serve small or large requests.
The bytes of blocks in use are allocated, those of segments reserved.

There is no object for a block, and none is handed out, so that a run is replayed quickly: a block is one number, its
size and then its address in BITS bits. Blocks of one pool have addresses of their own, so that an address tells the
pool. No memory is returned to the device, and so an expandable segment has one range of addresses without memory, at
its end. An allocator with an object for each block, in the tests, gives the same sums.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from .event_log import FREED, NAMED, STREAMED, TAKEN, Event

MIN_BLOCK_SIZE = 512
"""kMinBlockSize: sizes of blocks are multiples of it."""

SMALL_SIZE = 1 << 20
"""kSmallSize: the largest block that the small pool serves."""

SMALL_BUFFER = 2 << 20
"""kSmallBuffer: size of a segment of the small pool, and of a page of an expandable one."""

LARGE_BUFFER = 20 << 20
"""kLargeBuffer: size of a segment for a large block below `MIN_LARGE_ALLOC`, and of a page of an expandable one.

In torch 2.13 it is the default of the option large_segment_size_mb.
"""

MIN_LARGE_ALLOC = 10 << 20
"""kMinLargeAlloc: a block of at least this size gets a segment of its own size, rounded up to `ROUND_LARGE`."""

ROUND_LARGE = 2 << 20
"""kRoundLarge: sizes of segments for blocks from `MIN_LARGE_ALLOC` on are multiples of it."""

UNIT = MIN_BLOCK_SIZE.bit_length() - 1
"""Sizes and addresses are counted in units of 2^UNIT bytes."""

SMALL, LARGE = SMALL_SIZE >> UNIT, MIN_LARGE_ALLOC >> UNIT

BITS = 136
"""Address width in bits; large enough for the largest allowed model."""

ADDRESS = (1 << BITS) - 1

RANGE = 128
"""Bits of an address inside its pool; the bits above them are the pool's number."""

NO_BLOCK = 1 << 2 * BITS
"""Sentinel at the end of each list of free blocks; larger than every block."""

Step: TypeAlias = tuple[int, int, int]
"""A step of the allocator. Storages without bytes have no steps.

An allocation is (number of the storage, its units shifted by BITS, its units), a release (number, 0, 0), a change of
the stream (−1, −1, number of the stream).
"""

ONCE = range(1)
"""The repeats of events that occur once."""

Stretch: TypeAlias = tuple[list[Step], int]
"""(steps, offset of their storage numbers)"""


def allocation(x: int, bytes: int) -> Step:
    """Encodes the allocation of storage number `x`, of at least one byte."""
    n = (bytes + MIN_BLOCK_SIZE - 1) >> UNIT
    return x, n << BITS, n


def release(x: int) -> Step:
    """Encodes the release of storage number `x`."""
    return x, 0, 0


def on_stream(stream: int) -> Step:
    """Encodes a switch of later allocations to another CUDA stream."""
    return -1, -1, stream


class Pool:
    """The free blocks of one stream, for small or for large requests.

    free: the free blocks in order, and NO_BLOCK.
    least_rest: units that must remain for a block to be split.
    page: units of a new segment, or by which an expandable segment grows.
    bound: the lowest address of its segments, or of an expandable segment the first address above its pages.
    """

    __slots__ = ("bound", "free", "least_rest", "page")

    def __init__(self, pool_index: int, is_small: bool, expandable: bool) -> None:
        self.free: list[int] = [NO_BLOCK]
        self.least_rest: int = 1 if is_small or expandable else SMALL + 1
        self.page: int = (SMALL_BUFFER if is_small else LARGE_BUFFER) >> UNIT
        self.bound: int = (pool_index << RANGE) + 1 if expandable else (pool_index + 1 << RANGE) - 1


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
    - release_cached_blocks: segments with nothing in use are returned to the device, on request only.

    Rules of expandable segments:
    - try_allocate_expandable_block: each pool of a stream has one segment, which grows by pages of 2 MiB (small pool,
      kSmallBuffer) or 20 MiB (large pool, kLargeBuffer). Growing starts at the free block before the lowest unmapped
      addresses that leave enough room.
    - get_free_block: a free block that can grow counts with the size that it can grow to. So the free block at the end
      of the segment is chosen only if no other fits.
    - should_split: blocks of the large pool are also split if at least 512 bytes remain.
    - unmap_block: `release_cached` returns every page with nothing in use.

    Not modelled:
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
        self._pools: dict[int, tuple[Pool, Pool]] = {}
        self._lists: list[list[int]] = []  # the free blocks of each pool
        self._starts: dict[int, int] = {}  # address of a free block -> the block
        self._ends: dict[int, int] = {}  # address after a free block -> the block
        self._stream = 0
        self._block_of: list[int] = []  # the block of each storage

    @property
    def peak_reserved(self) -> int:
        """Peak reserved bytes. It equals `reserved`, because no memory returns to the device."""
        return self.reserved

    def _pools_of_stream(self, stream: int) -> tuple[Pool, Pool]:
        """Returns a stream's pools for small and for large requests."""
        pools = self._pools.get(stream)
        if pools is None:
            pool_index, is_expandable = len(self._lists), self.expandable_segments
            pools = self._pools[stream] = (
                Pool(pool_index, True, is_expandable),
                Pool(pool_index + 1, False, is_expandable),
            )
            self._lists += [pool.free for pool in pools]
        return pools

    def play(self, steps: Iterable[Step], count: int, base: int = 0) -> None:  # noqa: PLR0915
        """Performs encoded allocations and releases. Storages keep their numbers across calls.

        count: the number of storages so far.
        base: offset of the storage numbers in these steps, default 0.
        """
        starts, ends, block_of, lists = self._starts, self._ends, self._block_of, self._lists
        block_of += [0] * (count - len(block_of))
        allocated_units, peak_allocated = self.allocated >> UNIT, self.peak_allocated >> UNIT
        expandable, (small_pool, large_pool) = self.expandable_segments, self._pools_of_stream(self._stream)
        small_free, large_free, large_rest = small_pool.free, large_pool.free, large_pool.least_rest
        for x, nbytes, n in steps:
            if not nbytes:
                block = block_of[x + base]
                address, n = block & ADDRESS, block >> BITS
                allocated_units -= n
                block_end = address + n
                free_list = lists[address >> RANGE]
                if block_end in starts:  # the block after it is free too
                    neighbour = starts.pop(block_end)
                    list_index = bisect_left(free_list, neighbour)
                    block += neighbour - block_end
                    block_end += neighbour >> BITS
                    if address in ends:
                        del free_list[list_index]
                        neighbour = ends.pop(address)
                        list_index = bisect_left(free_list, neighbour)
                        block += neighbour - address
                elif address in ends:
                    neighbour = ends.pop(address)
                    list_index = bisect_left(free_list, neighbour)
                    block += neighbour - address
                else:
                    starts[address] = ends[block_end] = block
                    insort(free_list, block)
                    continue
                starts[block & ADDRESS] = ends[block_end] = block
                if block < free_list[list_index + 1]:
                    free_list[list_index] = block  # it is larger than the block that it replaces
                else:
                    del free_list[list_index]
                    insort(free_list, block)
                continue
            if nbytes < 0:
                self._stream = n
                small_pool, large_pool = self._pools_of_stream(n)
                small_free, large_free = small_pool.free, large_pool.free
                continue
            if n > SMALL:
                free_list, least_rest = large_free, large_rest
            else:
                free_list, least_rest = small_free, 1
            list_index = bisect_left(free_list, nbytes)
            block = free_list[list_index]
            if block == NO_BLOCK:
                block = self._reserve_block(large_pool if n > SMALL else small_pool, n)
                list_index = bisect_left(free_list, block)
            elif expandable and free_list[list_index + 1] != NO_BLOCK:
                bound = (large_pool if n > SMALL else small_pool).bound
                if (block & ADDRESS) + (block >> BITS) == bound:
                    list_index += 1  # a block that can grow counts with the size that it can grow to
                    block = free_list[list_index]
            address, block_size = block & ADDRESS, block >> BITS
            remainder = block_size - n
            allocated_units += n
            del starts[address]
            if remainder >= least_rest:
                block_of[x + base] = nbytes + address
                block += n - nbytes
                starts[address + n] = ends[address + block_size] = block
                if not list_index or free_list[list_index - 1] < block:
                    free_list[list_index] = block  # it is smaller than the block that it replaces
                else:
                    del free_list[list_index]
                    insort(free_list, block)
            else:
                block_of[x + base] = block
                del free_list[list_index], ends[address + block_size]
                allocated_units += remainder
            if allocated_units > peak_allocated:  # noqa: PLR1730
                peak_allocated = allocated_units
        self.allocated = allocated_units << UNIT
        self.peak_allocated = peak_allocated << UNIT

    def copy(self) -> CachingAllocator:
        """Returns an independent allocator in the same state."""
        duplicate = CachingAllocator(self.expandable_segments)
        duplicate.allocated, duplicate.reserved, duplicate.peak_allocated = (
            self.allocated,
            self.reserved,
            self.peak_allocated,
        )
        for stream, pools in self._pools.items():
            for copied_pool, pool in zip(duplicate._pools_of_stream(stream), pools, strict=True):
                copied_pool.free[:], copied_pool.bound = pool.free, pool.bound
        duplicate._starts, duplicate._ends, duplicate._block_of = (
            self._starts.copy(),
            self._ends.copy(),
            self._block_of.copy(),
        )
        duplicate._stream = self._stream
        return duplicate

    def _reserve_block(self, pool: Pool, n: int) -> int:
        """Reserves device memory for a block of n units. Returns a free block of at least that size.

        The memory is a new segment (get_allocation_size), or more pages at the end of an expandable segment
        (try_allocate_expandable_block).
        """
        if self.expandable_segments:
            block = self._ends.pop(pool.bound, pool.bound)
            if block >> BITS:
                del pool.free[bisect_left(pool.free, block)]
            reserved_units = -(-(n - (block >> BITS)) // pool.page) * pool.page
            pool.bound += reserved_units
            block += reserved_units << BITS
        else:
            round_large = ROUND_LARGE >> UNIT
            reserved_units = pool.page if n < LARGE else -(-n // round_large) * round_large
            pool.bound -= reserved_units + 1  # blocks of two segments never touch
            block = (reserved_units << BITS) + pool.bound
        self.reserved += reserved_units << UNIT
        address = block & ADDRESS
        self._starts[address] = self._ends[address + (block >> BITS)] = block
        insort(pool.free, block)
        return block


class PrefixCache:
    """Replays several runs on separate allocators; the first events that the runs share are replayed once.

    Ranks of a pipeline differ in the number of forward passes before the first backward pass. The allocator's state
    after each common piece is stored, and the next run continues from the last one that it shares.

    expandable: whether segments are expandable, as in `CachingAllocator`.
    """

    def __init__(self, expandable: bool) -> None:
        self._expandable = expandable
        self._states: list[tuple[Stretch, CachingAllocator]] = []

    def play_pieces(self, pieces: Sequence[Stretch], count: int, opening_pieces: int) -> CachingAllocator:
        """Returns the allocator's state after these consecutive parts of a run.

        count: the number of storages.
        opening_pieces: the number of pieces with which other runs may begin.
        """
        alike = takewhile(lambda pair: pair[0][0] == pair[1], zip(self._states, pieces, strict=False))
        shared_pieces = sum(1 for _ in alike)
        del self._states[shared_pieces:]
        device = self._states[-1][1].copy() if shared_pieces else CachingAllocator(self._expandable)
        for piece_index, (steps, base) in enumerate(pieces[shared_pieces:], shared_pieces):
            device.play(steps, count, base)
            if piece_index < opening_pieces:
                self._states.append((pieces[piece_index], device.copy()))
        return device


class RequestedBytes:
    """Encodes memory events for the allocator, and counts the requested bytes.

    count: the number of storages.
    requested, peak_requested: bytes of tensors so far, and their peak.
    """

    def __init__(self, count: int) -> None:
        self.requested: int = 0
        self.peak_requested: int = 0
        self._bytes: list[Any] = [None] * count
        self._named: dict[Any, Any] = {}
        self._units: dict[int, Step] = {}

    def steps_of_repeats(self, events: Sequence[Event], repeats: range) -> list[Step]:
        """Encodes the events of several repeats of a layer pattern; returns the encoded events of the first repeat.

        events: those of repeat 0; a storage x of it is x + r in repeat r, and of the same size.
        """
        if repeats == ONCE:
            return self.steps(events)
        first, lowest, count = repeats[0], min(repeats), len(repeats)
        before, peak_before = self.requested, self.peak_requested
        self.peak_requested = before
        steps = self.steps([(x + first, nbytes, detail) for x, nbytes, detail in events])
        further_bytes = (count - 1) * (self.requested - before)
        self.requested += further_bytes
        self.peak_requested = max(peak_before, self.peak_requested + max(0, further_bytes))
        for x, nbytes, _ in events:
            if nbytes >= 0:
                self._bytes[x + lowest : x + lowest + count] = [nbytes] * count
        return [(x - first, nbytes, n) for x, nbytes, n in steps]

    def steps(self, events: Sequence[Event]) -> list[Step]:
        """Encodes the next memory events."""
        bytes_of_storage, renamed_storages, units_of_storage = self._bytes, self._named, self._units
        requested_bytes, peak_requested = self.requested, self.peak_requested
        steps: list[Step] = []
        append = steps.append
        x: Any
        for x, nbytes, detail in events:
            if nbytes == FREED:
                if renamed_storages:
                    x = renamed_storages.get(x, x)
                bytes = bytes_of_storage[x]
                if bytes:
                    append((x, 0, 0))
                    requested_bytes -= bytes
                continue
            if nbytes == TAKEN:
                if bytes_of_storage[x] is not None:
                    continue
                nbytes = detail
            if nbytes > 0:
                bytes_of_storage[x] = nbytes
                if renamed_storages:
                    renamed_storages.pop(x, None)
                step = units_of_storage.get(nbytes)
                if step is None:
                    step = units_of_storage[nbytes] = allocation(x, nbytes)
                append((x, step[1], step[2]))
                requested_bytes += nbytes
                if requested_bytes > peak_requested:  # noqa: PLR1730
                    peak_requested = requested_bytes
            elif nbytes == NAMED:
                renamed_storages[x] = renamed_storages.get(detail, detail)
            elif nbytes == STREAMED:
                append(on_stream(detail))
            else:
                bytes_of_storage[x] = 0
        self.requested = requested_bytes
        self.peak_requested = peak_requested
        return steps

"""The memory of one device, block by block: the witness of `llmcalc.simulator.caching_allocator`.

`ExactDevice` counts what tensors ask for. `WitnessAllocator` is torch's CUDA caching allocator, with an object for
each block and with memory that is returned to the device. Both have the interface of `Device`. Requested bytes
(tensors) <= allocated bytes (blocks in use) <= reserved bytes (segments). Allocated minus requested is slop; reserved
minus allocated is fragmentation, the free blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llmcalc.simulator.caching_allocator import (
    LARGE_BUFFER,
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
)

ADDRESS_SPACE = 1 << 50
"""Addresses of one expandable segment. torch takes 9/8 of the device's memory; here a segment never reaches its end."""


class Handle:
    """What `Device.allocate` returned: bytes that a tensor holds until `Device.free`.

    It is invalid after that: its block can belong to another tensor.

    size: bytes that count as allocated.
    requested: bytes that were asked for.
    in_use: False once freed.
    """

    __slots__ = ("in_use", "requested", "size")

    def __init__(self, size: int, requested: int) -> None:
        self.size = size
        self.requested = requested
        self.in_use = True


class Device(ABC):
    """The memory of one device, empty at first.

    allocated, peak_allocated: bytes of blocks in use (torch.cuda.memory_allocated, max_memory_allocated).
    requested, peak_requested: bytes asked for (`requested_bytes` of torch.cuda.memory_stats).
    reserved, peak_reserved: bytes of segments (torch.cuda.memory_reserved, max_memory_reserved).
    requested_at_peak, reserved_at_peak: requested and reserved when allocated first reached its peak.

    Peaks are since the beginning or the last `reset_peaks`. Each is the maximum of its own sum, so they can belong to
    different moments. peak_reserved is at least reserved_at_peak = requested_at_peak + slop_at_peak +
    fragmentation_at_peak.
    """

    allocated: int
    requested: int
    reserved: int
    peak_allocated: int
    peak_requested: int
    peak_reserved: int
    requested_at_peak: int
    reserved_at_peak: int

    def __init__(self) -> None:
        self.allocated = self.requested = self.reserved = 0
        self.reset_peaks()

    @abstractmethod
    def allocate(self, bytes: int, stream: int = 0) -> Handle:
        """Allocates memory for a tensor that a stream creates. Zero bytes take no memory but have a handle too.

        Raises ValueError if `bytes` is negative.
        """

    @abstractmethod
    def free(self, handle: Handle) -> None:
        """Frees what `allocate` of this device returned. Raises ValueError if it is not in use."""

    @abstractmethod
    def release_cached(self) -> None:
        """Returns reserved memory that is not in use to the device (torch.cuda.empty_cache)."""

    def reset_peaks(self) -> None:
        """Starts the peaks anew from what is held now (torch.cuda.reset_peak_memory_stats)."""
        self.peak_allocated = self.allocated
        self.peak_requested = self.requested_at_peak = self.requested
        self.peak_reserved = self.reserved_at_peak = self.reserved

    @property
    def slop_at_peak(self) -> int:
        """Allocated minus requested bytes when allocated first reached its peak."""
        return self.peak_allocated - self.requested_at_peak

    @property
    def fragmentation_at_peak(self) -> int:
        """Reserved minus allocated bytes when allocated first reached its peak."""
        return self.reserved_at_peak - self.peak_allocated


class ExactDevice(Device):
    """A device whose allocator wastes nothing: allocated and reserved are what tensors request."""

    def allocate(self, bytes: int, stream: int = 0) -> Handle:
        if bytes < 0:
            raise _negative(bytes)
        self.allocated = self.requested = self.reserved = total = self.allocated + bytes
        if total > self.peak_allocated:
            self.peak_allocated = self.peak_requested = self.peak_reserved = total
            self.requested_at_peak = self.reserved_at_peak = total
        return Handle(bytes, bytes)

    def free(self, handle: Handle) -> None:
        if not handle.in_use:
            raise _freed_before(handle)
        handle.in_use = False
        self.allocated = self.requested = self.reserved = self.allocated - handle.size

    def release_cached(self) -> None:
        """Does nothing, because nothing is cached."""


class Block(Handle):
    """A range of addresses in a segment: in use, free, or not mapped to memory (in an expandable segment).

    address: its first byte.
    pool: the pool that it returns to.
    before, after: the neighbours in its segment.
    mapped: False if the addresses have no memory.
    """

    __slots__ = ("address", "after", "before", "mapped", "pool")

    def __init__(self, size: int, address: int, pool: Pool, before: Block | None, after: Block | None) -> None:
        self.size = size
        self.requested = 0
        self.in_use = False
        self.address = address
        self.pool = pool
        self.before = before
        self.after = after
        self.mapped = True

    def cut(self, size: int) -> Block:
        """Keeps the first `size` bytes and returns a new block with the rest."""
        after = self.after
        rest = Block(self.size - size, self.address + size, self.pool, self, after)
        rest.mapped = self.mapped
        if after is not None:
            after.before = rest
        self.after = rest
        self.size = size
        return rest

    def absorb_after(self) -> None:
        """Takes the bytes of the next block, which then no longer exists."""
        gone = self.after
        assert gone is not None
        self.size += gone.size
        self.after = gone.after
        if gone.after is not None:
            gone.after.before = self

    def to_the_end(self) -> Iterator[Block]:
        """Yields this block and all that follow in its segment."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.after


class Pool:
    """The free blocks of one stream for small or for large requests (BlockPool).

    small: True for requests of up to `SMALL_SIZE`.
    least_rest: a block is split if at least this many bytes remain (should_split).
    page: bytes that an expandable segment grows by.
    free: (size, address, block) of each free block, sorted.
    unmapped: the blocks of the expandable segment that are not mapped, in order of address. The last is its end.
    """

    __slots__ = ("free", "least_rest", "page", "small", "stream", "unmapped")

    def __init__(self, stream: int, small: bool, expandable_segments: bool) -> None:
        self.stream = stream
        self.small = small
        # A large block is split if the rest exceeds kSmallSize. Sizes are multiples of 512 bytes.
        self.least_rest = MIN_BLOCK_SIZE if small or expandable_segments else SMALL_SIZE + MIN_BLOCK_SIZE
        self.page = SMALL_BUFFER if small else LARGE_BUFFER
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[Block] = []

    def put(self, block: Block) -> None:
        """Adds a free block."""
        insort(self.free, (block.size, block.address, block))

    def take(self, block: Block) -> None:
        """Removes a free block."""
        del self.free[bisect_left(self.free, (block.size, block.address))]


class BlockState(NamedTuple):
    """A block at one moment. address: first byte. size, requested: bytes. in_use: False if it is free."""

    address: int
    size: int
    requested: int
    in_use: bool


class SegmentState(NamedTuple):
    """A segment at one moment: stream, whether it belongs to the small pool, and blocks in order of address.

    An expandable segment is listed once for each contiguous range of memory, as in torch.cuda.memory_snapshot.
    """

    stream: int
    small: bool
    blocks: tuple[BlockState, ...]


class WitnessAllocator(Device):
    """torch's CUDA caching allocator, on a device whose memory does not run out.

    expandable_segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

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
      blocks of equal size in different segments.
    """

    def __init__(self, expandable_segments: bool = False) -> None:
        super().__init__()
        self.expandable_segments = expandable_segments
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # stream -> its pools for small and for large requests
        self._segments: dict[int, Block] = {}  # address of a segment -> its first block
        self._next_address = 0

    def like_new(self) -> WitnessAllocator:
        """An empty one with the same options."""
        return WitnessAllocator(self.expandable_segments)

    def allocate(self, bytes: int, stream: int = 0) -> Handle:
        if bytes <= 0:
            if bytes < 0:
                raise _negative(bytes)
            return Handle(0, 0)
        size = -(-bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
        pools = self._pools.get(stream)
        if pools is None:
            expandable = self.expandable_segments
            pools = self._pools[stream] = Pool(stream, True, expandable), Pool(stream, False, expandable)
        pool = pools[size > SMALL_SIZE]
        free = pool.free
        place = bisect_left(free, (size,))
        if place == len(free):
            block = self._expand(pool, size) if self.expandable_segments else self._new_segment(pool, size)
        else:
            if self.expandable_segments:
                place = _prefer_blocks_that_cannot_grow(free, place)
            block = free.pop(place)[2]
        if block.size - size >= pool.least_rest:
            pool.put(block.cut(size))
        block.requested = bytes
        block.in_use = True
        self.requested += bytes
        self.peak_requested = max(self.peak_requested, self.requested)
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
            self.requested_at_peak = self.requested
            self.reserved_at_peak = self.reserved
        return block

    def free(self, handle: Handle) -> None:
        if not handle.in_use:
            raise _freed_before(handle)
        handle.in_use = False
        if not isinstance(handle, Block):  # zero bytes
            return
        block = handle
        self.requested -= block.requested
        self.allocated -= block.size
        block.requested = 0
        pool, before, after = block.pool, block.before, block.after
        if after is not None and not after.in_use and after.mapped:
            pool.take(after)
            block.absorb_after()
        if before is not None and not before.in_use and before.mapped:
            pool.take(before)
            before.absorb_after()
            block = before
        pool.put(block)

    def release_cached(self) -> None:
        if self.expandable_segments:
            for base, first in self._segments.items():
                self._unmap_free_pages(base, first)
            return
        for base, block in list(self._segments.items()):
            if not block.in_use and block.after is None:
                block.pool.take(block)
                self.reserved -= block.size
                del self._segments[base]

    def segments(self) -> tuple[SegmentState, ...]:
        """Returns all segments and their blocks, oldest segment first (torch.cuda.memory_snapshot)."""
        found = []
        for first in self._segments.values():
            blocks: list[BlockState] = []
            for block in first.to_the_end():
                if block.mapped:
                    blocks.append(BlockState(block.address, block.size, block.requested, block.in_use))
                elif blocks:
                    found.append(SegmentState(first.pool.stream, first.pool.small, tuple(blocks)))
                    blocks = []
            if blocks:
                found.append(SegmentState(first.pool.stream, first.pool.small, tuple(blocks)))
        return tuple(found)

    def _new_segment(self, pool: Pool, size: int) -> Block:
        """Reserves a segment for a block and returns it whole, not in the pool (get_allocation_size, alloc_block)."""
        if pool.small:
            size = SMALL_BUFFER
        elif size < MIN_LARGE_ALLOC:
            size = LARGE_BUFFER
        else:
            size = -(-size // ROUND_LARGE) * ROUND_LARGE
        self._reserve(size)
        return self._add_segment(pool, size)

    def _add_segment(self, pool: Pool, size: int) -> Block:
        """Returns the only block of a new segment below all others."""
        self._next_address -= size
        block = Block(size, self._next_address, pool, None, None)
        self._segments[block.address] = block
        return block

    def _reserve(self, bytes: int) -> None:
        self.reserved += bytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _expand(self, pool: Pool, size: int) -> Block:
        """Maps pages until a free block has at least `size` bytes. Returns it, not in the pool.

        As try_allocate_expandable_block.
        """
        if not pool.unmapped:
            segment = self._add_segment(pool, ADDRESS_SPACE)
            segment.mapped = False
            pool.unmapped.append(segment)
        block = _room_to_grow(pool.unmapped, size)
        if block.mapped:
            pool.take(block)
        else:
            self._map(block, min(block.size, size))
        while True:
            after = block.after
            if after is not None and after.mapped and not after.in_use:
                pool.take(after)
            elif block.size < size:
                assert after is not None
                self._map(after, min(after.size, size - block.size))
            else:
                return block
            block.absorb_after()

    def _map(self, block: Block, size: int) -> None:
        """Maps the pages of the first `size` bytes of an unmapped block; the rest becomes a new unmapped block."""
        pool = block.pool
        pages = -(-size // pool.page) * pool.page
        place = pool.unmapped.index(block)
        pool.unmapped[place : place + 1] = [block.cut(pages)] if pages < block.size else []
        block.mapped = True
        self._reserve(pages)

    def _unmap_free_pages(self, base: int, first: Block) -> None:
        """Unmaps the pages of an expandable segment with nothing in use (unmap_block)."""
        pool = first.pool
        for block in list(first.to_the_end()):
            start = base - (base - block.address) // pool.page * pool.page
            end = base + (block.address + block.size - base) // pool.page * pool.page
            if block.in_use or not block.mapped or start >= end:
                continue
            unmapped = block.cut(start - block.address) if start > block.address else block
            if end < unmapped.address + unmapped.size:
                unmapped.cut(end - unmapped.address)
            unmapped.mapped = False
            self.reserved -= unmapped.size
        for block in first.to_the_end():
            while not block.mapped and block.after is not None and not block.after.mapped:
                block.absorb_after()
        pool.unmapped = [block for block in first.to_the_end() if not block.mapped]
        free = (block for block in first.to_the_end() if block.mapped and not block.in_use)
        pool.free = sorted((block.size, block.address, block) for block in free)


class Several:
    """Allocators that serve the same requests, so that one replay compares all of them. Each has its own figures."""

    def __init__(self, allocators: Sequence[WitnessAllocator]) -> None:
        self.allocators = allocators

    def allocate(self, bytes: int, stream: int = 0) -> list[Handle]:
        return [allocator.allocate(bytes, stream) for allocator in self.allocators]

    def free(self, handles: list[Handle]) -> None:
        for allocator, handle in zip(self.allocators, handles, strict=True):
            allocator.free(handle)


def _prefer_blocks_that_cannot_grow(free: list[tuple[int, int, Block]], place: int) -> int:
    """Returns the place of the best fit among free blocks from `place` on, all of which are large enough.

    A free block before unmapped addresses counts with these: it is passed over for the next one while that counts less.
    """
    while place + 1 < len(free):
        block, other = free[place][2], free[place + 1][2]
        if _size_if_grown(other) >= _size_if_grown(block):
            break
        place += 1
    return place


def _size_if_grown(block: Block) -> int:
    after = block.after
    return block.size if after is None or after.mapped else block.size + after.size


def _room_to_grow(unmapped: list[Block], size: int) -> Block:
    """Returns the first block of the lowest range of free and unmapped blocks that has `size` bytes.

    As find_expandable_block: a range starts at an unmapped block or at the free block before it.
    """
    for block in unmapped:
        start = block.before if block.before is not None and not block.before.in_use else block
        room = 0
        for one in start.to_the_end():
            if one.in_use or room >= size:
                break
            room += one.size
        if room >= size:
            return start
    raise MemoryError(f"{size} bytes exceed the addresses of an expandable segment, {ADDRESS_SPACE} bytes")


def _negative(bytes: int) -> ValueError:
    return ValueError(f"allocate {bytes} bytes: expected 0 or more")


def _freed_before(handle: Handle) -> ValueError:
    return ValueError(f"free {handle.requested} bytes: the handle was freed before")

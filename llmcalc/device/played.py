"""The caching allocator over events that are known beforehand.

`PlayedAllocator` follows the rules of `CachingAllocator`, with the same sums. It has no object for a block, and hands
none out, so a run is replayed in less than half of the time. It does not return memory to the device, and so an
expandable segment has one range of addresses without memory, at its end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from .allocator import LARGE_BUFFER, MIN_BLOCK_SIZE, MIN_LARGE_ALLOC, ROUND_LARGE, SMALL_BUFFER, SMALL_SIZE
from .recording import FREED, NAMED, STREAMED, TAKEN, Event

UNIT = MIN_BLOCK_SIZE.bit_length() - 1
"""Sizes and addresses are counted in blocks of 2^UNIT bytes."""

SMALL, LARGE = SMALL_SIZE >> UNIT, MIN_LARGE_ALLOC >> UNIT

BITS = 120
"""A free block is one number, its size and then its address in BITS bits, so that they are sorted as torch sorts them.
So many hold the addresses of the largest sizes that a description may have.
"""

ADDRESS = (1 << BITS) - 1

RANGE = 1 << 112
"""Addresses of one expandable segment, of which no two may meet."""


class Pool:
    """The free blocks of one stream for small or for large requests.

    free: size and address of each, sorted. least_rest: a block is split if at least so much remains.
    page: what a segment grows by, or the size of one. top: of an expandable segment, its first address without memory.
    """

    __slots__ = ("free", "least_rest", "page", "top")

    def __init__(self, small: bool, expandable: bool, start: int) -> None:
        self.free: list[int] = []
        self.least_rest = 1 if small or expandable else SMALL + 1
        self.page = (SMALL_BUFFER if small else LARGE_BUFFER) >> UNIT
        self.top = start


class PlayedAllocator:
    """torch's caching allocator, empty at first. expandable_segments and the sums: as of `CachingAllocator`."""

    def __init__(self, expandable_segments: bool = False) -> None:
        self.expandable_segments = expandable_segments
        self.allocated = self.requested = self.reserved = 0
        self.peak_allocated = self.peak_requested = self.peak_reserved = 0
        self.requested_at_peak = self.reserved_at_peak = 0
        self._pools: dict[int, tuple[Pool, Pool]] = {}
        self._starts: dict[int, int] = {}  # address of a free block -> its size
        self._ends: dict[int, int] = {}  # address after a free block -> its own
        self._next = 1
        self._stream = 0
        self._held: list[Any] = []  # of each storage, the free blocks of its pool, its address, size and bytes

    def _of_stream(self, stream: int) -> tuple[Pool, Pool]:
        found = self._pools.get(stream)
        if found is None:
            grows, start = self.expandable_segments, 2 * RANGE * len(self._pools) + 1
            found = self._pools[stream] = Pool(True, grows, start), Pool(False, grows, start + RANGE)
        return found

    def play(self, events: Iterable[Event], count: int, base: int = 0) -> None:  # noqa: PLR0915
        """Allocates and frees what events say. Storages keep their numbers from one call to the next.

        count: the numbers are below it. base: what is added to each of these events' numbers, 0 by default.
        """
        starts, ends, held = self._starts, self._ends, self._held
        held += [None] * (count - len(held))
        allocated, requested = self.allocated >> UNIT, self.requested
        most, peak_requested = self.peak_allocated >> UNIT, self.peak_requested
        expandable, (small, large) = self.expandable_segments, self._of_stream(self._stream)
        for x, size, what in events:
            if size == FREED:
                free, address, n, size = held[x + base]
                requested -= size
                allocated -= n
                end = address + n
                if end in starts:  # the block after it is free too
                    more = starts.pop(end)
                    del free[bisect_left(free, more << BITS | end)]
                    n += more
                    end += more
                if address in ends:
                    before = ends.pop(address)
                    more = address - before
                    del free[bisect_left(free, more << BITS | before)]
                    n += more
                    address = before
                if n:
                    starts[address], ends[end] = n, address
                    insort(free, n << BITS | address)
                continue
            x += base
            if size <= 0:
                if size == NAMED:
                    held[x] = held[what + base]
                elif size == STREAMED:
                    self._stream = what
                    small, large = self._of_stream(what)
                elif size == 0:
                    held[x] = small.free, 0, 0, 0
                if size != TAKEN or held[x] is not None:
                    continue
                size = what
            n = (size + MIN_BLOCK_SIZE - 1) >> UNIT
            pool = large if n > SMALL else small
            free = pool.free
            place = bisect_left(free, n << BITS)
            if place == len(free):
                address, whole = self._expand(pool, n) if expandable else self._new_segment(pool, n)
            else:
                if expandable and place + 1 < len(free) and (free[place] & ADDRESS) + (free[place] >> BITS) == pool.top:
                    place += 1  # a block that can grow counts with all that it can grow to
                found = free.pop(place)
                address, whole = found & ADDRESS, found >> BITS
                del starts[address]
            rest = whole - n
            if rest >= pool.least_rest:
                after = address + n
                starts[after], ends[after + rest] = rest, after
                insort(free, rest << BITS | after)
            else:
                n = whole
                ends.pop(address + n, None)
            held[x] = free, address, n, size
            requested += size
            if requested > peak_requested:  # noqa: PLR1730
                peak_requested = requested
            allocated += n
            if allocated > most:
                most = allocated
                self.requested_at_peak, self.reserved_at_peak = requested, self.reserved
        self.allocated, self.requested = allocated << UNIT, requested
        self.peak_allocated, self.peak_requested = most << UNIT, peak_requested

    def _new_segment(self, pool: Pool, n: int) -> tuple[int, int]:
        """Reserves a segment for a block (get_allocation_size): its address, and its size."""
        round_large = ROUND_LARGE >> UNIT
        size = pool.page if n < LARGE else -(-n // round_large) * round_large
        address = self._next
        self._next += size + 1  # blocks of two segments never touch
        self._reserve(size)
        return address, size

    def _expand(self, pool: Pool, n: int) -> tuple[int, int]:
        """Maps pages until the block before the end of a segment has that size (try_allocate_expandable_block)."""
        address = self._ends.pop(pool.top, pool.top)
        have = pool.top - address
        if have:
            del self._starts[address]
            del pool.free[bisect_left(pool.free, have << BITS | address)]
        pages = -(-(n - have) // pool.page) * pool.page
        pool.top += pages
        self._reserve(pages)
        return address, have + pages

    def _reserve(self, size: int) -> None:
        self.reserved += size << UNIT
        self.peak_reserved = max(self.peak_reserved, self.reserved)

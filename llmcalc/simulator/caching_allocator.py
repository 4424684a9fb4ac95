"""The caching allocator over steps that are known beforehand.

`PlayedAllocator` follows the rules of `CachingAllocator`, with the same sums. It has no object for a block, and hands
none out, so a run is replayed in a third of the time. It does not return memory to the device, and so an expandable
segment has one range of addresses without memory, at its end.

A block is one number: its size and then its address in BITS bits. Blocks of one pool have addresses of their own, so
that an address tells the pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from .event_log import FREED, NAMED, STREAMED, TAKEN, Event
from .online_allocator import LARGE_BUFFER, MIN_BLOCK_SIZE, MIN_LARGE_ALLOC, ROUND_LARGE, SMALL_BUFFER, SMALL_SIZE

UNIT = MIN_BLOCK_SIZE.bit_length() - 1
"""Sizes and addresses are counted in units of 2^UNIT bytes."""

SMALL, LARGE = SMALL_SIZE >> UNIT, MIN_LARGE_ALLOC >> UNIT

BITS = 136
"""Bits of an address. So many hold the addresses of the largest sizes that a description may have."""

ADDRESS = (1 << BITS) - 1

RANGE = 128
"""Bits of an address in its pool; the bits above them are the number of the pool."""

NO_BLOCK = 1 << 2 * BITS
"""Above every block: the end of each list of free blocks."""

Step: TypeAlias = tuple[int, int, int]
"""(number of a storage, its units shifted by BITS, its units) where one is allocated; (number, 0, 0) where it is freed;
(−1, −1, number of a stream) where another stream begins. Storages without bytes have no steps.
"""

Stretch: TypeAlias = tuple[list[Step], int]
"""(steps, what is added to the number of each one's storage)"""


def allocation(x: int, bytes: int) -> Step:
    """The step that allocates storage `x`, of at least one byte."""
    n = (bytes + MIN_BLOCK_SIZE - 1) >> UNIT
    return x, n << BITS, n


def release(x: int) -> Step:
    """The step that frees storage `x`."""
    return x, 0, 0


def on_stream(number: int) -> Step:
    """The step from which on storages are allocated on that stream."""
    return -1, -1, number


class Pool:
    """The free blocks of one stream for small or for large requests.

    free: them in order, and NO_BLOCK. least_rest: a block is split if at least so much remains, in small pools always.
    page: what a segment grows by, or the size of one. top: the first address that no segment has had.
    """

    __slots__ = ("free", "least_rest", "page", "top")

    def __init__(self, number: int, small: bool, expandable: bool) -> None:
        self.free = [NO_BLOCK]
        self.least_rest = 1 if small or expandable else SMALL + 1
        self.page = (SMALL_BUFFER if small else LARGE_BUFFER) >> UNIT
        self.top = (number << RANGE) + 1


class PlayedAllocator:
    """torch's caching allocator, empty at first.

    expandable_segments: as of `CachingAllocator`. allocated, reserved, peak_allocated, peak_reserved: as its sums.
    """

    def __init__(self, expandable_segments: bool = False) -> None:
        self.expandable_segments = expandable_segments
        self.allocated = self.reserved = self.peak_allocated = 0
        self._pools: dict[int, tuple[Pool, Pool]] = {}
        self._lists: list[list[int]] = []  # the free blocks of each pool
        self._starts: dict[int, int] = {}  # address of a free block -> the block
        self._ends: dict[int, int] = {}  # address after a free block -> the block
        self._stream = 0
        self._held: list[int] = []  # the block of each storage

    @property
    def peak_reserved(self) -> int:
        """The same as reserved, of which nothing is returned."""
        return self.reserved

    def _of_stream(self, stream: int) -> tuple[Pool, Pool]:
        found = self._pools.get(stream)
        if found is None:
            number, grows = len(self._lists), self.expandable_segments
            found = self._pools[stream] = Pool(number, True, grows), Pool(number + 1, False, grows)
            self._lists += [pool.free for pool in found]
        return found

    def play(self, steps: Iterable[Step], count: int, base: int = 0) -> None:  # noqa: PLR0915
        """Allocates and frees what steps say. Storages keep their numbers from one call to the next.

        count: the numbers are below it. base: what is added to each of these steps' numbers, 0 by default.
        """
        starts, ends, held, lists = self._starts, self._ends, self._held, self._lists
        held += [0] * (count - len(held))
        now, most = self.allocated >> UNIT, self.peak_allocated >> UNIT
        expandable, (small, large) = self.expandable_segments, self._of_stream(self._stream)
        small_free, large_free, large_rest = small.free, large.free, large.least_rest
        for x, size, n in steps:
            if not size:
                block = held[x + base]
                address, n = block & ADDRESS, block >> BITS
                now -= n
                end = address + n
                free = lists[address >> RANGE]
                if end in starts:  # the block after it is free too
                    other = starts.pop(end)
                    place = bisect_left(free, other)
                    block += other - end
                    end += other >> BITS
                    if address in ends:
                        del free[place]
                        other = ends.pop(address)
                        place = bisect_left(free, other)
                        block += other - address
                elif address in ends:
                    other = ends.pop(address)
                    place = bisect_left(free, other)
                    block += other - address
                else:
                    starts[address] = ends[end] = block
                    insort(free, block)
                    continue
                starts[block & ADDRESS] = ends[end] = block
                if block < free[place + 1]:
                    free[place] = block  # larger than the one whose place it takes
                else:
                    del free[place]
                    insort(free, block)
                continue
            if size < 0:
                self._stream = n
                small, large = self._of_stream(n)
                small_free, large_free = small.free, large.free
                continue
            if n > SMALL:
                free, least_rest = large_free, large_rest
            else:
                free, least_rest = small_free, 1
            place = bisect_left(free, size)
            block = free[place]
            if block == NO_BLOCK:
                block = self._grown(large if n > SMALL else small, n)
                place = bisect_left(free, block)
            elif expandable and free[place + 1] != NO_BLOCK:
                top = (large if n > SMALL else small).top
                if (block & ADDRESS) + (block >> BITS) == top:
                    place += 1  # a block that can grow counts with all that it can grow to
                    block = free[place]
            address, whole = block & ADDRESS, block >> BITS
            rest = whole - n
            now += n
            del starts[address]
            if rest >= least_rest:
                held[x + base] = size + address
                block += n - size
                starts[address + n] = ends[address + whole] = block
                if not place or free[place - 1] < block:
                    free[place] = block  # smaller than the one whose place it takes
                else:
                    del free[place]
                    insort(free, block)
            else:
                held[x + base] = block
                del free[place], ends[address + whole]
                now += rest
            if now > most:  # noqa: PLR1730
                most = now
        self.allocated, self.peak_allocated = now << UNIT, most << UNIT

    def copy(self) -> PlayedAllocator:
        """An allocator that goes on from here by itself."""
        other = PlayedAllocator(self.expandable_segments)
        other.allocated, other.reserved, other.peak_allocated = self.allocated, self.reserved, self.peak_allocated
        for stream, pools in self._pools.items():
            for own, pool in zip(other._of_stream(stream), pools, strict=True):
                own.free[:], own.top = pool.free, pool.top
        other._starts, other._ends, other._held = self._starts.copy(), self._ends.copy(), self._held.copy()
        other._stream = self._stream
        return other

    def _grown(self, pool: Pool, n: int) -> int:
        """Reserves memory for a block: a free block, which may be larger.

        In a new segment (get_allocation_size), or before the end of an expandable one (try_allocate_expandable_block).
        """
        if not self.expandable_segments:
            round_large = ROUND_LARGE >> UNIT
            more = pool.page if n < LARGE else -(-n // round_large) * round_large
            block, gap = pool.top, 1  # blocks of two segments never touch
        else:
            block, gap = self._ends.pop(pool.top, pool.top), 0
            if block >> BITS:
                del pool.free[bisect_left(pool.free, block)]
            more = -(-(n - (block >> BITS)) // pool.page) * pool.page
        block += more << BITS
        pool.top += more + gap
        self.reserved += more << UNIT
        self._starts[block & ADDRESS] = self._ends[pool.top - gap] = block
        insort(pool.free, block)
        return block


class Openings:
    """Plays runs, each on an allocator of its own, which is empty at first.

    What a run begins with is played once for it and for runs after it that begin alike: ranks of a pipeline differ in
    how many forward passes come before the first backward pass. expandable: as of `PlayedAllocator`.
    """

    def __init__(self, expandable: bool) -> None:
        self._expandable = expandable
        self._known: list[tuple[Stretch, PlayedAllocator]] = []

    def played(self, pieces: Sequence[Stretch], count: int, opening: int) -> PlayedAllocator:
        """The allocator that has played these pieces, whose storages are numbered below `count`.

        opening: how many of the pieces other runs may begin with.
        """
        alike = takewhile(lambda pair: pair[0][0] == pair[1], zip(self._known, pieces, strict=False))
        same = sum(1 for _ in alike)
        del self._known[same:]
        device = self._known[-1][1].copy() if same else PlayedAllocator(self._expandable)
        for number, (steps, base) in enumerate(pieces[same:], same):
            device.play(steps, count, base)
            if number < opening:
                self._known.append((pieces[number], device.copy()))
        return device


class Score:
    """The steps of events, which are given piece by piece, and what they request.

    count: of storages, which are numbered below it. requested, peak_requested: bytes.
    """

    def __init__(self, count: int) -> None:
        self.requested = self.peak_requested = 0
        self._bytes: list[Any] = [None] * count
        self._named: dict[Any, Any] = {}
        self._units: dict[int, Step] = {}

    def steps(self, events: Sequence[Event]) -> list[Step]:
        """The steps of the next events."""
        sizes, named, units = self._bytes, self._named, self._units
        now, most = self.requested, self.peak_requested
        steps: list[Step] = []
        append = steps.append
        x: Any
        for x, size, what in events:
            if size == FREED:
                if named:
                    x = named.get(x, x)
                bytes = sizes[x]
                if bytes:
                    append((x, 0, 0))
                    now -= bytes
                continue
            if size == TAKEN:
                if sizes[x] is not None:
                    continue
                size = what
            if size > 0:
                sizes[x] = size
                if named:
                    named.pop(x, None)
                found = units.get(size)
                if found is None:
                    found = units[size] = allocation(x, size)
                append((x, found[1], found[2]))
                now += size
                if now > most:  # noqa: PLR1730
                    most = now
            elif size == NAMED:
                named[x] = named.get(what, what)
            elif size == STREAMED:
                append(on_stream(what))
            else:
                sizes[x] = 0
        self.requested, self.peak_requested = now, most
        return steps

"""The allocators: hand-computed sequences for each rule, and random sequences against a slow second implementation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.simulator.caching_allocator import CachingAllocator, encode_allocation, encode_release
from tests.samples import in_one_test
from tests.simulator.allocator_witness import (
    ADDRESS_SPACE,
    BlockState,
    Device,
    ExactDevice,
    Handle,
    SegmentState,
    WitnessAllocator,
)

KIB, MIB = 1 << 10, 1 << 20


def filled(*requests: float, expandable_segments: bool = False) -> tuple[WitnessAllocator, list[Handle]]:
    """Returns an allocator after requests of so many MiB, and their handles."""
    allocator = WitnessAllocator(expandable_segments)
    return allocator, [allocator.allocate(int(size * MIB)) for size in requests]


def layout(allocator: WitnessAllocator) -> list[list[float]]:
    """Sizes in MiB of the blocks of each segment, those of free blocks negative."""
    return [[(b.size if b.in_use else -b.size) / MIB for b in one.blocks] for one in allocator.segments()]


# Every device


@pytest.fixture(params=["exact", "caching", "expandable"])
def device(request: pytest.FixtureRequest) -> Device:
    return {"exact": ExactDevice(), "caching": WitnessAllocator(), "expandable": WitnessAllocator(True)}[request.param]


def test_zero_bytes_take_no_memory(device: Device) -> None:
    handle = device.allocate(0)
    assert (handle.size, handle.requested) == (0, 0)
    assert (device.allocated, device.requested, device.reserved) == (0, 0, 0)
    device.free(handle)
    assert (device.allocated, device.requested, device.reserved) == (0, 0, 0)


@pytest.mark.parametrize("size", [0, 1, 3 * MIB])
def test_a_handle_is_freed_once(device: Device, size: int) -> None:
    handle = device.allocate(size)
    device.free(handle)
    with pytest.raises(ValueError, match=r"^free \d+ bytes: the handle was freed before$"):
        device.free(handle)
    assert (device.allocated, device.requested) == (0, 0)


def test_negative_bytes(device: Device) -> None:
    with pytest.raises(ValueError, match=r"^allocate -1 bytes: expected 0 or more$"):
        device.allocate(-1)
    assert (device.allocated, device.requested) == (0, 0)


def test_peaks_and_their_reset(device: Device) -> None:
    """1,024 + 2,048 bytes at once, then 1,024 and a reset, then 1,024 + 512."""
    first, second = device.allocate(1024), device.allocate(2048)
    device.free(second)
    assert (device.allocated, device.peak_allocated) == (1024, 3072)
    assert (device.requested, device.peak_requested) == (1024, 3072)
    device.release_cached()
    device.reset_peaks()
    assert (device.peak_allocated, device.peak_requested, device.peak_reserved) == (1024, 1024, device.reserved)
    assert (device.requested_at_peak, device.reserved_at_peak) == (1024, device.reserved)
    device.allocate(512)
    device.free(first)
    assert (device.allocated, device.requested) == (512, 512)
    assert (device.peak_allocated, device.peak_requested, device.requested_at_peak) == (1536, 1536, 1536)


def test_exact_device_neither_rounds_nor_reserves() -> None:
    """100 + 7 bytes; then the 100 are freed."""
    device = ExactDevice()
    first, second = device.allocate(100), device.allocate(7, stream=3)
    assert (first.size, first.requested, second.size) == (100, 100, 7)
    device.free(first)
    device.release_cached()
    assert (device.allocated, device.requested, device.reserved) == (7, 7, 7)
    assert (device.peak_allocated, device.peak_requested, device.peak_reserved) == (107, 107, 107)
    assert (device.requested_at_peak, device.slop_at_peak, device.fragmentation_at_peak) == (107, 0, 0)


# Sizes of blocks and segments


@in_one_test
@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB + 1, MIB + 512)])
@pytest.mark.parametrize("expandable_segments", [False, True])
def test_sizes_are_rounded_to_512_bytes(size: int, block: int, expandable_segments: bool) -> None:
    allocator = WitnessAllocator(expandable_segments)
    handle = allocator.allocate(size)
    assert (handle.size, handle.requested) == (block, size)
    assert (allocator.allocated, allocator.requested) == (block, size)
    assert allocator.slop_at_peak == block - size


@in_one_test
@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),  # rounded to a block of 10 MiB first
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (12 * MIB, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_size_of_a_new_segment(size: int, segment: int) -> None:
    allocator = WitnessAllocator()
    handle = allocator.allocate(size)
    assert allocator.reserved == allocator.peak_reserved == segment
    allocator.free(handle)
    assert (allocator.reserved, layout(allocator)) == (segment, [[-segment / MIB]])


def test_small_and_large_requests_share_no_segment() -> None:
    """The second MiB fills the small segment of 2 MiB; 2 and 18 MiB fill a large segment of 20 MiB."""
    allocator, _ = filled(1, 2, 1, 18)
    assert layout(allocator) == [[1, 1], [2, 18]]
    assert [one.small for one in allocator.segments()] == [True, False]


def test_a_small_request_takes_no_large_block() -> None:
    allocator, [large] = filled(2)
    allocator.free(large)
    allocator.allocate(MIB)
    assert layout(allocator) == [[-20], [1, -1]]


def test_snapshot() -> None:
    """700 and 600 bytes in blocks of 1,024, on stream 7. The segment of 2,097,152 bytes has 2,095,104 left.

    Segments are laid out downwards from address 0.
    """
    start = -2097152
    allocator = WitnessAllocator()
    first = allocator.allocate(700, stream=7)
    second = allocator.allocate(600, stream=7)
    allocator.free(first)
    used, rest = BlockState(start + 1024, 1024, 600, True), BlockState(start + 2048, 2095104, 0, False)
    assert allocator.segments() == (SegmentState(7, True, (BlockState(start, 1024, 0, False), used, rest)),)
    allocator.free(second)
    assert allocator.segments() == (SegmentState(7, True, (BlockState(start, 2097152, 0, False),)),)


# Splitting


def test_a_small_block_is_split_if_512_bytes_remain() -> None:
    """1 KiB before a block in use is freed. 512 bytes take its first half, 512 more its second."""
    allocator, [first, _] = filled(1 / KIB, 1 / KIB)
    allocator.free(first)
    allocator.allocate(512)
    assert layout(allocator) == [[0.5 / KIB, -0.5 / KIB, 1 / KIB, -2 + 2 / KIB]]
    allocator.allocate(512)
    assert layout(allocator) == [[0.5 / KIB, 0.5 / KIB, 1 / KIB, -2 + 2 / KIB]]


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (19 * MIB, 20 * MIB),  # 1 MiB would remain
        (19 * MIB - 511, 20 * MIB),  # rounded: the same
        (19 * MIB - 512, 19 * MIB - 512),
        (2 * MIB, 2 * MIB),
    ],
)
def test_a_large_block_is_split_if_more_than_1_mib_remains(size: int, block: int) -> None:
    allocator, [whole] = filled(20)
    allocator.free(whole)
    assert allocator.allocate(size).size == block
    assert (allocator.allocated, allocator.requested, allocator.reserved) == (block, size, 20 * MIB)
    rest = [] if block == 20 * MIB else [(block - 20 * MIB) / MIB]
    assert layout(allocator) == [[block / MIB, *rest]]


def test_a_new_large_segment_is_split_by_the_same_rule() -> None:
    """11 MiB of 12 MiB: 1 MiB would remain. 3 MiB of 20 MiB: 17 MiB remain."""
    allocator, _ = filled(11, 3)
    assert layout(allocator) == [[12], [3, -17]]


@pytest.mark.parametrize(("size", "rest"), [(20 * MIB, []), (20 * MIB - 512, [-512 / MIB])])
def test_a_large_block_of_an_expandable_segment_is_split_if_512_bytes_remain(size: int, rest: list[float]) -> None:
    allocator = WitnessAllocator(expandable_segments=True)
    allocator.allocate(size)
    assert layout(allocator) == [[size / MIB, *rest]]


# Best fit


@pytest.mark.parametrize("expandable_segments", [False, True])
def test_the_smallest_block_that_fits_is_chosen(expandable_segments: bool) -> None:
    """6, 3 and 5 MiB are freed between blocks of 1.5 MiB. A request of 3.5 MiB takes the 5 MiB."""
    allocator, handles = filled(6, 1.5, 3, 1.5, 5, 1.5, expandable_segments=expandable_segments)
    for handle in handles[::2]:
        allocator.free(handle)
    allocator.allocate(int(3.5 * MIB))
    assert layout(allocator) == [[-6, 1.5, -3, 1.5, 3.5, -1.5, 1.5, -1.5]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_lowest_address_is_chosen_among_equal_sizes(order: tuple[int, ...]) -> None:
    """The newest segment has the lowest addresses."""
    allocator, handles = filled(12, 12, 12)
    for which in order:
        allocator.free(handles[which])
    allocator.allocate(12 * MIB)
    assert layout(allocator) == [[-12], [-12], [12]]


@pytest.mark.parametrize("expandable_segments", [False, True])
def test_a_free_block_serves_its_own_stream_only(expandable_segments: bool) -> None:
    """Stream 1 reserves 20 MiB of its own though 20 MiB of stream 0 are free; stream 0 then uses them."""
    allocator, [first] = filled(20, expandable_segments=expandable_segments)
    allocator.free(first)
    allocator.allocate(20 * MIB, stream=1)
    assert (layout(allocator), allocator.reserved) == ([[-20], [20]], 40 * MIB)
    allocator.allocate(20 * MIB)
    assert (layout(allocator), allocator.reserved) == ([[20], [20]], 40 * MIB)
    assert [one.stream for one in allocator.segments()] == [0, 1]


# Merging


@in_one_test
@pytest.mark.parametrize("expandable_segments", [False, True])
@pytest.mark.parametrize(
    ("order", "layouts"),
    [
        ((0, 1, 2), ([-4, 5, 6, -5], [-9, 6, -5], [-20])),
        ((1, 0, 2), ([4, -5, 6, -5], [-9, 6, -5], [-20])),
        ((2, 1, 0), ([4, 5, -11], [4, -16], [-20])),
        ((0, 2, 1), ([-4, 5, 6, -5], [-4, 5, -11], [-20])),
    ],
)
def test_free_neighbours_merge(
    order: tuple[int, ...], layouts: tuple[list[float], ...], expandable_segments: bool
) -> None:
    """4, 5 and 6 MiB of 20 MiB, freed in several orders; in the end all 20 MiB serve one request."""
    allocator, handles = filled(4, 5, 6, expandable_segments=expandable_segments)
    for which, expected in zip(order, layouts, strict=True):
        allocator.free(handles[which])
        assert layout(allocator) == [expected]
    allocator.allocate(20 * MIB)
    assert layout(allocator) == [[20]]


def test_segments_do_not_merge() -> None:
    """Two free segments of 10 MiB are not a block of 20 MiB."""
    allocator, handles = filled(10, 10)
    for handle in handles:
        allocator.free(handle)
    allocator.allocate(20 * MIB)
    assert layout(allocator) == [[-10], [-10], [20]]


# Expandable segments


@in_one_test
@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB, 20 * MIB),
        (20 * MIB, 20 * MIB),
        (20 * MIB + 1, 40 * MIB),
        (101 * MIB, 120 * MIB),
    ],
)
def test_an_expandable_segment_grows_by_pages(size: int, reserved: int) -> None:
    allocator = WitnessAllocator(expandable_segments=True)
    allocator.allocate(size)
    assert allocator.reserved == allocator.peak_reserved == reserved


def test_growing_starts_in_the_free_block_at_the_end() -> None:
    """24 MiB are the 8 MiB left of the first page, and 16 MiB of the next."""
    allocator, _ = filled(12, 24, expandable_segments=True)
    assert (layout(allocator), allocator.reserved) == ([[12, 24, -4]], 40 * MIB)


def test_growing_starts_behind_a_block_in_use() -> None:
    allocator, _ = filled(20, 5, expandable_segments=True)
    assert (layout(allocator), allocator.reserved) == ([[20, 5, -15]], 40 * MIB)


def test_one_expandable_segment_for_each_pool_and_stream() -> None:
    """Small: 3 MiB in two pages of 2 MiB. Large: 24 MiB in two pages of 20 MiB on stream 0, 12 MiB on stream 1."""
    allocator, _ = filled(1, 12, 1, 12, 1, expandable_segments=True)
    allocator.allocate(12 * MIB, stream=1)
    assert layout(allocator) == [[1, 1, 1, -1], [12, 12, -16], [12, -8]]
    assert [(one.stream, one.small) for one in allocator.segments()] == [(0, True), (0, False), (1, False)]
    assert allocator.reserved == (4 + 40 + 20) * MIB


def test_the_free_block_at_the_end_is_chosen_last() -> None:
    """Free: 12 MiB, and 6 MiB at the end. 4 MiB take the larger block, 10 MiB more grow the end by a page."""
    allocator, [first, _] = filled(12, 2, expandable_segments=True)
    allocator.free(first)
    allocator.allocate(4 * MIB)
    assert layout(allocator) == [[4, -8, 2, -6]]
    allocator.allocate(10 * MIB)
    assert layout(allocator) == [[4, -8, 2, 10, -16]]


def test_the_free_block_at_the_end_is_chosen_if_no_other_fits() -> None:
    """Free: 3 MiB, and 15 MiB at the end."""
    allocator, [first, _] = filled(3, 2, expandable_segments=True)
    allocator.free(first)
    allocator.allocate(4 * MIB)
    assert (layout(allocator), allocator.reserved) == ([[-3, 2, 4, -11]], 20 * MIB)


# Returning cached memory


def test_segments_with_nothing_in_use_are_returned() -> None:
    """Segments of 12, 20 and 2 MiB. 5 MiB in the segment of 20 MiB stay in use, and so it stays reserved."""
    allocator, [large, first, _, small] = filled(12, 4, 5, 1)
    for handle in (large, first, small):
        allocator.free(handle)
    assert allocator.reserved == 34 * MIB
    allocator.release_cached()
    assert (layout(allocator), allocator.allocated, allocator.reserved) == ([[-4, 5, -11]], 5 * MIB, 20 * MIB)
    allocator.allocate(MIB)
    assert (layout(allocator), allocator.reserved) == ([[-4, 5, -11], [1, -1]], 22 * MIB)
    assert allocator.peak_reserved == 34 * MIB


def test_pages_with_nothing_in_use_are_returned() -> None:
    """25, 10 and 5 MiB fill two pages. Without the 25 and the 5, the 10 MiB hold the second page, from 20 to 40 MiB.

    Then 18 MiB grow the segment at its beginning, since these 20 MiB are the lowest that are not mapped.
    """
    allocator, [first, _, last] = filled(25, 10, 5, expandable_segments=True)
    allocator.free(first)
    allocator.free(last)
    allocator.release_cached()
    assert (layout(allocator), allocator.reserved, allocator.peak_reserved) == ([[-5, 10, -5]], 20 * MIB, 40 * MIB)
    allocator.allocate(18 * MIB)
    assert (layout(allocator), allocator.reserved) == ([[18, -7, 10, -5]], 40 * MIB)


def test_an_empty_expandable_segment_is_returned() -> None:
    allocator, [only] = filled(30, expandable_segments=True)
    allocator.free(only)
    allocator.release_cached()
    assert (layout(allocator), allocator.reserved) == ([], 0)
    allocator.allocate(30 * MIB)
    assert (layout(allocator), allocator.reserved) == ([[30, -10]], 40 * MIB)


@pytest.fixture
def with_gap() -> WitnessAllocator:
    """An allocator with four pages of which the second, from 20 to 40 MiB, is not mapped.

    In use up to 15 MiB, then free: 15 to 20 and 40 to 42 MiB around the gap, 52 to 59 MiB, and 60.5 to 80 MiB.
    """
    allocator, [_, second, _, fourth, _] = filled(15, 27, 10, 7, 1.5, expandable_segments=True)
    allocator.free(second)
    allocator.free(fourth)
    allocator.release_cached()
    assert layout(allocator) == [[15, -5], [-2, 10, -7, 1.5, -19.5]]
    assert allocator.reserved == 60 * MIB
    return allocator


def test_a_free_block_before_a_gap_counts_with_the_gap(with_gap: WitnessAllocator) -> None:
    """Of 5 + 20 MiB and 7 MiB, the 7 MiB are the better fit for 4 MiB; then the 25 MiB, for the end is endless."""
    with_gap.allocate(4 * MIB)
    assert layout(with_gap) == [[15, -5], [-2, 10, 4, -3, 1.5, -19.5]]
    with_gap.allocate(4 * MIB)
    assert layout(with_gap) == [[15, 4, -1], [-2, 10, 4, -3, 1.5, -19.5]]


@pytest.mark.parametrize(("other", "layouts"), [(30, [[15, 4, -1], [3, -30, 7]]), (22, [[15, -5], [3, 4, -18, 15]])])
def test_a_gap_counts_with_its_size(other: int, layouts: list[list[float]]) -> None:
    """4 MiB: a free block of 5 MiB before a gap of 20 MiB is a better fit than 30 MiB, and a worse one than 22 MiB."""
    allocator, [_, second, _, large, _] = filled(15, 25, 3, other, 37 - other, expandable_segments=True)
    allocator.free(second)
    allocator.release_cached()
    allocator.free(large)
    allocator.allocate(4 * MIB)
    assert layout(allocator) == layouts


def test_neighbouring_gaps_are_one() -> None:
    """4 MiB: a free block of 5 MiB before gaps of 20 and 20 MiB is a worse fit than 30 MiB."""
    allocator, [_, second, third, _, large, _] = filled(15, 25, 20, 1.5, 30, 8.5, expandable_segments=True)
    for handle in (second, third):
        allocator.free(handle)
        allocator.release_cached()
    allocator.free(large)
    assert layout(allocator) == [[15, -5], [1.5, -30, 8.5]]
    allocator.allocate(4 * MIB)
    assert layout(allocator) == [[15, -5], [1.5, 4, -26, 8.5]]


def test_growing_fills_two_gaps() -> None:
    """Pages 2 and 4 of 5 are not mapped, page 3 is free; 50 MiB from the second on."""
    allocator, [_, second, third, fourth, _] = filled(20, 20, 20, 20, 20, expandable_segments=True)
    allocator.free(second)
    allocator.free(fourth)
    allocator.release_cached()
    allocator.free(third)
    assert layout(allocator) == [[20], [-20], [20]]
    allocator.allocate(50 * MIB)
    assert (layout(allocator), allocator.reserved) == ([[20, 50, -10, 20]], 100 * MIB)


def test_a_free_block_does_not_merge_with_a_gap() -> None:
    """Three pages. The first and the third are returned, then the block of the second is freed."""
    allocator, [first, second, third] = filled(20, 20, 20, expandable_segments=True)
    allocator.free(first)
    allocator.free(third)
    allocator.release_cached()
    allocator.free(second)
    assert (layout(allocator), allocator.reserved) == ([[-20]], 20 * MIB)


def test_growing_fills_the_lowest_gap_with_enough_room(with_gap: WitnessAllocator) -> None:
    """27 MiB are 5 free, 20 not mapped and 2 free."""
    with_gap.allocate(27 * MIB)
    assert (layout(with_gap), with_gap.reserved) == ([[15, 27, 10, -7, 1.5, -19.5]], 80 * MIB)


def test_growing_passes_over_a_gap_without_enough_room(with_gap: WitnessAllocator) -> None:
    """28 MiB are the 19.5 MiB at the end and 8.5 MiB of a new page."""
    with_gap.allocate(28 * MIB)
    assert (layout(with_gap), with_gap.reserved) == ([[15, -5], [-2, 10, -7, 1.5, 28, -11.5]], 80 * MIB)


# What explains reserved bytes


def test_slop_and_fragmentation_at_the_peak() -> None:
    """11 MiB in 12 MiB, and 3 MiB + 1 byte in 20 MiB. Then 17 MiB in 18 MiB, in place of the 11 MiB."""
    allocator = WitnessAllocator()
    first, second = allocator.allocate(11 * MIB), allocator.allocate(3 * MIB + 1)
    assert allocator.peak_allocated == 12 * MIB + (3 * MIB + 512)
    assert allocator.slop_at_peak == MIB + 511
    assert allocator.fragmentation_at_peak == (12 + 20) * MIB - allocator.peak_allocated == 17 * MIB - 512
    allocator.free(first)
    third = allocator.allocate(17 * MIB)
    assert allocator.peak_allocated == 18 * MIB + (3 * MIB + 512)
    assert allocator.slop_at_peak == MIB + 511
    assert allocator.fragmentation_at_peak == (12 + 20 + 18) * MIB - allocator.peak_allocated == 29 * MIB - 512
    allocator.free(second)
    allocator.free(third)
    allocator.allocate(1)
    assert (allocator.requested_at_peak, allocator.reserved_at_peak) == (20 * MIB + 1, 50 * MIB)
    assert (allocator.peak_requested, allocator.peak_reserved) == (20 * MIB + 1, 52 * MIB)


def test_reserved_at_peak_can_be_below_the_peak_of_reserved() -> None:
    """4 MiB in 20 MiB and 20 MiB in 20 MiB, freed and returned; then 30 MiB in 30 MiB."""
    allocator, handles = filled(4, 20)
    for handle in handles:
        allocator.free(handle)
    allocator.release_cached()
    allocator.allocate(30 * MIB)
    assert (allocator.peak_allocated, allocator.reserved_at_peak, allocator.peak_reserved) == (
        30 * MIB,
        30 * MIB,
        40 * MIB,
    )
    assert allocator.fragmentation_at_peak == 0


def test_requested_at_peak_is_that_of_the_first_time() -> None:
    """512 bytes are allocated for 1 byte, then for 300."""
    allocator = WitnessAllocator()
    allocator.free(allocator.allocate(1))
    allocator.allocate(300)
    assert (allocator.peak_allocated, allocator.requested_at_peak, allocator.peak_requested) == (512, 1, 300)


# A second implementation: it knows the ranges in use alone, and derives what is free from them at each request.


@dataclass
class Range:
    """Addresses from `start` to `end`, which is not included."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass
class SlowSegment:
    """A segment of pages: one page of its own size, or many in an expandable segment.

    mapped: numbers of the pages that have memory.
    used: address of a block in use → its size and the bytes requested.
    """

    stream: int
    small: bool
    base: int
    page: int
    mapped: set[int]
    used: dict[int, tuple[int, int]] = field(default_factory=dict)

    def ranges(self) -> list[Range]:
        """Contiguous ranges with memory."""
        found: list[Range] = []
        for number in sorted(self.mapped):
            start = self.base + number * self.page
            if found and found[-1].end == start:
                found[-1].end += self.page
            else:
                found.append(Range(start, start + self.page))
        return found

    def blocks(self, whole: Range) -> list[BlockState]:
        """All blocks of a contiguous range. What lies between two blocks in use is one free block."""
        found = []
        at = whole.start
        for address, (size, requested) in [*sorted(self.used.items()), (whole.end, (0, 0))]:
            if not whole.start <= address <= whole.end:
                continue
            if at < address:
                found.append(BlockState(at, address - at, 0, False))
            if size:
                found.append(BlockState(address, size, requested, True))
            at = address + size
        return found

    def free_ranges(self) -> list[Range]:
        blocks = [block for whole in self.ranges() for block in self.blocks(whole)]
        return [Range(block.address, block.address + block.size) for block in blocks if not block.in_use]

    def next_page(self, address: int) -> int:
        """The lowest address from this one on at which a page has memory, or the end of the segment's addresses."""
        return min([whole.start for whole in self.ranges() if whole.start >= address] + [self.base + ADDRESS_SPACE])

    def next_used(self, address: int) -> int:
        """The lowest address from this one on that is in use, or the end of the segment's addresses."""
        return min([used for used in self.used if used >= address] + [self.base + ADDRESS_SPACE])


class SlowAllocator:
    """The same allocator by scanning address ranges."""

    def __init__(self, expandable: bool) -> None:
        self.expandable = expandable
        self.segments: list[SlowSegment] = []
        self.next_base = 0

    @property
    def reserved(self) -> int:
        return sum(len(one.mapped) * one.page for one in self.segments)

    @property
    def allocated(self) -> int:
        return sum(size for one in self.segments for size, _ in one.used.values())

    @property
    def requested(self) -> int:
        return sum(requested for one in self.segments for _, requested in one.used.values())

    def snapshot(self) -> list[SegmentState]:
        return [
            SegmentState(one.stream, one.small, tuple(one.blocks(whole)))
            for one in self.segments
            for whole in one.ranges()
        ]

    def new_segment(self, stream: int, small: bool, page: int, addresses: int) -> SlowSegment:
        self.next_base -= addresses
        segment = SlowSegment(stream, small, self.next_base, page, set())
        self.segments.append(segment)
        return segment

    def grown(self, segment: SlowSegment, free: Range) -> int:
        """Size of a free range with the addresses without memory behind it, if these can be mapped."""
        at_an_end = free.end in [whole.end for whole in segment.ranges()]
        return segment.next_page(free.end) - free.start if self.expandable and at_an_end else free.size

    def allocate(self, requested: int, stream: int) -> tuple[SlowSegment, int]:
        size = (requested + 511) // 512 * 512
        small = size <= MIB
        pool = [one for one in self.segments if (one.stream, one.small) == (stream, small)]
        fits = [(free.size, free.start, one) for one in pool for free in one.free_ranges() if free.size >= size]
        fits.sort(key=lambda fit: fit[:2])
        as_grown = [self.grown(one, Range(start, start + free)) for free, start, one in fits]
        if fits:
            chosen = next(i for i in range(len(fits)) if i + 1 == len(fits) or as_grown[i] <= as_grown[i + 1])
            _, start, segment = fits[chosen]
        elif self.expandable:
            page = 2 * MIB if small else 20 * MIB
            segment = pool[0] if pool else self.new_segment(stream, small, page, ADDRESS_SPACE)
            start = self.expand(segment, size)
        else:
            page = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            segment = self.new_segment(stream, small, page, page)
            segment.mapped = {0}
            start = segment.base
        [whole] = [free.size for free in segment.free_ranges() if free.start == start]
        split = whole - size >= 512 if small or self.expandable else whole - size > MIB
        segment.used[start] = (size if split else whole, requested)
        return segment, start

    def expand(self, segment: SlowSegment, size: int) -> int:
        """Maps all pages of the lowest addresses that suffice; they begin with a page or with free bytes before it."""
        page, base = segment.page, segment.base
        frees = {free.end: free.start for free in segment.free_ranges()}
        for number in range(max(segment.mapped, default=-1) + 2):
            if number in segment.mapped or number - 1 not in segment.mapped | {-1}:
                continue
            start = frees.get(base + number * page, base + number * page)
            if segment.next_used(start) - start >= size:
                segment.mapped |= set(range((start - base) // page, (start + size - base + page - 1) // page))
                return start
        raise AssertionError

    def release_cached(self) -> None:
        for one in self.segments:
            for number in list(one.mapped):
                page = Range(one.base + number * one.page, one.base + (number + 1) * one.page)
                if not any(a < page.end and page.start < a + size for a, (size, _) in one.used.items()):
                    one.mapped.remove(number)
        if not self.expandable:
            self.segments = [one for one in self.segments if one.mapped]


def check_invariants(allocator: WitnessAllocator) -> None:
    """Segments do not overlap, blocks fill their segment, no two free neighbours; the sums are those of the blocks."""
    segments = allocator.segments()
    for before, after in pairwise(sorted(segments, key=lambda one: one.blocks[0].address)):
        assert before.blocks[-1].address + before.blocks[-1].size <= after.blocks[0].address
    for one in segments:
        for left, right in pairwise(one.blocks):
            assert left.address + left.size == right.address
            assert left.in_use or right.in_use
    blocks = [block for one in segments for block in one.blocks]
    assert all(block.size > 0 and block.size % 512 == 0 and block.size >= block.requested for block in blocks)
    assert allocator.reserved == sum(block.size for block in blocks)
    assert allocator.allocated == sum(block.size for block in blocks if block.in_use)
    assert allocator.requested == sum(block.requested for block in blocks)
    assert allocator.requested <= allocator.allocated <= allocator.reserved


NEAR_A_RULE = [512, 513, 1024, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 19 * MIB - 512, 20 * MIB, 20 * MIB + 1]
REQUESTS = st.one_of(
    st.sampled_from(NEAR_A_RULE),
    st.integers(1, 16).map(lambda n: n * MIB),
    st.integers(1, 3 * MIB),
    st.integers(1, 64 * MIB),
)
ALLOCATE = st.tuples(st.just("allocate"), REQUESTS, st.sampled_from([0, 0, 0, 1, 7]))
FREE = st.tuples(st.just("free"), st.integers(0, 1 << 16), st.just(0))
RELEASE = st.tuples(st.just("release"), st.just(0), st.just(0))
STEPS = st.lists(st.one_of(ALLOCATE, ALLOCATE, ALLOCATE, FREE, FREE, FREE, RELEASE), min_size=20, max_size=80)


@pytest.mark.parametrize("expandable", [False, True])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(STEPS)
def test_random_sequences(expandable: bool, steps: list[tuple[str, int, int]]) -> None:
    """All blocks of all segments are those of the slow implementation after every step."""
    fast, slow = WitnessAllocator(expandable), SlowAllocator(expandable)
    alive: list[tuple[Handle, SlowSegment, int]] = []
    peaks = [0, 0, 0]
    for what, number, stream in steps:
        if what == "allocate":
            alive.append((fast.allocate(number, stream), *slow.allocate(number, stream)))
            handle, segment, address = alive[-1]
            assert (handle.size, handle.requested) == segment.used[address]
        elif what == "release":
            fast.release_cached()
            slow.release_cached()
        elif alive:
            handle, segment, address = alive.pop(number % len(alive))
            fast.free(handle)
            del segment.used[address]
        assert (fast.allocated, fast.requested, fast.reserved) == (slow.allocated, slow.requested, slow.reserved)
        assert list(fast.segments()) == slow.snapshot()
        check_invariants(fast)
        peaks = [*map(max, peaks, (slow.allocated, slow.requested, slow.reserved))]
    assert [fast.peak_allocated, fast.peak_requested, fast.peak_reserved] == peaks
    for handle, _, _ in alive:
        fast.free(handle)
        check_invariants(fast)
    assert (fast.allocated, fast.requested) == (0, 0)
    fast.release_cached()
    assert (fast.reserved, fast.segments()) == (0, ())


def test_layers_that_take_turns_with_two_blocks_are_not_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer frees the output of the previous one; the allocator ends as if every layer had run."""
    layer = [encode_allocation(100, 3 * MIB), encode_allocation(1, 2 * MIB), encode_release(0), encode_release(100)]
    run_count = 0
    run_steps = CachingAllocator.run_steps

    def count_run(self: CachingAllocator, *arguments: Any) -> None:
        nonlocal run_count
        run_count += 1
        run_steps(self, *arguments)

    allocators = CachingAllocator(), CachingAllocator()
    for allocator in allocators:
        allocator.run_steps([encode_allocation(0, 2 * MIB)], 200)
    for layer_index in range(40):
        allocators[0].run_steps(layer, 200, layer_index)
    monkeypatch.setattr(CachingAllocator, "run_steps", count_run)
    allocators[1].run_repeats(layer, 200, range(40))
    assert run_count < 10
    for allocator in allocators:
        allocator.run_steps([encode_release(40), encode_allocation(199, 40 * MIB)], 200)
    first, second = (
        (allocator.allocated, allocator.peak_allocated, allocator.reserved, [pool.starts for pool in allocator._pools])
        for allocator in allocators
    )
    assert first == second

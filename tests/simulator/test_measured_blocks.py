"""The rules of torch's caching allocator against every event of runs on an H100 (tests/data/gpu/h100)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmcalc.simulator.caching_allocator import CachingAllocator, encode_allocation, encode_release
from tests.simulator.allocator_witness import Block, Handle, Pool, WitnessAllocator

EVENTS = Path(__file__).parents[1] / "data" / "gpu" / "h100" / "allocator.jsonl.gz"

RUNS = range(6)


@cache
def runs() -> list[dict[str, Any]]:
    """Runs with their `events`: (+ for an allocation, - for a free block, S for a new segment; bytes; address)."""
    with gzip.open(EVENTS, "rt") as lines:
        return [json.loads(line) for line in lines]


class OnDevice(WitnessAllocator):
    """The allocator with the driver's addresses of new segments."""

    def __init__(self, addresses: Iterator[int]) -> None:
        super().__init__()
        self._addresses = addresses

    def _add_segment(self, pool: Pool, size: int) -> Block:
        self._next_address = next(self._addresses) + size
        return super()._add_segment(pool, size)


@pytest.mark.parametrize("run", RUNS)
def test_every_block_has_the_address_that_torch_chose(run: int) -> None:
    events = runs()[run]["events"]
    allocator = OnDevice(address for event, _, address in events if event == "S")
    blocks: dict[int, Handle] = {}
    for event, bytes, address in events:
        if event == "+":
            block = allocator.allocate(bytes)
            assert isinstance(block, Block)
            assert block.address == address
            blocks[address] = block
        elif event == "-" and address in blocks:
            allocator.free(blocks.pop(address))
    assert allocator.reserved == runs()[run]["reserved_bytes"]


@pytest.mark.parametrize("run", RUNS)
def test_segments_are_reserved_as_torch_reserved_them(run: int) -> None:
    """After each allocation; the addresses of segments are those of the package."""
    allocator, numbers = CachingAllocator(), dict[int, int]()
    reserved = count = 0
    for event, bytes, address in runs()[run]["events"]:
        if event == "S":
            reserved += bytes
        elif event == "+":
            allocator.run_steps([encode_allocation(count, bytes)], count + 1)
            numbers[address], count = count, count + 1
            assert allocator.reserved == reserved
        elif address in numbers:
            allocator.run_steps([encode_release(numbers.pop(address))], count)
    assert allocator.reserved == runs()[run]["reserved_bytes"]

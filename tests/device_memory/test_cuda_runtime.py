"""The properties of a GPU by which kernels take temporary memory."""

from __future__ import annotations

from llmcalc.device_memory.cuda_runtime import HOPPER, runtime_of
from llmcalc.simulator.reductions import scratch_bytes
from llmcalc.sources.hardware import load_hardware


def test_multiprocessors_are_those_of_the_accelerator() -> None:
    assert runtime_of(None).multiprocessors == HOPPER.multiprocessors == 132
    assert runtime_of(load_hardware("a100-80gb")).multiprocessors == 108


def test_a_sum_is_divided_among_the_blocks_that_run_at_once() -> None:
    """4096 outputs in vectors of 4: 32 columns of blocks of 32 × 4 threads, of which a multiprocessor runs 16."""
    blocks = {units: -(-units * 16 // 32) for units in (132, 108, 40)}
    assert blocks == {132: 66, 108: 54, 40: 20}
    for units, number in blocks.items():
        partial_sums = 4 * 4096 * number * 32 * 4  # a block has its own for each of its vectors' elements
        assert scratch_bytes(4096, 8000, units) == (partial_sums, 4 * 32)

"""The properties of a GPU by which kernels take temporary memory."""

from __future__ import annotations

import json
from pathlib import Path

from llmcalc.device_memory.cuda_runtime import HOPPER_RUNTIME, cuda_runtime_of
from llmcalc.simulator.reductions import scratch_bytes
from llmcalc.sources.hardware import load_hardware


def test_multiprocessors_are_those_of_the_accelerator() -> None:
    assert cuda_runtime_of(None).multiprocessors == HOPPER_RUNTIME.multiprocessors == 132
    assert cuda_runtime_of(load_hardware("a100-80gb")).multiprocessors == 108


def test_a_sum_is_divided_among_the_blocks_that_run_at_once() -> None:
    """4096 outputs in vectors of 4: 32 columns of blocks of 32 × 4 threads, of which a multiprocessor runs 16."""
    blocks = {units: -(-units * 16 // 32) for units in (132, 108, 40)}
    assert blocks == {132: 66, 108: 54, 40: 20}
    for units, number in blocks.items():
        partial_sums = 4 * 4096 * number * 32 * 4  # a block has its own for each of its vectors' elements
        assert scratch_bytes(4096, 8000, units) == (partial_sums, 4 * 32)


MEASURED = Path(__file__).parents[1] / "data" / "gpu"


def test_contexts_are_near_what_processes_used_outside_torch() -> None:
    rows = [json.loads(line) for line in (MEASURED / "contexts.jsonl").read_text().splitlines()]
    for row in rows:
        outside = (row["in_use_gib"] - row["allocated_gib"]) * 2**30 - row["unallocated_mib"] * 2**20
        assert abs(cuda_runtime_of(load_hardware(row["gpu"])).context_bytes / outside - 1) < 0.3, row
    assert len(rows) > 10


def test_the_context_of_an_h200_is_near_the_measured_one() -> None:
    runs = [json.loads(line) for line in (MEASURED / "h200" / "transformers.jsonl").read_text().splitlines()]
    context = cuda_runtime_of(load_hardware("h200")).context_bytes
    assert context == cuda_runtime_of(None).context_bytes == HOPPER_RUNTIME.context_bytes
    assert all(abs(context / run["outside_bytes"] - 1) < 0.04 for run in runs)


def test_an_accelerators_file_may_state_its_context() -> None:
    h100 = load_hardware("h100-sxm")
    assert cuda_runtime_of(h100.model_copy(update={"context_bytes": 2**30})).context_bytes == 2**30
    assert (
        cuda_runtime_of(load_hardware("b300")).context_bytes == cuda_runtime_of(load_hardware("b200")).context_bytes
    )  # of capability 10
    assert (
        cuda_runtime_of(h100.model_copy(update={"compute_capability": "6.0"})).context_bytes == (384 << 20) * 132 // 80
    )
    assert cuda_runtime_of(load_hardware("m4-max")).context_bytes == 0

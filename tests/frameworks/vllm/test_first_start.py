"""What a start that compiles holds: a second embedding table beside two vectors of each token."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.engine import EngineMemory
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.sources.hardware import find_hardware

COMPILES = {"VLLM_DISABLE_COMPILE_CACHE": 1}
SMALL = {"max_model_len": 8192, "max_num_seqs": 8}


def answer(version: str, target: str, **flags: Any) -> EngineMemory:
    record, numbers = engine_and_version(f"vllm=={version}")
    return record.memory_on(llmcalc.load(target), find_hardware("h100-sxm"), numbers, SMALL | flags)


@pytest.mark.parametrize(("tp", "pp", "rows"), [(1, 1, 128_256), (2, 1, 64_128), (1, 2, 128_256)])
def test_a_start_that_compiles_holds_the_embedding_of_its_rank_twice(tp: int, pp: int, rows: int) -> None:
    """Llama 3.3 70B: 8,192 elements a row, of 2 bytes; 2,048 tokens. A laboratory's log of 8,192 has 2.25 GiB."""
    flags = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "max_num_batched_tokens": 2048}
    memory = answer("0.28", "llama3.3-70b", gpu_memory_utilization=0.95, **flags, **COMPILES)
    profile_run = next(term for term in memory.terms if term.name == "profile_run")
    assert profile_run.bytes == (rows + 2 * 2048) * 8192 * 2
    assert (profile_run.status, profile_run.origin) == ("estimate", "compiling, with a second embedding table")


def test_an_answer_says_how_much_less_cache_a_first_start_has() -> None:
    restart, first_start = answer("0.28", "qwen3-14b"), answer("0.28", "qwen3-14b", **COMPILES)
    lost = restart.term_bytes("kv_cache") - first_start.term_bytes("kv_cache")
    assert lost == first_start.term_bytes("profile_run") - restart.term_bytes("profile_run") > 2**28
    assert any(
        f"has {lost / 2**30:.2f} GiB less cache (VLLM_DISABLE_COMPILE_CACHE=1)" in note for note in restart.notes
    )
    assert not any("a restart is counted" in note for note in first_start.notes)


@pytest.mark.parametrize(
    ("version", "target", "flags"),
    [
        ("0.11.0", "qwen3-14b", {}),
        ("0.28", "qwen3-14b", {"enforce_eager": True}),
        ("0.28", "qwen3-14b", {"compilation_config": {"mode": 0}}),
        ("0.28", "qwen3-14b", {"compilation_config": {"inductor_compile_config": {"benchmark_combo_kernel": False}}}),
        ("0.28", "qwen2.5-vl-7b", {}),
    ],
)
def test_starts_whose_compiling_times_no_embedding(version: str, target: str, flags: dict[str, Any]) -> None:
    """Before torch timed kernels, without a compiled graph, and where images are embedded before the graph."""
    restart, first_start = answer(version, target, **flags), answer(version, target, **flags, **COMPILES)
    assert first_start.term_bytes("profile_run") == restart.term_bytes("profile_run")
    may_hold_more = any("may have less cache" in note for note in restart.notes)
    assert may_hold_more is (target == "qwen2.5-vl-7b")

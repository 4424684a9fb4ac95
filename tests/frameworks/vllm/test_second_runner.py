"""vLLM's second model runner: which models run on it, and its memory."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.rank import EngineRank
from llmcalc.frameworks.vllm.model_runner import second_runner
from llmcalc.frameworks.vllm.versions import vllm_record
from llmcalc.sources.hardware import find_hardware
from tests.engines import engine_memory


def server_memory(target: str = "llama3.1-8b", hardware: str = "h100", engine: Any = "vllm==0.19", **flags: Any) -> Any:
    return engine_memory(target, hardware=hardware, engine=engine, **flags)


@pytest.mark.parametrize(
    ("version", "target", "copies", "subtracts"),
    [
        ("0.21", "llama3.1-8b", 3.5, True),
        ("0.22", "llama3.1-8b", 3.5, True),
        ("0.22", "qwen3-8b", 1.5, False),
        ("0.23", "llama3.1-8b", 1.5, False),
        ("0.24", "qwen2.5-7b-instruct", 3.5, True),
        ("0.26", "qwen2.5-7b-instruct", 0.5, False),
        ("0.28", "qwen3-30b-a3b", 3.5, True),
        ("0.29", "qwen3-30b-a3b", 0.5, True),
        ("0.30", "qwen3-30b-a3b", 0.5, True),
        ("0.33", "llama3.1-8b", 3.5, True),
    ],
)
def test_models_of_the_second_runner(version: str, target: str, copies: float, subtracts: bool) -> None:
    """A version moves models to the second runner by their classes, then all; its dummy run copies fewer logits."""
    memory = server_memory(target, engine=f"vllm=={version}", max_num_seqs=1000, max_num_batched_tokens=1024)
    preset = llmcalc.load(target)
    logits = 1000 * preset.model.vocab_size * 4
    first_runner = copies == 3.5 and version != "0.33"
    hidden = (1024 + 1000) * preset.model.hidden_size * 2
    hidden += 1024 * 8 * 2 * (2 * 2048) if "a3b" in target else 0  # workspaces of the experts, which stay
    after_layers = int(copies * logits) + hidden + 32 * 2**20 + 132 * preset.model.vocab_size * 4 * first_runner
    assert memory.term_bytes("profile_run") == after_layers
    parts = ("weights", "profile_run", "non_torch") + (("cuda_graphs",) if subtracts else ())
    assert memory.term_bytes("kv_cache") == memory.term_bytes("budget") - sum(map(memory.term_bytes, parts))


def test_the_second_runner_is_chosen_by_a_variable() -> None:
    first = server_memory(engine="vllm==0.24", VLLM_USE_V2_MODEL_RUNNER=0)
    second = server_memory(engine="vllm==0.24")
    chosen = server_memory(engine="vllm==0.21", VLLM_USE_V2_MODEL_RUNNER=1)
    assert first.term_bytes("profile_run") > second.term_bytes("profile_run") == chosen.term_bytes("profile_run")
    with pytest.raises(InputError, match="VLLM_USE_V2_MODEL_RUNNER=1: the second model runner is modelled from"):
        server_memory(engine="vllm==0.19", VLLM_USE_V2_MODEL_RUNNER=1)


def test_counts_for_penalties_are_taken_from_the_cache() -> None:
    """From 0.27 on the memory that is in use counts: 4 bytes a token of the vocabulary, and a bit, for each user."""
    few, many = (server_memory(engine="vllm==0.30", max_num_seqs=users) for users in (100, 200))
    counts = 100 * (128_256 * 4 + 4 * 4008)
    assert many.term_bytes("non_torch") - few.term_bytes("non_torch") == counts
    before = [server_memory(engine="vllm==0.26", max_num_seqs=users).term_bytes("non_torch") for users in (100, 200)]
    assert before[0] == before[1]


@pytest.mark.parametrize(("users", "blocks"), [(256, 652), (1024, 635)])
def test_blocks_of_two_starts_on_one_machine(users: int, blocks: int) -> None:
    """A log of vLLM 0.29 (index:68936788784): all graphs and the counts for penalties are subtracted.

    A block has 49 MiB; what is outside torch differs by more among accelerators.
    """
    memory = server_memory(
        "qwen3.8-27b",
        "rtx-pro-6000",
        "vllm==0.29",
        max_num_seqs=users,
        max_model_len=8192,
        gpu_memory_utilization=0.9 * 94.97 * 2**30 / find_hardware("rtx-pro-6000").capacity_bytes,
    )
    assert memory.block_count == pytest.approx(blocks, abs=3)
    assert memory.can_start is (users < blocks)


def test_dspark_runs_on_the_second_runner() -> None:
    """vllm/config/vllm.py, `use_v2_model_runner`, from 0.25 on: also where the model is on the first one by default."""
    record, rank = vllm_record(), EngineRank(llmcalc.load("qwen3-30b-a3b"))
    drafts = {"speculative_config": {"method": "dspark", "model": "draft", "num_speculative_tokens": 7}}
    assert second_runner(record, (0, 26), rank, {}) is None
    assert second_runner(record, (0, 26), rank, drafts) is not None
    assert second_runner(record, (0, 24), rank, drafts) is None

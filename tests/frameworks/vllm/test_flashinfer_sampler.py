"""FlashInfer's sampler in vLLM, which holds fewer copies of the logits than torch's sort."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from tests.engines import engine_memory

VARIABLE = "VLLM_USE_FLASHINFER_SAMPLER"


def answer(version: str, target: str = "gpt-oss-120b", **flags: Any) -> Any:
    return engine_memory(target, hardware="h100", engine=f"vllm=={version}", max_model_len=32_000, **flags)


def test_the_sampler_decides_whether_gpt_oss_starts() -> None:
    """GPUStack's performance lab serves it on one H100 with vLLM 0.10.2, whose images have FlashInfer.

    Without it, a log of 0.11.0 prints 7.38 GiB (tests/data/engines/vllm_logs.json, 44).
    """
    sorted_by_torch, with_flashinfer = answer("0.10.2"), answer("0.10.2", VLLM_USE_FLASHINFER_SAMPLER=1)
    assert not sorted_by_torch.can_start
    assert with_flashinfer.can_start
    logits = 1024 * 201_088 * 4
    saved_bytes = sorted_by_torch.term_bytes("profile_run") - with_flashinfer.term_bytes("profile_run")
    assert saved_bytes == 6 * logits


def test_the_assumption_is_said_and_offered() -> None:
    memory = llmcalc.memory("gpt-oss-120b", hardware="h100", engine="vllm==0.10.2", max_model_len=32_000)
    assert any(VARIABLE in note for note in memory.result.notes)
    changes = {change["flag"]: change["starts"] for change in memory.document["changes"]}
    assert changes[f"{VARIABLE}=1"]
    for settled in (answer("0.10.2", VLLM_USE_FLASHINFER_SAMPLER=0), answer("0.11.1"), answer("0.19")):
        assert not any(VARIABLE in note for note in settled.notes)


def test_versions_with_a_kernel_of_their_own() -> None:
    """Triton's kernel holds as many copies, and a buffer of one row for each of an H100's 132 units."""
    own_kernel, flashinfer = (answer("0.19", VLLM_USE_FLASHINFER_SAMPLER=choice) for choice in (0, 1))
    assert own_kernel.term_bytes("profile_run") - flashinfer.term_bytes("profile_run") == 132 * 201_088 * 4


def test_later_versions_take_the_variable() -> None:
    """From April 2026 on it is vLLM's default (vllm#40376); the second runner's dummy run has its own rules."""
    triton, flashinfer = (answer("0.21", "llama3.1-8b", VLLM_USE_FLASHINFER_SAMPLER=choice) for choice in (0, 1))
    assert triton.term_bytes("profile_run") - flashinfer.term_bytes("profile_run") == 132 * 128_256 * 4
    assert answer("0.33", "llama3.1-8b", VLLM_USE_FLASHINFER_SAMPLER=1).terms == answer("0.33", "llama3.1-8b").terms


def test_versions_that_were_not_read_are_refused() -> None:
    with pytest.raises(InputError, match=rf"{VARIABLE}=1: .*is modelled from vLLM 0.9.2 on"):
        answer("0.8", "llama3.1-8b", VLLM_USE_FLASHINFER_SAMPLER=1)
    assert answer("0.8", "llama3.1-8b", VLLM_USE_FLASHINFER_SAMPLER=0).can_start

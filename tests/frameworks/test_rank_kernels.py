"""Ranks run the attention kernels of the accelerator that is named, as one device does."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc

LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp2": {"devices": 2, "fsdp": 2},
    "deepspeed": {"devices": 2, "zero": 2, "framework": "deepspeed"},
    "torch": {"devices": 2, "tp": 2},
}


def saved(hardware: str, **layout: Any) -> int:
    """Bytes that the layers of GPT-2 save."""
    answer: Any = llmcalc.memory("gpt2", "training", hardware=hardware, seq=1024, precision="bf16-master", **layout)
    device = answer.device
    size: int = device.by_kind["activations"]
    return size


@pytest.mark.parametrize("framework", LAYOUTS)
def test_without_tensor_cores_for_bf16_attention_keeps_all_scores(framework: str) -> None:
    """A T4 (7.5) runs the math of sdpa in bf16; an A100 (8.0) flash attention, which keeps no scores."""
    assert saved("t4", **LAYOUTS[framework]) > 2 * saved("a100", **LAYOUTS[framework])
    assert saved("t4") > 2 * saved("a100")

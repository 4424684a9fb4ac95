"""Training that starts from a checkpoint whose weights are quantized."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmcalc import fit, memory
from tests.device_memory import published
from tests.device_memory.training_memory import training_memory

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}


def _trained(folder: Path, quantization: dict[str, Any] | None, **options: Any) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | ({} if quantization is None else {"quantization_config": quantization})))
    return memory(path, lora_rank=8, seq=64, **options)


@pytest.mark.parametrize(
    ("quantization", "base"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-dq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "nf4-dq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, "nf4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False}, "int8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "nf4-dq"),
    ],
)
def test_adapters_stand_beside_the_weights_of_a_quantized_checkpoint(
    tmp_path: Path, quantization: dict[str, Any], base: str
) -> None:
    """transformers loads such a checkpoint in its format; its weights were counted in bf16."""
    quantized = _trained(tmp_path, quantization).document["memory"]
    assert quantized["peak_bytes"] == _trained(tmp_path, None, base=base).document["memory"]["peak_bytes"]
    wide = _trained(tmp_path, quantization, base="none").document["memory"]
    assert quantized["peak_bytes"] != wide["peak_bytes"]


@pytest.mark.parametrize(
    ("hub_id", "options"),
    [
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", {"base": "nf4-dq", "quantized_experts": True}),
        ("QuantTrio/Qwen3-30B-A3B-AWQ", {"base": "nf4-dq", "quantized_experts": True}),
        ("unsloth/Qwen3-30B-A3B-bnb-4bit", {"base": "nf4-dq"}),
        ("someone/Qwen3-30B-A3B-GPTQ-Int8", {"base": "int8"}),
    ],
)
def test_experts_of_gptq_and_awq_have_the_bits_of_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch, hub_id: str, options: dict[str, Any]
) -> None:
    """Each expert is linear layers there; bitsandbytes does not convert transformers' fused tensors."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    memory_of, settings = partial(memory, phase="training", seq=64), {"lora_rank": 8}
    quantized = memory_of(hub_id, **settings)
    stated = memory_of("qwen3-30b-a3b", **settings, **options)
    assert quantized.document["memory"]["peak_bytes"] == stated.document["memory"]["peak_bytes"]
    in_16_bits = any("routed experts are counted in 16 bits" in note for note in quantized.document["notes"])
    assert in_16_bits == (options["base"] == "int8")


def test_other_quantized_weights_are_counted_wide_with_a_warning(tmp_path: Path) -> None:
    table = {"quant_method": "gptq", "bits": 3, "group_size": 128, "desc_act": False}
    answer = _trained(tmp_path, table)
    assert answer.document["memory"]["peak_bytes"] == _trained(tmp_path, None).document["memory"]["peak_bytes"]
    (warning,) = answer.report().warnings
    assert "quantized by gptq; its training is counted over bfloat16 weights" in warning
    assert _trained(tmp_path, None).report().warnings == []
    (warning,) = _trained(tmp_path, table | {"bits": 4}).report().warnings
    assert "quantized by gptq; its frozen weights are counted as nf4-dq, which differs in scales" in warning


@pytest.mark.parametrize("row_id", ["qwen1_ft/7B/Q-LoRA/8192", "qwen1_ft/14B/Q-LoRA/1024"])
def test_adapters_beside_weights_of_gptq_need_what_was_published(row_id: str) -> None:
    """Qwen's README.md ("Profiling of Memory"): 23.5 and 18.9 GB, which its bf16 weights alone nearly are."""
    (row,) = (row for row in published.rows("finetune_peak_mem") if row["id"] == row_id)
    training = published.qwen_run(row)
    assert training.adapters is not None
    stored = replace(training, adapters=replace(training.adapters, base_storage="nf4-dq"))
    training_bytes = training_memory(published.spec(published.QWEN_MODELS[row["model"]]), stored, published.A100)
    assert training_bytes.peak_bytes / 1e9 < 1.09 * row["measured"]["total_mem_gb"]
    assert training_bytes.device_bytes / 1e9 > 0.92 * row["measured"]["total_mem_gb"]


def test_the_heading_of_fit_names_the_adapters_and_their_base(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"quantization_config": {"load_in_4bit": True}}))
    heading = fit(path, lora_rank=8, seq=64, hardware="h100").report().tables[0].subtitle
    assert heading.startswith("training of 64 tokens (LoRA of rank 8 on nf4): ")

"""Training that starts from a checkpoint whose weights are quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmcalc import fit, memory

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
    ],
)
def test_adapters_stand_beside_the_weights_of_a_bitsandbytes_checkpoint(
    tmp_path: Path, quantization: dict[str, Any], base: str
) -> None:
    """transformers loads such a checkpoint in its format; its weights were counted in bf16."""
    quantized = _trained(tmp_path, quantization).document["memory"]
    assert quantized["peak_bytes"] == _trained(tmp_path, None, base=base).document["memory"]["peak_bytes"]
    wide = _trained(tmp_path, quantization, base="none").document["memory"]
    assert quantized["peak_bytes"] != wide["peak_bytes"]


def test_other_quantized_weights_are_counted_wide_with_a_warning(tmp_path: Path) -> None:
    table = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    answer = _trained(tmp_path, table)
    assert answer.document["memory"]["peak_bytes"] == _trained(tmp_path, None).document["memory"]["peak_bytes"]
    (warning,) = answer.report().warnings
    assert "quantized by gptq; its training is counted over bfloat16 weights" in warning
    assert _trained(tmp_path, None).report().warnings == []


def test_the_heading_of_fit_names_the_adapters_and_their_base(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"quantization_config": {"load_in_4bit": True}}))
    heading = fit(path, lora_rank=8, seq=64, hardware="h100").report().tables[0].aside
    assert heading.startswith("training of 64 tokens (LoRA of rank 8 on nf4): ")

"""The longest request of a server: what vLLM and SGLang derive from a config, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines import engine_memory

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "factor": 2.0}


def longest_request(target: str, engine: str, **flags: Any) -> int:
    return engine_memory(target, engine=engine, hardware="h200", **flags).max_model_len


@pytest.mark.parametrize(
    ("fields", "vllm", "sglang"),
    [
        ({}, 40960, 40960),
        ({"rope_scaling": YARN}, 131072, 40960),
        ({"rope_scaling": LINEAR}, 81920, 81920),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960, 40960),
        ({"model_max_length": 8192}, 8192, 8192),
    ],
)
def test_a_config_states_the_longest_request(tmp_path: Path, fields: dict[str, Any], vllm: int, sglang: int) -> None:
    """By vllm/config/model.py, `_get_and_verify_max_len`, and hf_transformers_utils.py, `get_context_length`."""
    config_file = tmp_path / "config.json"
    config_file.write_text(json.dumps(QWEN3 | fields))
    assert longest_request(str(config_file), "vllm") == vllm
    assert longest_request(str(config_file), "sglang") == sglang


def test_longrope_starts_with_its_short_factors() -> None:
    """Phi-3.5's requests have 4,096 tokens by default since vLLM 0.11.1 (pull request 27431), 131,072 before."""
    assert longest_request("phi3.5-mini", "vllm==0.11.2") == 4096
    assert longest_request("phi3.5-mini", "vllm==0.10.2") == 131072
    assert longest_request("phi3.5-mini", "vllm==0.11.2", max_model_len=32768) == 32768


@pytest.mark.parametrize(
    ("engine", "flag", "variable"),
    [
        ("vllm", "max_model_len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ("sglang", "context_length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
    ],
)
def test_a_request_longer_than_the_model_is_noted(engine: str, flag: str, variable: str) -> None:
    """Llama 3 has 8,192 positions; both engines refuse more unless a variable of the environment allows it."""
    for flags, is_noted in (({flag: 32000}, True), ({flag: 8192}, False), ({flag: 32000, variable: 1}, False)):
        notes = engine_memory("llama3-8b", engine=engine, hardware="h100", **flags).notes
        assert any(variable in note for note in notes) == is_noted


def test_a_length_that_is_not_known_is_not_refused() -> None:
    """Command R's config has `model_max_length`, which its preset does not have."""
    notes = engine_memory("command-r", engine="vllm", hardware="h200", max_model_len=32000).notes
    assert not any("refuses" in note for note in notes)

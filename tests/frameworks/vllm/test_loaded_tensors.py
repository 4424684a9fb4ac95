"""What vLLM and SGLang load beside a model's weights: tables of cosines and sines, and projections without use."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.rank import EngineRank
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.engines.weight_matrices import unused_projection_bytes
from llmcalc.frameworks.vllm.layer_embeddings import layer_embedding_bytes
from llmcalc.frameworks.vllm.versions import vllm_record
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import find_hardware
from tests.samples import in_one_test

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 1000,
}  # fmt: skip
ROWS = (
    ({}, 1000),
    ({"rope_scaling": {"type": "linear", "factor": 2.5}}, 2500),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 2000),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 500}}, 4000),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 500}}, 1000),
    ({"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 100}, 1100),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}, 3000),
)


@in_one_test
@pytest.mark.parametrize(("changes", "rows"), ROWS)
def test_scaled_positions_make_a_table_longer(changes: dict[str, Any], rows: int) -> None:
    rank = EngineRank(llmcalc.load(LLAMA | changes))
    assert rank.rope_table_elements() == rows * 16
    assert rank.rope_table_elements(is_scaled=False) == 1000 * 16


@in_one_test
@pytest.mark.parametrize(
    ("target", "elements"),
    [
        ("gemma3-27b", 131_072 * 128 * (8 + 1)),  # full attention in eight times the positions, and windows
        ("gemma3-1b", 32_768 * 256 * 2),
        ("gemma4-31b", 262_144 * (512 + 256)),  # a quarter of a head is rotated, the table has the whole head
        ("qwen3.5-27b", 4 * 262_144 * 64),  # positions of images and videos
        ("qwen3-8b", 40_960 * 128),
        ("phi3-mini-128k", (131_072 + 4096) * 96),
        ("deepseek-v3", 163_840 * 64),
        ("deepseek-coder-6.7b", 4 * 16_384 * 128),
    ],
)
def test_tables_of_cosines_and_sines(target: str, elements: int) -> None:
    assert EngineRank(llmcalc.load(target)).rope_table_elements(video_factor=4) == elements


@pytest.mark.parametrize(
    ("engine", "target", "added_bytes"),
    [
        ("vllm==0.28", "qwen3.5-27b", 3 * 262_144 * 64 * 2),
        ("sglang", "qwen3.5-27b", 0),
        ("sglang", "gemma3-27b", 0),  # whose class ignores the scaling
        ("sglang", "deepseek-coder-6.7b", 3 * 16_384 * 128 * 4),  # in float32
        ("tensorrt-llm", "gemma3-27b", 0),
    ],
)
def test_tables_are_loaded_with_the_weights(engine: str, target: str, added_bytes: int) -> None:
    preset, (record, version), hardware = llmcalc.load(target), engine_and_version(engine), find_hardware("h100")
    without_scaling = preset.model_copy(update={"rope_parameters": None})
    weights = [
        record.memory_on(model, hardware, version, {}).term_bytes("weights") for model in (preset, without_scaling)
    ]
    assert weights[0] - weights[1] == added_bytes


@pytest.mark.parametrize(
    ("target", "tp", "elements"),
    [
        ("gemma4-e4b", 1, 2560 * 2 * (15 * 2 * 256 + 3 * 2 * 512)),
        ("gemma4-31b", 1, 10 * 5376 * 4 * 512),  # values of the full layers, which are the projected keys
        ("gemma4-31b", 2, 10 * 5376 * 2 * 512),
        ("gemma3-27b", 1, 0),
    ],
)
def test_projections_without_use(target: str, tp: int, elements: int) -> None:
    rank = EngineRank(llmcalc.load(target), Layout(tp=tp))
    assert unused_projection_bytes(rank, vllm_record().whole_projections) == pytest.approx(2 * elements, rel=1e-3)
    assert unused_projection_bytes(rank, ("LlamaForCausalLM",)) == 0


@pytest.mark.parametrize(("target", "width"), [("gemma4-e2b", 35 * 256), ("gemma4-e4b", 42 * 256), ("gemma4-31b", 0)])
def test_a_buffer_of_the_embeddings_of_layers_for_cuda_graphs(target: str, width: int) -> None:
    """Without the buffer of 2,048 tokens the weights of Gemma 4 E2B were 0.5 % less than a log prints."""
    assert layer_embedding_bytes(EngineRank(llmcalc.load(target)), 2048, 2) == 2048 * width * 2

"""The number formats of recurrent states in vLLM: of the model, of its config, or of a flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines import rank
from llmcalc.model import ModelSpec
from llmcalc.sources import to_hf
from tests.engines import engine_memory


def answer(target: Any, version: str, **flags: Any) -> Any:
    """The memory of a model in a version of vLLM on an H200."""
    lengths = {"max_model_len": 8192}
    return engine_memory(target, hardware="h200", engine=f"vllm=={version}", **lengths, **flags)


def block_of(target: Any, version: str, **flags: Any) -> int:
    """The tokens of a block that holds a recurrent state."""
    return int(answer(target, version, **flags).block_size)


def test_states_have_the_number_format_of_the_model_or_of_its_config() -> None:
    """Start-up logs: Qwen3-Next 544 in 0.10.2, Granite 4.0 400 in 0.11.1 and 0.19, Qwen3.5 784, Nemotron 3 2,096.

    Qwen3-Next: states of 32 x 128 x 128 and the last 3 inputs of 8,192 channels fill 536 tokens of 2,048 bytes.
    """
    assert -(-(32 * 128 * 128 + 8192 * 3) * 2 // (2048 * 16)) * 16 == 544
    assert block_of("qwen3-next-80b-a3b", "0.10.2", tensor_parallel_size=2) == 544
    assert block_of("granite-4.0-h-350m", "0.11.1") == block_of("granite-4.0-h-1b", "0.19") == 400
    assert block_of("qwen3.5-27b", "0.19") == 784
    assert block_of("nemotron-3-nano-30b-a3b", "0.20.2") == 2096
    # before the config was read, and in float32 where the flag asks for it
    assert block_of("nemotron-3-nano-30b-a3b", "0.12") == 1072
    assert block_of("nemotron-h-8b", "0.12") < block_of("nemotron-h-8b", "0.17")
    assert block_of("nemotron-3-nano-30b-a3b", "0.33", mamba_ssm_cache_dtype="float16") == 1072
    assert block_of("nemotron-3-nano-30b-a3b", "0.33", mamba_ssm_cache_dtype="float32") == 2096
    assert block_of("qwen3-next-80b-a3b", "0.19", mamba_ssm_cache_dtype="float32") == 1056
    # 2,048 bytes a token: states of 2,097,152 bytes in float32 and inputs of 98,304 with both
    assert block_of("qwen3-next-80b-a3b", "0.19", mamba_cache_dtype="float32") == 1072


def test_states_of_kimi_delta_attention_are_float32() -> None:
    target, flags = "kimi-linear-48b-a3b", {"tensor_parallel_size": 2}
    with pytest.raises(InputError, match="--mamba-ssm-cache-dtype: Kimi Delta Attention has states of float32"):
        block_of(target, "0.19", mamba_ssm_cache_dtype="bfloat16", **flags)
    wide, narrow = (block_of(target, "0.33", mamba_ssm_cache_dtype=dtype, **flags) for dtype in ("float32", "bfloat16"))
    assert narrow < wide
    with pytest.raises(InputError, match="--mamba-ssm-cache-dtype 'int8'"):
        block_of(target, "0.33", mamba_ssm_cache_dtype="int8", **flags)


def test_a_config_states_the_number_format_of_the_states(tmp_path: Path) -> None:
    config = json.loads((Path(__file__).parents[2] / "data/cases/qwen3.5-35b-a3b/config.json").read_text())
    assert config["text_config"]["mamba_ssm_dtype"] == "float32"
    blocks = []
    for dtype in ("float32", "bfloat16"):
        config["text_config"]["mamba_ssm_dtype"] = dtype
        file = tmp_path / dtype / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps(config))
        preset = llmcalc.load(file)
        assert preset.state_dtype == dtype
        blocks.append(block_of(preset, "0.19"))
    assert blocks == [block_of("qwen3.5-35b-a3b", "0.19"), 544]


@pytest.mark.parametrize(("word", "slot"), [("turboquant_k8v4", 388), ("turboquant_3bit_nc", 198)])
def test_turboquant_packs_keys_and_values_of_a_head(word: str, slot: int) -> None:
    """A head of 256 in k8v4: 256 + 128 + 4 bytes; in 3 bits: 96 + 2 of keys, 96 + 4 of values."""
    sizes = {"tensor_parallel_size": 2, "kv_cache_memory_bytes": 10 * 2**30}
    packed = answer("qwen3.6-27b", "0.24", kv_cache_dtype=word, **sizes)
    layers, heads, state = 16, 2, 24 * 128 * 128 * 4 + 3 * 5120 * 2
    tokens = -(-state // (heads * slot * 16)) * 16
    assert packed.block_size == tokens
    assert packed.block_count == 10 * 2**30 // (layers * heads * slot * tokens)
    with pytest.raises(InputError, match=f"--kv-cache-dtype {word}: is modelled for models with recurrent states"):
        answer("qwen3-8b", "0.24", kv_cache_dtype=word)
    with pytest.raises(InputError, match=r"is modelled from vLLM 0\.21 on"):
        answer("qwen3.6-27b", "0.20.2", kv_cache_dtype=word)


def test_the_classes_of_equal_models_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of classes decide the number format of states, the model runner and the projections of a rank."""
    models: list[ModelSpec] = []

    def find_config(model: ModelSpec) -> None:
        models.append(model)

    monkeypatch.setattr(to_hf, "find_config", find_config)
    rank._exported_classes.clear()
    for _ in range(2):
        answer("granite-4.0-h-350m", "0.19")
    rank._exported_classes.clear()
    assert len(models) == 1

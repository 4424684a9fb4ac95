"""`hf_quant_config.json`, in which ModelOpt says beside a `config.json` how the weights are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
NVFP4: dict[str, Any] = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
REMARK = "quantization_config: not in the config; taken from hf_quant_config.json beside it"


def _folder(folder: Path, file: object = None, **fields: Any) -> Path:
    """Returns a folder with a config with further fields, and perhaps the file beside it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **fields}))
    if file is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(file))
    return folder


def _weight_bytes(folder: Path) -> int:
    memory: dict[str, int] = llmcalc.memory(folder, phase="inference").document["memory"]
    return memory["weights"]


def test_the_file_is_read_as_the_table_in_a_config(tmp_path: Path) -> None:
    """Layers: 4·32·32 + 3·32·64 numbers of 4 bits, a byte for each 16 of them, 7 fp32 scales of weights and of inputs.

    Embedding, head and five norms stay in bfloat16.
    """
    beside = _folder(tmp_path / "beside", {"producer": {"name": "modelopt"}, "quantization": NVFP4})
    table = {**NVFP4, "quant_method": "modelopt"}
    linear = 4 * 32 * 32 + 3 * 32 * 64
    layers = 2 * (linear // 2 + linear // 16 + 7 * 2 * 4)
    expected = layers + 2 * (2 * 96 * 32 + 5 * 32)
    assert _weight_bytes(beside) == _weight_bytes(_folder(tmp_path / "in", quantization_config=table)) == expected
    assert REMARK in llmcalc.load(beside).notes


def test_a_table_in_the_config_wins(tmp_path: Path) -> None:
    table = {"quant_algo": "FP8", "quant_method": "modelopt"}
    folder = _folder(tmp_path / "both", {"quantization": NVFP4}, quantization_config=table)
    assert _weight_bytes(folder) == _weight_bytes(_folder(tmp_path / "one", quantization_config=table))
    assert REMARK not in llmcalc.load(folder).notes


def test_a_file_for_the_cache_alone_leaves_the_weights(tmp_path: Path) -> None:
    file = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    folder = _folder(tmp_path / "cache", file)
    assert _weight_bytes(folder) == _weight_bytes(_folder(tmp_path / "plain"))
    assert any("give --kv-dtype" in note for note in llmcalc.load(folder).notes)


@pytest.mark.parametrize("file", [{}, {"quantization": "NVFP4"}, []])
def test_a_file_without_the_table_is_refused(tmp_path: Path, file: object) -> None:
    with pytest.raises(
        InputError, match=r"hf_quant_config\.json: (quantization: .*; expected a table|expected a JSON)"
    ):
        llmcalc.load(_folder(tmp_path / "bad", file))

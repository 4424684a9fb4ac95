"""The models that llama.cpp, ik_llama.cpp and Ollama have an architecture for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.ik_llama_cpp.server import read_record as read_ik_record
from llmcalc.frameworks.llama_cpp.server import read_record
from tests.in_process import command

REFUSALS = (
    ("gpt-j-6b", "llama.cpp", "llama.cpp b10488 has no architecture for 'GPTJForCausalLM'"),
    ("qwen3-next-80b-a3b", "llama.cpp==b6000", "expected --engine llama.cpp==b8620 or later"),
    ("olmo2-1b", "ik_llama.cpp", "ik_llama.cpp 4840 has no architecture for 'Olmo2ForCausalLM'"),
    ("gpt-j-6b", "ollama", "has no architecture for 'GPTJForCausalLM'"),
    ("llama3.2-11b-vision", "ollama", "expected --engine ollama==VERSION with a version from 0.4 on and before 0.30"),
)


def test_models_without_an_architecture_are_refused_with_a_remedy() -> None:
    for target, engine, message in REFUSALS:
        with pytest.raises(InputError) as refusal:
            llmcalc.memory(target, engine=engine, hardware="rtx-4090")
        assert message in str(refusal.value), (target, engine)


def test_fit_and_time_refuse_them_too() -> None:
    for words in ("fit gpt-neo-125m", "time gpt-neo-125m --phase decode --seq 128"):
        result = command(*words.split(), "--engine", "llama.cpp", "--hardware", "rtx-4090")
        assert "no architecture for 'GPTNeoForCausalLM'" in result.err


def test_the_class_of_a_config_decides(tmp_path: Path) -> None:
    sizes = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 96, "max_position_embeddings": 512,
    }  # fmt: skip
    config_path = tmp_path / "config.json"
    for class_name, is_known in (("LlamaForCausalLM", True), ("LlamaForTokenClassification", False)):
        config_path.write_text(json.dumps({**sizes, "architectures": [class_name]}))
        result = command("memory", str(config_path), "--engine", "llama.cpp", "--hardware", "rtx-4090")
        assert (result.code == 0) == is_known
        assert (f"no architecture for '{class_name}'" in result.err) != is_known


def test_an_encoder_that_cannot_be_converted_is_refused() -> None:
    with pytest.raises(InputError, match=r"--mmproj 'x\.gguf': llama\.cpp b10488 has no encoder for"):
        llmcalc.memory("aya-vision-32b", engine="llama.cpp", hardware="h100", mmproj="x.gguf")


def test_other_names_are_registered() -> None:
    for engine_record in (read_record(), read_ik_record()):
        assert {*engine_record.registered_class_by_name.values()} <= {*engine_record.registered_classes}
        added = [name for row in engine_record.added_classes for name in row.classes]
        assert len(added) == len({*added})
        assert {*added} <= {*engine_record.registered_classes}

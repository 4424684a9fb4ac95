"""Checkpoints of the hub whose config cannot be read: their names state a preset and a quantization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.quantization.named import scheme_named
from llmcalc.errors import InputError
from llmcalc.sources.checkpoint_name import TABLES_BY_SCHEME
from tests.in_process import Result
from tests.samples import sampled, spread


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without the hub's network and cache."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


HUB_IDS = [
    ("unsloth/Qwen3-14B", "qwen3-14b", None),
    ("unsloth/Qwen3-14B-bnb-4bit", "qwen3-14b", "nf4-double"),
    ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "qwen3-14b", "nf4-double"),
    ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", "fp8-block128"),
    ("RedHatAI/Qwen3-14B-FP8", "qwen3-14b", "fp8-dynamic"),
    ("Qwen/Qwen3-14B-AWQ", "qwen3-14b", "awq-int4-g128"),
    ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "qwen3-30b-a3b", "gptq-int4-g128"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b", "fp8-dynamic"),
    ("TheBloke/Llama-2-13B-chat-AWQ", "llama2-13b", "awq-int4-g128"),
    ("RedHatAI/Qwen3-8B-quantized.w4a16", "qwen3-8b", "w4a16-g128"),
    ("amd/Llama-3.1-8B-Instruct-FP8-KV", "llama3.1-8b", "fp8-dynamic"),
]


@pytest.mark.parametrize(("hub_id", "preset", "scheme"), HUB_IDS)
def test_a_target_has_the_sizes_of_its_preset_and_the_scheme_of_its_name(
    hub_id: str, preset: str, scheme: str | None
) -> None:
    assert llmcalc.params(hub_id).total == llmcalc.params(preset).total
    named = llmcalc.memory(hub_id, phase="inference").states
    stated = llmcalc.memory(preset, phase="inference", quantize=scheme).states
    assert named.weights == stated.weights


FIRST = sampled({hub_id: (hub_id, preset, scheme) for hub_id, preset, scheme in HUB_IDS}, lambda case: [case[2]])
"""A checkpoint of each scheme; the test above reads the names of all."""


@pytest.mark.parametrize(("hub_id", "preset", "scheme"), spread(FIRST))
def test_a_servers_file_has_the_answer_of_the_target(
    hub_id: str, preset: str, scheme: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"vllm serve {hub_id} --max-model-len 4096\n")
    of_file = llmcalc.memory(launch=script, hardware="b200")
    of_target = llmcalc.memory(hub_id, engine="vllm", hardware="b200", max_model_len=4096)
    assert of_file.result.terms == of_target.result.terms
    assert any(
        f"{script}: line 1: the config of {hub_id} is not in the cache" in note for note in of_file.document["notes"]
    )


@pytest.mark.parametrize(
    ("hub_id", "preset", "scheme"),
    spread(case for case in FIRST if case.values[0][2] in ("nf4-double", "awq-int4-g128")),
)
def test_a_trainers_file_has_the_answer_of_the_target(
    hub_id: str, preset: str, scheme: str | None, tmp_path: Path
) -> None:
    config = tmp_path / "sft.yaml"
    config.write_text(f"model_name_or_path: {hub_id}\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\n")
    of_file: Any = llmcalc.memory(launch=config)
    of_target: Any = llmcalc.memory(hub_id, launch=config)
    assert of_file.document["memory"] == of_target.document["memory"]


def test_weights_of_bitsandbytes_are_the_base_of_adapters() -> None:
    document = llmcalc.memory("unsloth/Qwen3-14B-bnb-4bit", phase="training", lora_rank=8, seq=512).document
    stated = llmcalc.memory("qwen3-14b", phase="training", lora_rank=8, seq=512, base="nf4-dq").document
    assert document["memory"]["weights"] == stated["memory"]["weights"]


def test_the_heading_names_the_checkpoint_and_a_note_its_preset(run: Callable[..., Result]) -> None:
    result = run("params", "Qwen/Qwen3-14B-AWQ")
    assert result.out.startswith("Qwen/Qwen3-14B-AWQ (Qwen3 14B)")
    assert "by its name it has the sizes of this preset, in awq-int4-g128" in result.err


@pytest.mark.parametrize("hub_id", ["nobody/Foo-7B", "unsloth/Qwen3-14B-GGUF", "unsloth/Qwen3-14B@v1"])
def test_other_names_are_refused(hub_id: str) -> None:
    with pytest.raises(InputError, match=r"no config\.json in the cache, and the hub is offline or unreachable"):
        llmcalc.params(hub_id)


@pytest.mark.parametrize("scheme", TABLES_BY_SCHEME)
def test_tables_have_the_names_of_schemes(scheme: str) -> None:
    assert scheme_named(scheme) is not None

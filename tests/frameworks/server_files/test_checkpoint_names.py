"""Names of quantized checkpoints in launch files, and words of compose files that the container's shell reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmcalc
from llmcalc.costs.quantization.named import scheme_named
from llmcalc.errors import InputError
from llmcalc.frameworks.server_files.read import servers_of
from llmcalc.sources.presets import known_checkpoint

COMPOSE_WITH_ARGUMENTS = """
services:
  a:
    image: vllm/vllm-openai:v0.24.0
    entrypoint:
      - bash
      - -c
      - |
        exec vllm serve ${EAGER:+--enforce-eager} "$@"
      - --
    command: [--model, Qwen/Qwen3-8B, --max-model-len, "8192"]
"""


@pytest.mark.parametrize("text", [COMPOSE_WITH_ARGUMENTS, COMPOSE_WITH_ARGUMENTS.replace("$", "$$")])
def test_a_dollar_that_begins_no_variable_stays_for_the_shell(text: str, tmp_path: Path) -> None:
    """Compose replaces `$NAME` and `${NAME}` alone, so `"$@"` may stand there once or doubled."""
    file = tmp_path / "compose.yml"
    file.write_text(text)
    server = servers_of(file)[0]
    assert (server.target, server.values) == ("Qwen/Qwen3-8B", {"max_model_len": "8192"})


@pytest.mark.parametrize(
    ("name", "preset", "scheme"),
    [
        ("/models/Qwen3-8B-AWQ", "qwen3-8b", "awq-int4-g128"),
        ("/models/huggingface/qwen3.6-27b-autoround-int4", "qwen3.6-27b", "w4a16-g128"),
        ("zai-org/GLM-5.2-FP8", "glm-5.2", "fp8-dynamic"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.6-35b-a3b", "nvfp4"),
        ("/models/qwen3-14b-gguf/Qwen3-14B-Q4_K_M.gguf", "qwen3-14b", "q4_k_m"),
        ("/models/Llama-3.1-8B-Instruct-GPTQ-Int4/", "llama3.1-8b", "gptq-int4-g128"),
    ],
)
def test_the_name_of_a_quantized_checkpoint_states_preset_and_scheme(name: str, preset: str, scheme: str) -> None:
    known = known_checkpoint(name)
    assert known is not None
    assert (known[0].name, known[1]) == (preset, scheme)
    assert scheme_named(known[1]) is not None


@pytest.mark.parametrize(
    "name", ["/models/unknown-8b-AWQ", "Qwen3-8B", "awq", "-fp8", "/models/Qwen3-8B-UD-Q4_K_XL.gguf"]
)
def test_other_names_state_none(name: str) -> None:
    assert known_checkpoint(name) is None


def test_a_checkpoint_that_is_not_here_is_counted_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve /models/Qwen3-8B-AWQ --quantization awq_marlin --max-model-len 8192\n")
    by_name = llmcalc.memory(launch=file, hardware="rtx-4090", engine="vllm==0.24")
    stated = llmcalc.memory("qwen3-8b", launch=file, hardware="rtx-4090", engine="vllm==0.24", quantize="awq-int4-g128")
    assert by_name.result.terms == stated.result.terms
    note = "by its name it is the preset qwen3-8b in awq-int4-g128, which a TARGET or --quantize replaces"
    assert any(note in text for text in by_name.document["notes"])
    requantized = llmcalc.memory(launch=file, hardware="rtx-4090", engine="vllm==0.24", quantize="fp8-dynamic")
    assert requantized.result.bytes_of("weights") > by_name.result.bytes_of("weights")
    file.write_text("vllm serve /models/some-8b-AWQ\n")
    with pytest.raises(InputError, match="its model, '/models/some-8b-AWQ', cannot be read"):
        llmcalc.memory(launch=file, hardware="rtx-4090")
    file.write_text("vllm serve /models/Qwen3-8B\n")
    plain = llmcalc.memory(launch=file, hardware="rtx-4090")
    assert any("is not here; by its name it is the preset qwen3-8b" in text for text in plain.document["notes"])

"""Checkpoints of the hub whose config cannot be read: their names state a preset and a quantization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.quantization.named import scheme_named
from llmcalc.errors import InputError
from llmcalc.sources.checkpoint_name import TABLES_BY_SCHEME, published_nvfp4
from llmcalc.sources.presets import model_names
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
    ("amd/Qwen3-235B-A22B-Instruct-2507-MXFP4", "qwen3-235b-a22b-2507", "mxfp4"),
    ("MiniMaxAI/MiniMax-M3-MXFP8", "minimax-m3", "mxfp8"),
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


def test_qwens_checkpoints_in_fp8_have_the_decays_of_linear_attention_in_16_bits() -> None:
    """vLLM's log of Qwen3.8 27B in FP8 on two RTX 5090 has 377,456 tokens (recipes#810), with them in fp8 378,293.

    Those of 2.4T-A95B have 8 rows on a rank of 16, the layout of its recipe, which is no block of 128.
    """
    named = llmcalc.memory("Qwen/Qwen3.8-27B-FP8", phase="inference", seq=128).document["memory"]
    stated = llmcalc.memory("qwen3.8-27b", phase="inference", seq=128, quantize="fp8-block128").document["memory"]
    matrices = 48 * 2  # of 48 x 5120 numbers, each with 40 blocks whose scales have 4 bytes
    assert named["weights"] - stated["weights"] == matrices * (48 * 5120 - 40 * 4)
    server = llmcalc.memory("Qwen/Qwen3.8-2.4T-A95B-FP8", engine="vllm==0.33", hardware="b300", tensor_parallel_size=16)
    assert server.result.starts


def test_checkpoints_in_nvfp4_have_the_layers_in_16_bits_of_nvidias(tmp_path: Path) -> None:
    """nvidia/Gemma-4-31B-IT-NVFP4 has the attention in 16 bits and the MLPs in NVFP4: 31.0 GiB with its head, not 19.5.

    That of Qwen3.6 35B-A3B has FP8 and the head in NVFP4. Others' have the same layers, without NVIDIA's KV cache.
    """

    assert set(published_nvfp4()) <= set(model_names())

    def weights(model: str) -> int:
        return int(llmcalc.memory(model, phase="inference", seq=128).document["memory"]["weights"])

    assert round(weights("nvidia/Gemma-4-31B-IT-NVFP4") / 2**30, 2) == 29.32  # its config.json gives the same
    assert round(weights("nvidia/Qwen3.6-35B-A3B-NVFP4") / 2**30, 3) == 19.395
    # 43 layers with 256 experts of 3 * 4096 * 2048 numbers: in 4.5 bits where the release has 4.25, and 2 * 3 scales
    experts = 43 * 256
    assert weights("nvidia/DeepSeek-V4-Flash-NVFP4") - weights("deepseek-v4-flash") == experts * (
        3 * 4096 * 2048 // 32 + 3 * 2 * 4
    )
    assert weights("unsloth/Gemma-4-31B-IT-NVFP4") == weights("nvidia/Gemma-4-31B-IT-NVFP4")
    assert weights("RedHatAI/Gemma-4-31B-IT-NVFP4") < weights("nvidia/Gemma-4-31B-IT-NVFP4")  # every linear layer
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve /models/Gemma-4-31B-IT-NVFP4 --max-model-len 4096\n")
    of_path, of_id = (llmcalc.memory(*target, engine="vllm", hardware="b200", **options) for target, options in (
        ((), {"launch": script}), (("unsloth/Gemma-4-31B-IT-NVFP4",), {"max_model_len": 4096})
    ))  # fmt: skip
    assert of_path.result.terms == of_id.result.terms
    assert of_id.result.terms[1][2::2] == ("estimate", "format by its name")
    published = llmcalc.memory("nvidia/Gemma-4-31B-IT-NVFP4", engine="vllm", hardware="b200", max_model_len=4096)
    assert published.result.terms[1][2] == "source"
    assert any("in nvfp4, with the layers in 8 or 16 bits of NVIDIA's" in note for note in of_path.document["notes"])


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


def test_an_id_that_is_refused_names_the_preset_of_its_shape() -> None:
    with pytest.raises(InputError, match=r"by its name it has the shape of llama3\.1-8b: expected that name"):
        llmcalc.params("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF")


def test_checkpoints_whose_config_was_read_leave_out_what_it_does() -> None:
    """Of Gemma 4 31B, NVIDIA's config leaves attention in 16 bits; Qwen3.6 27B has it in fp8, and the head in NVFP4."""
    weights = {
        hub_id: llmcalc.memory(hub_id, phase="inference").document["memory"]["weights"]
        for hub_id in ("nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/Qwen3.6-27B-NVFP4")
    }
    assert weights == {"nvidia/Gemma-4-31B-IT-NVFP4": 31_481_767_840, "nvidia/Qwen3.6-27B-NVFP4": 20_150_569_220}


@pytest.mark.parametrize("scheme", TABLES_BY_SCHEME)
def test_tables_have_the_names_of_schemes(scheme: str) -> None:
    assert scheme_named(scheme) is not None

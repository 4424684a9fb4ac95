"""Checkpoints of the hub whose config cannot be read: their names state a preset and a quantization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.quantization.schemes_by_name import scheme_named
from llmcalc.errors import InputError
from llmcalc.sources.checkpoint_name import (
    TABLES_BY_SCHEME,
    describe_named_checkpoint,
    published_gptq,
    published_nvfp4,
    published_recipes,
)
from llmcalc.sources.presets import model_names
from tests.engines import engine_memory, without_changes
from tests.in_process import Result
from tests.samples import sampled, spread, with_rest


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
    ("zai-org/GLM-4.6-FP8", "glm-4.6", "fp8-dynamic"),
    ("stepfun-ai/Step-3.7-Flash-FP8", "step-3.7-flash", "fp8-block128"),
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


SERVED = with_rest(
    {case[0]: case for case in HUB_IDS},
    ("unsloth/Qwen3-14B", "unsloth/Qwen3-14B-bnb-4bit", "RedHatAI/Qwen3-14B-FP8", "Qwen/Qwen3-30B-A3B-GPTQ-Int4"),
)
"""No scheme, numbers of 4 and of 8 bits, and experts: one reader answers for the names of a file and of a target."""


@pytest.mark.parametrize(("hub_id", "preset", "scheme"), spread(SERVED))
def test_a_servers_file_has_the_answer_of_the_target(
    hub_id: str, preset: str, scheme: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"vllm serve {hub_id} --max-model-len 4096\n")
    with without_changes():
        of_file = llmcalc.memory(launch=script, hardware="b200")
    of_target = engine_memory(hub_id, engine="vllm", hardware="b200", max_model_len=4096)
    assert of_file.result.terms == of_target.terms
    assert any(
        f"{script}: line 1: the config of {hub_id} is not in the cache" in note for note in of_file.document["notes"]
    )


def test_qwens_checkpoints_in_fp8_have_the_decays_of_linear_attention_in_16_bits() -> None:
    """vLLM's log of Qwen3.8 27B in FP8 on two RTX 5090 has 377,456 tokens (recipes#810), with them in fp8 378,293.

    Those of 2.4T-A95B have 8 rows on a rank of 16, the layout of its recipe, which is no block of 128.
    """
    named = llmcalc.memory("Qwen/Qwen3.8-27B-FP8", phase="inference", seq=128).states
    stated = llmcalc.memory("qwen3.8-27b", phase="inference", seq=128, quantize="fp8-block128").states
    matrices = 48 * 2  # of 48 x 5120 numbers, each with 40 blocks whose scales have 4 bytes
    assert named.weights - stated.weights == matrices * (48 * 5120 - 40 * 4)
    server = engine_memory("Qwen/Qwen3.8-2.4T-A95B-FP8", engine="vllm==0.33", hardware="b300", tensor_parallel_size=16)
    assert server.can_start


def test_checkpoints_in_nvfp4_have_the_layers_in_16_bits_of_nvidias(tmp_path: Path) -> None:
    """nvidia/Gemma-4-31B-IT-NVFP4 has the attention in 16 bits and the MLPs in NVFP4: 31.0 GiB with its head, not 19.5.

    That of Qwen3.6 35B-A3B has FP8 and the head in NVFP4. Others' have the same layers, without NVIDIA's KV cache.
    """

    assert set(published_nvfp4()) <= set(model_names())

    def weights(model: str) -> int:
        return llmcalc.memory(model, phase="inference", seq=128).states.weights

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
    of_id = engine_memory("unsloth/Gemma-4-31B-IT-NVFP4", engine="vllm", hardware="b200", max_model_len=4096)
    with without_changes():
        of_path = llmcalc.memory(launch=script, engine="vllm", hardware="b200")
    assert of_path.result.terms == of_id.terms
    assert of_id.terms[1][2::2] == ("estimate", "format by its name")
    published = engine_memory("nvidia/Gemma-4-31B-IT-NVFP4", engine="vllm", hardware="b200", max_model_len=4096)
    assert published.terms[1][2] == "source"
    assert any("in nvfp4, with the layers in 8 or 16 bits of NVIDIA's" in note for note in of_path.document["notes"])


@pytest.mark.parametrize(
    ("hub_id", "version", "logged_gib"),
    [
        # start-up logs of vLLM on a DGX Spark (index:51900802258) and an RTX A6000 (club-3090, issue 1047)
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "0.20", 21.86),
        ("RadixArk/Qwen3.8-27B-NVFP4", "0.26", 19.75),
    ],
)
def test_linear_attention_has_the_bits_of_the_checkpoints_recipe(hub_id: str, version: str, logged_gib: float) -> None:
    """llm-compressor's recipes leave gated DeltaNets in 16 bits; RadixArk's checkpoint has them in FP8.

    The servers of club-3090 run with expandable segments, beside whose tensors nothing is left.
    """
    settings = {"max_model_len": 4096, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    server = engine_memory(hub_id, engine=f"vllm=={version}", hardware="rtx-pro-6000", **settings)
    assert round(server.term_bytes("weights") / 2**30, 2) == logged_gib


def test_linear_attention_of_a_path_is_that_of_the_id(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve /models/Qwen3-Next-80B-A3B-Instruct-FP8-dynamic --max-model-len 4096\n")
    with without_changes():
        of_path = llmcalc.memory(launch=script, engine="vllm", hardware="h200")
    of_id = engine_memory(
        "RedHatAI/Qwen3-Next-80B-A3B-Instruct-FP8-dynamic", engine="vllm", hardware="h200", max_model_len=4096
    )
    assert of_path.result.term_bytes("weights") == of_id.term_bytes("weights")


def test_qwens_checkpoints_in_gptq_convert_experts_and_networks_alone() -> None:
    """The `dynamic` of Qwen/Qwen3.5-27B-GPTQ-Int4 leaves out all attention; that of Qwen3 30B-A3B leaves out none."""
    assert set(published_gptq()) <= set(model_names())

    def weights(model: str, **options: Any) -> int:
        return llmcalc.memory(model, phase="inference", seq=128, **options).states.weights

    networks = 64 * 3 * 5120 * 17_408
    # 4 bits, and of every 128 numbers a scale of 2 bytes and a zero of half a byte; an index of 4 bytes for each column
    columns = 64 * (2 * 5120 + 17_408)
    saved = networks * 2 - (networks // 2 + networks // 128 * 5 // 2 + columns * 4)
    assert weights("Qwen/Qwen3.5-27B-GPTQ-Int4") == weights("qwen3.5-27b") - saved
    assert weights("Qwen/Qwen3-30B-A3B-GPTQ-Int4") == weights("qwen3-30b-a3b", quantize="gptq-int4-g128")


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


@pytest.mark.parametrize(
    ("hub_id", "preset"), [("zai-org/GLM-5.3-Flash-BF16", "glm-5.3-flash"), ("unsloth/DeepSeek-V3-bf16", "deepseek-v3")]
)
def test_checkpoints_in_16_bits_of_models_in_8_bits(hub_id: str, preset: str) -> None:
    weights = llmcalc.memory(hub_id, phase="inference").states.weights
    assert weights == 2 * llmcalc.params(preset).total
    assert weights > llmcalc.memory(preset, phase="inference").states.weights
    gguf_name = hub_id.replace("-BF16", "-GGUF:BF16").replace("-bf16", "-GGUF:BF16")
    assert llmcalc.memory(gguf_name, phase="inference").states.weights == weights


@pytest.mark.parametrize(
    ("file_name", "advice"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "by its name it is qwen3-8b --quantize q4_k_m: type these"),
        ("models/llama-2-7b.Q4_0.gguf", "by its name it is llama2-7b --quantize q4_0: type these"),
        (r"C:\models\Qwen3-8B-Q4_K_M.gguf", "by its name it is qwen3-8b --quantize q4_k_m: type these"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "a mix near it: qwen3-30b-a3b --quantize q4_k_m"),
        ("chat.gguf", "expected a checkpoint that can be read$"),
    ],
)
def test_a_gguf_file_that_is_not_here_is_answered_with_its_name(file_name: str, advice: str) -> None:
    for ask in (llmcalc.memory, llmcalc.params):
        with pytest.raises(InputError, match=advice):
            ask(file_name)


@pytest.mark.parametrize("hub_id", ["nobody/Foo-7B", "nobody/Foo-7B-GGUF", "unsloth/Qwen3-14B@v1"])
def test_other_names_are_refused(hub_id: str) -> None:
    with pytest.raises(InputError, match=r"no config\.json in the cache, and the hub is offline or unreachable"):
        llmcalc.params(hub_id)


@pytest.mark.parametrize(
    ("hub_id", "advice"),
    [
        ("gradientai/Llama-3-8B-Instruct-262k", r"shape of their base: expected llama3-8b, or"),
        ("cognitivecomputations/dolphin-2.9-llama3-8b", r"expected llama3-8b, or"),
        ("princeton-nlp/Sheared-LLaMA-2.7B", r"or unreachable$"),
        ("Qwen/Qwen3-Reranker-4B", r"Did you mean qwen3-reranker-0\.6b.*Any other model needs its own config\.json"),
        ("nobody/Foo-7B", r"or unreachable$"),
        ("bartowski/Dolphin3.0-Llama3.1-8B-GGUF:Q4_K_M", r"expected llama3\.1-8b --quantize q4_k_m, or its own"),
        ("llama3.1-8b-q4_k_m", r"by its name it is llama3\.1-8b --quantize q4_k_m: type these"),
        ("hf.co/nobody/Foo-GGUF:Q4_K_M", r"expected one of its files \(\.gguf\), or the model's own config\.json"),
    ],
)
def test_an_unknown_hub_id_is_answered_with_the_nearest_presets(hub_id: str, advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        llmcalc.params(hub_id)


def test_checkpoints_whose_config_was_read_leave_out_what_it_does() -> None:
    """Of Gemma 4 31B, NVIDIA's config leaves attention in 16 bits; Qwen3.6 27B has it in fp8, and the head in NVFP4."""
    weights = {
        hub_id: llmcalc.memory(hub_id, phase="inference").states.weights
        for hub_id in ("nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/Qwen3.6-27B-NVFP4")
    }
    assert weights == {"nvidia/Gemma-4-31B-IT-NVFP4": 31_481_767_840, "nvidia/Qwen3.6-27B-NVFP4": 20_150_569_220}


def test_groups_of_32_stand_where_128_divide_no_matrix_and_in_the_checkpoints_of_a_publisher() -> None:
    """GLM-4.5-Air-AWQ-4bit takes 59.1 GiB on disk (index:56795897453); its first layer is 10,944 wide.

    Of Gemma 4 26B-A4B the experts are 704 wide, and the networks beside them 2,112. Three checkpoints of cyankiwi are
    "compressed-tensors AWQ gs=32" (index:64191101709); another takes 122 GiB on disk (index:56151734414).
    """
    air = llmcalc.memory("cyankiwi/GLM-4.5-Air-AWQ-4bit", phase="inference", seq=128)
    assert air.states.weights / 2**30 == pytest.approx(59.1, rel=0.003)
    for name, preset, scheme in (
        ("cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit", "gemma4-26b-a4b", "awq-int4-g32"),
        ("cyankiwi/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit", "qwen3-coder-30b-a3b", "awq-int4-g32"),
        ("cyankiwi/MiniMax-M2.7-AWQ-4bit", "minimax-m2.7", "awq-int4-g32"),
        ("QuantTrio/MiniMax-M2.7-AWQ", "minimax-m2.7", "awq-int4-g128"),
        ("RedHatAI/gemma-4-26B-A4B-it-quantized.w4a16", "gemma4-26b-a4b", "w4a16-g32"),
        ("Intel/gemma-4-26B-A4B-it-int4-AutoRound", "gemma4-26b-a4b", "w4a16-g128"),
        ("someone/DeepSeek-V2-Lite-GPTQ-Int4", "deepseek-v2-lite", "gptq-int4-g128"),
    ):
        named = llmcalc.memory(name, phase="inference", seq=128).states
        assert named.weights == llmcalc.memory(preset, phase="inference", seq=128, quantize=scheme).states.weights


def unconverted_bytes(model: str, **options: Any) -> int:
    """Returns the bytes of the weights that a checkpoint's format leaves as they are."""
    size = llmcalc.memory(model, phase="inference", seq=128, **options).states.quantized_size
    assert size is not None
    return int(size.by_part.unconverted)


def test_recipes_leave_modules_of_their_model_in_16_bits() -> None:
    """Recipes of Llama 4 leave out self_attn, those of Gemma 3n the projections beside attention and networks."""
    assert {name.rpartition("/")[2] for name in published_recipes()} <= set(model_names())
    scout = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-"
    attention = 48 * (2 * 5120 * 40 * 128 + 2 * 5120 * 8 * 128)
    converted = unconverted_bytes("llama4-scout", quantize="w4a16-g128")
    for ending in ("quantized.w4a16", "FP8-dynamic", "FP8-block", "NVFP4"):
        assert unconverted_bytes(scout + ending) == converted + 2 * attention, ending
    assert unconverted_bytes("nvidia/Llama-4-Scout-17B-16E-Instruct-FP8") == converted
    # altup's coefficients and router, laurel, per_layer_input_gate and per_layer_projection of 35 layers, and six
    # projections of altup; no scheme converts per_layer_model_projection
    left_out = 35 * (2048 * 4 + 4 * 16 + 4 * 4 + 2 * 64 * 2048 + 2 * 256 * 2048) + 6 * 2048**2
    gemma = unconverted_bytes("gemma3n-e4b", quantize="fp8-dynamic") + 2 * left_out
    for name in ("RedHatAI/gemma-3n-E4B-it-FP8-dynamic", "x/gemma-3n-E4B-it-AWQ", "x/gemma-3n-E4B-it-NVFP4"):
        assert unconverted_bytes(name) == gemma, name
    assert unconverted_bytes("x/Olmo-Hybrid-7B-GPTQ-Int4") == unconverted_bytes("x/Olmo-Hybrid-7B-AWQ")


def test_tencents_hy4_has_routed_experts_and_two_projections_in_8_bits() -> None:
    """SGLang's cookbook of Hy4 has 786 GB, with 3.3B parameters of its draft model in FP8 and a ViT of 1.2B in BF16."""
    weights = llmcalc.memory("tencent/Hy4-FP8", phase="inference", seq=128).states.weights
    assert weights + 3.3e9 + 2 * 1.2e9 == pytest.approx(786e9, rel=0.001)


def test_metas_maverick_has_its_experts_alone_in_8_bits(tmp_path: Path) -> None:
    """A rank of 8 H100 has 48.8682 GiB (https://github.com/vllm-project/vllm/issues/16152)."""
    server = {"engine": "vllm==0.8.3", "hardware": "h100", "tensor_parallel_size": 8, "max_model_len": 8192}
    rank = engine_memory("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", **server)
    assert rank.term_bytes("weights") / 2**30 == pytest.approx(48.8682, rel=0.0015)
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve /models/Llama-4-Maverick-17B-128E-Instruct-FP8 -tp 8 --max-model-len 8192\n")
    of_path = llmcalc.memory(launch=script, engine="vllm==0.8.3", hardware="h100").result
    assert of_path.term_bytes("weights") == rank.term_bytes("weights")


def test_glm_5_in_fp8_has_scales_of_blocks() -> None:
    """The config of zai-org/GLM-5-FP8: weight_block_size [128, 128], and `indexers_proj` in 16 bits."""
    named = llmcalc.memory("zai-org/GLM-5-FP8", phase="inference", seq=128).states.weights
    stated = llmcalc.memory("glm-5", phase="inference", seq=128, quantize="fp8-block128").states.weights
    assert named - stated == 78 * (6144 * 32 - 48 * 4)


def test_awq_beside_linear_attention_says_that_publishers_leave_layers_out() -> None:
    described = describe_named_checkpoint("QuantTrio/Qwen3.6-35B-A3B-AWQ")
    assert described is not None
    assert "in every linear layer, of which publishers leave some out" in str(described[2])


@pytest.mark.parametrize("scheme", TABLES_BY_SCHEME)
def test_tables_have_the_names_of_schemes(scheme: str) -> None:
    assert scheme_named(scheme) is not None

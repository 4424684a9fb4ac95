"""Lists of modules in published quantization configs: which linear layers stay unconverted.

Lists of tests/data/cases and Kimi K2.5's are those of the published files. The others have the form that the named
library or publisher uses, and are not copies of a file. Layers are counted by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.params import params
from llmcalc.costs.quantization import QuantizedSize, StoredBytes, quantized_size, scheme_of_config
from llmcalc.costs.quantization.base import weight_tensors_of
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.static import memory
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.checkpoint import checkpoint_of
from llmcalc.sources.target import load
from tests.builders import spec_of
from tests.costs.quantization.test_quantize import DENSE, WEIGHTS
from tests.families import shapes_of

CASES = Path(__file__).parents[2] / "data" / "cases"


def stored(spec: ModelSpec, config: dict[str, Any], quantization: dict[str, Any]) -> StoredBytes:
    """The bytes of a checkpoint with the modules of `config`'s classes and this `quantization_config`."""
    scheme = scheme_of_config({"quantization_config": quantization})
    assert scheme is not None
    return quantized_size(spec, scheme, module_names_of=checkpoint_of(config).names(spec.tree(), spec.kind)).by_part


def of_llama(**quantization: Any) -> StoredBytes:
    return stored(DENSE, {"model_type": "llama"}, quantization)


Q, KV, OUT, F = 128 * 96, 64 * 96, 96 * 128, 192 * 96
"""Weights of the linear layers of DENSE, which has two layers."""

ALL = 2 * (Q + 2 * KV + OUT + 3 * F)


# Gemma 4: the class has the dense network in `mlp`, and the experts beside it


def gemma(several: Iterable[str]) -> dict[str, Any]:
    """A table in the form of nvidia's NVFP4 checkpoint of Gemma 4 26B-A4B: all parts named here are excluded."""
    layers = [f"model.language_model.layers.{i}.{part}" for i in range(30) for part in several]
    ignored = ["lm_head", "model.embed_vision*", "model.vision_tower*", *layers]
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored, "producer": {"name": "modelopt"}}


CONFIG = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]}


def test_nvfp4_of_gemma_4_26b_is_near_the_published_size() -> None:
    """128 experts of 3 × 704 × 2816 in 30 layers: half a byte each, and one byte of scale for 16; the rest in bf16.

    The published checkpoint has 17.6 GB of weights.
    """
    spec = llmcalc.load("gemma4-26b-a4b").model
    experts = 30 * 128 * 3 * 704 * 2816
    parts = stored(spec, CONFIG, gemma(("self_attn*", "mlp*", "router*")))
    assert parts.weights == experts // 2
    assert parts.scales == experts // 16 + 30 * 128 * 3 * 4
    assert parts.unconverted == 2 * (params(spec).total - experts)
    assert round(parts.total / 1e9, 1) == 17.6  # type: ignore[operator]


@pytest.mark.parametrize(
    ("part", "columns"),
    [
        ("mlp*", 3 * 2112 * 2816),
        ("mlp.down_proj", 2112 * 2816),
        ("experts*", 128 * 3 * 704 * 2816),
        ("experts.down_proj", 128 * 704 * 2816),
        ("router*", 0),
    ],
)
def test_each_part_of_a_gemma_4_layer_is_excluded_by_its_published_name(part: str, columns: int) -> None:
    spec = llmcalc.load("gemma4-26b-a4b").model
    more, less = (stored(spec, CONFIG, gemma(several)).weights for several in ((), (part,)))
    assert more - less == 30 * columns // 2  # type: ignore[operator]


def test_the_command_reads_the_names_of_the_config(run: Any, tmp_path: Path) -> None:
    """A small Gemma 4 with experts, whose config excludes `mlp` of each layer."""
    text = {
        "model_type": "gemma4_text", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "global_head_dim": 16,
        "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 96, "sliding_window": 16,
    }  # fmt: skip
    ignored = ["lm_head", *(f"model.language_model.layers.{i}.{x}*" for i in (0, 1) for x in ("mlp", "self_attn"))]
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ignored}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "text_config": text, "quantization_config": quantization}))
    weights_by_part = run("memory", str(file), "--format", "json").document["memory"]["weights_by_part"]
    assert weights_by_part["weights"] == 2 * 4 * 3 * 64 * 32
    assert load(str(file)).checkpoint is not None


# Configs in tests/data/cases, and lists with their source


def experts_of(spec: ModelSpec) -> int:
    number = params(spec).by_component["experts"]
    assert isinstance(number, int)
    return number


def case(name: str) -> tuple[ModelSpec, dict[str, Any], dict[str, Any]]:
    config = json.loads((CASES / name / "config.json").read_text())
    return spec_of(config), config, config["quantization_config"]


def test_gpt_oss_converts_the_weights_of_experts() -> None:
    """openai/gpt-oss-120b: lists attention and routers with `*` for the layer. 36 layers, 128 experts of 3 × 2880²."""
    spec, config, quantization = case("gpt-oss-120b")
    weights = 36 * 128 * 3 * 2880 * 2880
    assert stored(spec, config, quantization).weights == weights // 2
    listed = [*quantization["modules_to_not_convert"], "model.layers.0.mlp.experts"]
    parts = stored(spec, config, {**quantization, "modules_to_not_convert": listed})
    assert parts.weights == weights * 35 // 36 // 2


def test_minimax_m2_converts_all_but_routers_and_the_head() -> None:
    """MiniMaxAI/MiniMax-M2.5: `gate` is the router, not a part of `gate_proj`."""
    spec, config, quantization = case("minimax-m2.5")
    by = params(spec).by_component
    plain = by["embedding"] + by["lm_head"] + by["norm"] + by["router"]
    of_heads = 62 * (48 + 8) * 128  # norms of queries and keys
    assert by["router"] == 62 * 256 * 3072
    assert stored(spec, config, quantization).weights == params(spec).total - plain - of_heads


def test_mistral_small_4_converts_all_but_the_head() -> None:
    """mistralai/Mistral-Small-4-119B: encoders are listed, which are not part of the text model."""
    spec, config, quantization = case("mistral-small-4-119b")
    without = {**quantization, "modules_to_not_convert": ["lm_head"]}
    assert stored(spec, config, quantization) == stored(spec, config, without)


KIMI = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def test_kimi_k2_converts_routed_experts() -> None:
    """moonshotai/Kimi-K2.5: dense layers are excluded by a pattern that must not reach `mlp.experts`."""
    spec = llmcalc.load("deepseek-v3").model
    groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}
    quantization = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    parts = stored(spec, {"model_type": "deepseek_v3"}, {**quantization, "ignore": KIMI})
    assert parts.weights == experts_of(spec) // 2
    only = {"group_0": {"targets": [r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"], "weights": WEIGHTS}}
    assert stored(spec, {"model_type": "deepseek_v3"}, {**quantization, "config_groups": only}).weights == parts.weights


def test_minimax_m3_excludes_modules_by_earlier_names() -> None:
    """MiniMaxAI/MiniMax-M3: the wrapper's prefix and `block_sparse_moe` of version 4."""
    layer = "language_model.model.layers.3.block_sparse_moe"
    names = [f"{layer}.shared_experts.{leaf}_proj" for leaf in ("gate", "up", "down")]
    config = shapes_of("minimax_m3_vl_text")[0]
    spec = spec_of(config)
    table = {"quant_method": "modelopt", "quant_algo": "FP8"}
    whole, less = (stored(spec, config, {**table, "ignore": ["lm_head", *some]}).weights for some in ([], names))
    shared = 3 * config["hidden_size"] * config["shared_intermediate_size"]
    assert whole - less == shared  # type: ignore[operator]


def test_mixtral_awq_excludes_routers_alone() -> None:
    """AutoAWQ's Mixtral configs list `gate`; GPTQ ones name `block_sparse_moe.experts.*.w1`."""
    spec, config = llmcalc.load("mixtral-8x7b").model, {"model_type": "mixtral"}
    table = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
    listed = {**table, "modules_to_not_convert": ["gate"]}
    assert stored(spec, config, listed) == stored(spec, config, table)
    without_first = {**table, "modules_to_not_convert": ["block_sparse_moe.experts.0.w1"]}
    difference = stored(spec, config, table).weights - stored(spec, config, without_first).weights  # type: ignore[operator]
    assert difference == 32 * 8 * 4096 * 14336 // 2


def test_bitsandbytes_skips_whole_modules() -> None:
    """unsloth's dynamic 4-bit configs name `model.layers.1.mlp` and `model.layers.1.self_attn`."""
    skipped = ["lm_head", "multi_modal_projector", "model.layers.1.mlp"]
    table = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert of_llama(**table, llm_int8_skip_modules=skipped).weights == (ALL - 3 * F) // 2


def test_an_entry_for_a_fused_layer_is_one_for_its_parts_and_for_no_other() -> None:
    """vLLM writes `qkv_proj` and `gate_up_proj`; `v_proj` is no end of `qkv_proj` in a class without that layer."""
    fp8 = {"quant_method": "fp8"}
    assert of_llama(**fp8, modules_to_not_convert=["lm_head", "v_proj"]).weights == ALL - 2 * KV
    assert of_llama(**fp8, modules_to_not_convert=["lm_head", "up_proj"]).weights == ALL - 2 * F
    assert of_llama(**fp8, modules_to_not_convert=["lm_head", "qkv_proj"]).weights == ALL - 2 * (Q + 2 * KV)
    assert of_llama(**fp8, modules_to_not_convert=["lm_head", ".*gate_up_proj"]).weights == ALL - 4 * F
    groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    assert of_llama(**packed, ignore=["lm_head", "re:.*v_proj"]).weights == (ALL - 2 * KV) // 2
    assert of_llama(**packed, ignore=["lm_head", "re:.*qkv_proj"]).weights == (ALL - 2 * (Q + 2 * KV)) // 2


def test_modelopt_excludes_what_is_below_a_module() -> None:
    """hf_quant_config.json of ModelOpt lists modules with `*`, and older files without it."""
    table = {"quant_method": "modelopt", "quant_algo": "FP8"}
    for entry in ("model.layers.1.self_attn*", "model.layers.1.self_attn", "model.layers.1.*attn.*"):
        assert of_llama(**table, exclude_modules=["lm_head", entry]).weights == ALL - (Q + 2 * KV + OUT)
    assert of_llama(**table, exclude_modules=["lm_head", "model.layers.1.self"]).weights == ALL


def test_dynamic_rules_of_gptqmodel() -> None:
    """The README's example, for a model of two layers: the first pattern that matches counts."""
    table = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    whole = of_llama(**table)
    assert of_llama(**table, dynamic={}) == whole
    skipped = of_llama(**table, dynamic={"-:.*down.*": {}})
    assert whole.weights - skipped.weights == 2 * F // 2  # type: ignore[operator]
    wider = of_llama(**table, dynamic={r"+:.*\.1\..*gate.*": {"bits": 8, "group_size": 64}})
    assert wider.weights - whole.weights == F // 2  # type: ignore[operator]
    assert whole.scales - wider.scales == 2 * F // 32 - 2 * 192 * 2  # type: ignore[operator]
    both = of_llama(**table, dynamic={r".*\.1\..*gate.*": {"bits": 8}, "-:.*gate.*": {}})
    assert both.weights == whole.weights + F // 2 - F // 2  # type: ignore[operator]
    with pytest.raises(InputError, match=r"dynamic: .*speed: not known"):
        of_llama(**table, dynamic={".*": {"speed": 1}})
    with pytest.raises(InputError, match="quick to match"):
        of_llama(**table, dynamic={"-:(a+)+#": {}})


PREDICTING: dict[str, Any] = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 96, "hidden_size": 32,
    "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "num_nextn_predict_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize("entry", ["mtp*", "mtp.layers.0*", "model.layers.2*"])
def test_modules_of_multi_token_prediction_are_excluded_by_their_names(entry: str) -> None:
    """They are numbered after the layers, or stand in a list of their own, as in Qwen3.5's checkpoints."""
    spec = spec_of(PREDICTING)

    def size(*entries: str, include: frozenset[str] = frozenset()) -> QuantizedSize:
        table = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", *entries]}
        scheme = scheme_of_config({**PREDICTING, "quantization_config": table})
        assert scheme is not None
        names = checkpoint_of(PREDICTING).names(spec.tree(), spec.kind)
        return quantized_size(spec, scheme, included_parts=include, module_names_of=names)

    with_module = size(entry, include=frozenset({"mtp"}))
    module = (
        sum(site.tensor.size * site.copies for site in weight_tensors_of(spec.tree(), frozenset({"mtp"})))
        - params(spec).total
    )
    assert with_module.total - size(entry).total == 2 * module
    for found in (with_module, size(entry)):
        assert not [note for note in found.scheme.notes() if "not in this model" in note]


@pytest.mark.parametrize(
    "entries",
    [
        ("*.mlp.shared_experts.*", "model.layers.1.mlp.shared_experts*"),
        ("model.layers.0*", "model.layers.0.mlp*"),
        ("model.vision_tower*", "mm_projector*", "e_score_correction_bias"),
    ],
)
def test_entries_that_another_entry_covers_or_that_name_encoders_are_no_mistakes(entries: tuple[str, ...]) -> None:
    table = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", *entries]}
    scheme = scheme_of_config({**PREDICTING, "quantization_config": table})
    assert scheme is not None
    spec = spec_of(PREDICTING)
    size = quantized_size(spec, scheme, module_names_of=checkpoint_of(PREDICTING).names(spec.tree(), spec.kind))
    assert not [note for note in size.scheme.notes() if "not in this model" in note]


def test_modules_that_no_format_converts_are_in_the_model() -> None:
    """The config of gpt-oss excludes attention, and MXFP4 converts experts alone."""
    preset = llmcalc.load("gpt-oss-20b")
    use = memory(preset.model, Settings(), preset.dtype, frozenset(), preset.checkpoint)
    assert use.quantized_size is not None
    assert not [note for note in use.quantized_size.scheme.notes() if "not in this model" in note]


# Checkpoints of Qwen3.6 27B whose index states the bytes of all tensors, its encoder included

LINEAR = [i for i in range(64) if i % 4 != 3]
FULL = [i for i in range(64) if i % 4 == 3]
EIGHT_BITS = {"bits": 8, "group_size": 64, "mode": "affine"}


def unconverted_by_auto_round() -> list[str]:
    """The list in config.json of github.com/hualayn/ai-articles at dfaac59, by its layers."""
    layer = "model.language_model.layers."
    return [
        *(f"{layer}{i}.linear_attn.{part}" for i in LINEAR for part in ("in_proj_a", "in_proj_b", "out_proj")),
        *(f"{layer}{i}.self_attn.o_proj" for i in FULL),
        *(f"{layer}{i}.self_attn.{part}_proj" for i in range(43, 64, 4) for part in "qkv"),
        *(f"{layer}{i}.mlp.{part}_proj" for i in range(43, 64, 4) for part in ("gate", "up")),
        *(f"{layer}{i}.mlp.down_proj" for i in FULL),
        *("model.visual.blocks", "visual", "linear_attn.out_proj", "linear_attn.in_proj_b", "linear_attn.in_proj_a"),
        *("lm_head", "embed_tokens", "self_attn.o_proj", "mtp"),
    ]


CHECKPOINTS: dict[str, tuple[dict[str, Any], int]] = {
    "AutoRound in AWQ's format, github.com/hualayn/ai-articles at dfaac59": (
        {
            "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm", "sym": False,
            "provider": "auto-round", "autoround_version": "0.12.3", "data_type": "int", "batch_size": 1,
            "nsamples": 1024, "seqlen": 4096, "low_gpu_mem_usage": True,
            "to_quant_block_names": "model.language_model.layers",
            "modules_to_not_convert": unconverted_by_auto_round(),
        },
        26_025_400_800,
    ),
    "mlx-lm in 4 and 8 bits, github.com/Arp1tMoga/fast_qwen at 0f58585": (
        {
            "bits": 4, "group_size": 32, "mode": "affine",
            **dict.fromkeys(("language_model.lm_head", "language_model.model.embed_tokens"), EIGHT_BITS),
            **{f"language_model.model.layers.{i}.linear_attn.out_proj": EIGHT_BITS for i in LINEAR},
            **{
                f"language_model.model.layers.{i}.mlp.{part}_proj": EIGHT_BITS
                for i in range(56, 64) for part in ("gate", "up", "down")
            },
        },
        20_444_027_360,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_an_index_of_qwen_36_has_the_counted_bytes(name: str) -> None:
    table, total = CHECKPOINTS[name]
    spec = load("qwen3.6-27b").model
    config = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    scheme = scheme_of_config({**config, "quantization_config": table})
    assert scheme is not None
    names = checkpoint_of(config).names(spec.tree(), spec.kind)
    assert quantized_size(spec, scheme, included_parts=frozenset({"towers"}), module_names_of=names).total == total


@pytest.mark.parametrize(
    ("entry", "weights"),
    [
        ("self_attn", 16 * 5120 * 256 * (2 * 24 + 2 * 4 + 24)),
        ("linear_attn", 48 * 5120 * 128 * (16 + 16 + 2 * 48 + 48) + 48 * 5120 * 2 * 48),
    ],
)
def test_self_attn_names_no_linear_attention_of_qwen_36(entry: str, weights: int) -> None:
    """The class has `linear_attn` in 48 layers and `self_attn` in 16, which alone an entry of that name means."""
    spec, config = load("qwen3.6-27b").model, {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
    table = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    whole, listed = (stored(spec, config, {**table, "modules_to_not_convert": names}) for names in ([], [entry]))
    assert (whole.weights - listed.weights) * 2 == weights


def test_an_index_of_qwen_25_in_3_bits_has_the_counted_bytes() -> None:
    """Of github.com/roshinpv/mpx at 60b0a99, whose config has the sizes of Qwen2.5 14B."""
    scheme = scheme_of_config({"model_type": "qwen2", "quantization": {"group_size": 64, "bits": 3}})
    assert scheme is not None
    assert quantized_size(load("qwen2.5-14b").model, scheme).total == 6_463_203_328


def test_an_index_of_qwen_35_in_8_bits_has_the_counted_bytes() -> None:
    """Of github.com/leo-kreisman/Qwen3.5-9B-MLX-8bit at 57b6613, which has each linear layer's 32 decays in float32."""
    config = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    spec, scheme = load("qwen3.5-9b").model, scheme_of_config({**config, "quantization": EIGHT_BITS})
    assert scheme is not None
    names = checkpoint_of(config).names(spec.tree(), spec.kind)
    counted = quantized_size(spec, scheme, included_parts=frozenset({"towers"}), module_names_of=names).total
    assert counted + 24 * 32 * (4 - 2) == 10_426_433_504


def test_an_index_of_mistral_small_4_in_4_bits_has_the_counted_bytes() -> None:
    """Of github.com/delsakov/mcp_tests at 41ae95c; mlx-vlm of its day left routers in bf16, as the names show."""
    config = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]}
    scheme = scheme_of_config({**config, "quantization": {"group_size": 64, "bits": 4, "mode": "affine"}})
    assert scheme is not None
    spec = load("mistral-small-4-119b").model
    routers, bits = 36 * 128 * 4096, Fraction(4 * 64 + 2 * 16, 64)
    assert params(spec).total == 118_972_826_624
    assert quantized_size(spec, scheme).total + routers * (16 - bits) / 8 == 66_949_842_944


AUTO_ROUND = {
    "quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "autoround_version": "0.12.3",
    "bits": 4, "act_bits": 4, "sym": True, "act_sym": True, "act_dynamic": True, "iters": 0,
}  # fmt: skip
NVFP4 = {"data_type": "nv_fp", "act_data_type": "nv_fp4_with_static_gs", "group_size": 16, "act_group_size": 16}
MXFP4 = {"data_type": "mx_fp", "act_data_type": "mx_fp", "group_size": 32, "act_group_size": 32}


def test_auto_rounds_nvfp4_of_qwen_3_has_the_size_of_its_file() -> None:
    """`model.safetensors` of Qwen3-1.7B has 1,415,404,568 bytes, of which some 113 for each tensor are its header.

    196 linear layers have four tensors each: codes, two scales and that of the activations.
    """
    spec = load("qwen3-1.7b").model
    scheme = scheme_of_config({"quantization_config": {**AUTO_ROUND, **NVFP4}})
    assert scheme is not None
    total = quantized_size(spec, scheme).total
    assert 105 < (1_415_404_568 - total) / (4 * 196 + 4 * 28 + 2) < 120  # type: ignore[operator]
    assert scheme.label == "auto-round-nvfp4-g16"


def test_auto_rounds_mxfp4_is_that_of_compressed_tensors() -> None:
    weights = {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": weights}
    table = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": group},
    }
    exported = of_llama(**table, ignore=["lm_head"], provider="auto-round")
    assert of_llama(**AUTO_ROUND, **MXFP4) == exported
    wide = {"extra_config": {"model.layers.0.mlp.down_proj": {"bits": 16, "data_type": "float"}}}
    assert of_llama(**AUTO_ROUND, **MXFP4, **wide).weights == ALL // 2 - F // 2
    eight = {"extra_config": {"model.layers.0.mlp.down_proj": {"bits": 8}}}
    assert of_llama(**AUTO_ROUND, **MXFP4, **eight).weights == ALL // 2 + F // 2
    with pytest.raises(InputError, match="group_size: 64; expected 32, the block of mx_fp"):
        of_llama(**AUTO_ROUND, **{**MXFP4, "group_size": 64})


def test_what_gptqmodel_writes_beside_a_format_changes_nothing() -> None:
    """The fields of a config that GPTQModel 5.6.12 wrote, as quoted in an issue of its repository."""
    table = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    written = {
        "desc_act": False, "sym": True, "lm_head": False, "checkpoint_format": "gptq", "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:5.6.12"], "mse": 0.0, "gptaq": False}, "pack_impl": "cpu", "format": "gptq",
    }  # fmt: skip
    assert of_llama(**table, **written) == of_llama(**table)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_name_comes_before_a_pattern_and_both_before_all_linear_layers(order: tuple[int, ...]) -> None:
    """Of compressed-tensors, in whichever order the groups are: Qwen3.6's checkpoints have `Linear` first."""

    def group(target: str, bits: int) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}
        return {"targets": [target], "weights": weights, "format": "pack-quantized"}

    groups = (group("Linear", 4), group("re:.*down_proj$", 8), group("model.layers.1.mlp.down_proj", 2))
    table = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
    size = of_llama(**table, config_groups={f"group_{i}": groups[i] for i in order})
    assert size.weights == (ALL - 2 * F) // 2 + F + F // 4


# FP8 with vLLM's list: MiMo-V2.5

FULL_LAYERS, SLIDING_LAYERS, EXPERT_LAYERS = 9, 39, 47

MIMO_V2_5: dict[str, Any] = {
    "model_type": "mimo_v2", "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "sliding_window": 128,
    "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0], *7 * [1, 1, 1, 1, 1, 0]], "moe_layer_freq": [0, *47 * [1]],
    "add_swa_attention_sink_bias": True, "max_position_embeddings": 1048576, "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "store_dtype": "fp8",
        "weight_block_size": [128, 128], "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(48)],
    },
}  # fmt: skip


def test_fp8_of_mimo_v2_5_has_the_bytes_of_its_published_tensors() -> None:
    """Shapes and number formats are those in a published list of all 73,081 tensors of XiaomiMiMo/MiMo-V2.5.

    The checkpoint has routers in fp32, not counted so here, and 108 rows of scales for 13568 rows of queries, keys and
    values, because each of four parts of these has blocks of its own; counted are 106.
    """
    queries_keys_values = FULL_LAYERS * 13568 * 4096 + SLIDING_LAYERS * 14848 * 4096
    converted = queries_keys_values + 3 * 16384 * 4096 + EXPERT_LAYERS * 256 * 3 * 2048 * 4096
    embedding_and_head, outputs, norms = 2 * 152576 * 4096, 48 * 4096 * 8192, (2 * 48 + 1) * 4096
    routers, sinks = EXPERT_LAYERS * 256 * 4096, SLIDING_LAYERS * 64
    parts = quantized_parts(MIMO_V2_5)
    assert parts.weights == converted
    assert parts.scales == 4 * converted // 128**2
    assert parts.unconverted == 2 * (embedding_and_head + outputs + norms + routers + sinks)


def quantized_parts(config: dict[str, Any]) -> StoredBytes:
    return stored(spec_of(config), config, config["quantization_config"])


def test_the_list_of_transformers_converts_a_head_that_it_does_not_name() -> None:
    fields = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    listed = ["model.layers.0.mlp.up_proj"]
    kept, converted = (of_llama(**fields, **{name: listed}) for name in ("ignored_layers", "modules_to_not_convert"))
    head = DENSE.vocab_size * DENSE.hidden_size
    assert (converted.weights - kept.weights, kept.unconverted - converted.unconverted) == (head, 2 * head)


def test_fp8_that_is_stored_in_mxfp4_is_refused() -> None:
    with pytest.raises(InputError, match="store_dtype: 'mxfp4'; expected one of None, 'fp8'"):
        of_llama(quant_method="fp8", weight_block_size=[32, 32], store_dtype="mxfp4")

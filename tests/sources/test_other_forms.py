"""Configs in the forms of other programs: read as the config of the class that computes them, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from tests.samples import in_one_test

LLAMA3_8B: dict[str, Any] = {
    "dim": 4096, "ffn_dim_multiplier": 1.3, "multiple_of": 1024, "n_heads": 32, "n_kv_heads": 8, "n_layers": 32,
    "norm_eps": 1e-05, "rope_theta": 500000.0, "vocab_size": 128256,
}  # fmt: skip
"""The arguments of Llama 3 8B in meta-llama/llama-models: an FFN of 1,024 · ⌈1.3 · 10,922 / 1,024⌉ = 14,336."""

MISTRAL_7B: dict[str, Any] = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-05, "vocab_size": 32000,
}  # fmt: skip

EXECUTORCH: dict[str, Any] = {
    "dim": 2560, "ffn_dim_multiplier": 1, "hidden_dim": 9728, "n_heads": 32, "head_dim": 128, "n_kv_heads": 8,
    "n_layers": 36, "norm_eps": 1e-06, "rope_theta": 1000000.0, "use_scaled_rope": False, "vocab_size": 151936,
    "use_hf_rope": True, "attention_qkv_bias": False, "use_qk_norm": True, "qk_norm_before_rope": True,
}  # fmt: skip
"""examples/models/qwen3/config/4b_config.json of pytorch/executorch."""

EXECUTORCH_QWEN2: dict[str, Any] = {
    "dim": 5120, "ffn_dim_multiplier": 1, "hidden_dim": 27648, "n_heads": 40, "head_dim": 128, "n_kv_heads": 8,
    "n_layers": 64, "norm_eps": 1e-06, "rope_theta": 1000000.0, "use_scaled_rope": False, "vocab_size": 152064,
    "use_hf_rope": True, "attention_qkv_bias": True,
}  # fmt: skip
"""examples/models/qwen2_5/config/coder_32b_config.json of pytorch/executorch."""

EXECUTORCH_SMOLLM3: dict[str, Any] = {
    "dim": 2048, "ffn_dim_multiplier": 1, "hidden_dim": 11008, "n_heads": 16, "n_kv_heads": 4, "n_layers": 36,
    "norm_eps": 1e-06, "rope_theta": 5000000.0, "use_scaled_rope": False, "vocab_size": 128256, "use_hf_rope": False,
    "no_rope_layer_interval": 4, "attention_qkv_bias": False,
}  # fmt: skip
"""examples/models/smollm3/3b_config.json of pytorch/executorch."""

EXECUTORCH_GRANITE: dict[str, Any] = {
    "dim": 2048, "attention_qkv_bias": False, "attention_multiplier": 0.015625, "bos_idx": 0,
    "embedding_scale_factor": 12.0, "eos_idx": 0, "act_fn": "silu", "hidden_dim": 8192, "n_heads": 32, "n_layers": 40,
    "n_kv_heads": 8, "norm_eps": 1e-05, "rope_theta": 10000000.0, "vocab_size": 49159, "use_hf_rope": False,
    "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip
"""examples/models/granite/config/2b_config.json of pytorch/executorch."""

SIMUMAX: dict[str, Any] = {
    "model_type": "moe", "model_name": "deepseek_v3", "attention_type": "mla", "hidden_size": 7168, "head_num": 128,
    "kv_head_num": 128, "head_size": 128, "intermediate_size": 18432, "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048, "layer_num": 61, "dense_layers": 3, "expert_num": 256,
    "v_head_dim": 128, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "topk": 8, "vocab_size": 129280, "use_swiglu": True,
}  # fmt: skip
"""configs/models/deepseekv3.json of MooreThreads/SimuMax."""

SIMUMAX_MIXTRAL: dict[str, Any] = {
    "model_type": "moe", "model_name": "mixtral_8x7b", "hidden_size": 4096, "head_num": 32, "kv_head_num": 8,
    "head_size": 128, "intermediate_size": 14336, "layer_num": 32, "expert_num": 8, "topk": 2, "vocab_size": 32000,
    "use_swiglu": True,
}  # fmt: skip
"""configs/models/mixtral-8x7b.json of MooreThreads/SimuMax."""

SIMUMAX_LLAMA: dict[str, Any] = {
    "model_type": "dense", "model_name": "llama2_70b", "hidden_size": 8192, "head_num": 64, "kv_head_num": 8,
    "head_size": 128, "intermediate_size": 28672, "layer_num": 80, "vocab_size": 32000, "use_swiglu": True,
}  # fmt: skip
"""configs/models/llama2-70b.json of MooreThreads/SimuMax."""

GPT2 = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "bias": True,
    "vocab_size": 50257,
    "dropout": 0.0,
}
GPT_OSS_20B: dict[str, Any] = {
    "num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4, "vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "sliding_window": 128, "initial_context_length": 4096, "rope_theta": 150000, "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1, "rope_ntk_beta": 32,
}  # fmt: skip
"""original/config.json of openai/gpt-oss-20b."""

NANOCHAT = {"sequence_len": 2048, "vocab_size": 65536, "n_layer": 20, "n_head": 10, "n_kv_head": 10, "n_embd": 1280}


def test_arguments_without_a_word_on_tying_are_remarked_on(run: Any, tmp_path: Path) -> None:
    """Llama 3.2 1B's params.json is in the form of 3.1's, whose models have a head of their own; its checkpoint of
    2.47 GB has none: 1,235,814,400 parameters.
    """
    arguments = {
        **LLAMA3_8B,
        "dim": 2048,
        "n_layers": 16,
        "n_heads": 32,
        "ffn_dim_multiplier": 1.5,
        "multiple_of": 256,
        "use_scaled_rope": True,
    }
    note = llmcalc.load(arguments).notes[0]
    assert note == (
        "params.json of Llama: read as 'llama' with an output head of its own (Llama 3.2 1B and 3B have none: --set "
        "tie_word_embeddings=true)"
    )
    (tmp_path / "params.json").write_text(json.dumps(arguments))
    tied = run("params", str(tmp_path / "params.json"), "--set", "tie_word_embeddings=true", "--format", "json")
    assert tied.document["params"]["total"] == 1_235_814_400


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (LLAMA3_8B, "llama3-8b"),
        (MISTRAL_7B, "mistral-7b"),
        ({**MISTRAL_7B, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}, "mixtral-8x7b"),
        (GPT2, "gpt2"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (SIMUMAX, "deepseek-v3"),
        (SIMUMAX_MIXTRAL, "mixtral-8x7b"),
        (SIMUMAX_LLAMA, "llama2-70b"),
    ],
)
def test_arguments_of_a_known_model_have_its_parameters(config: dict[str, Any], preset: str) -> None:
    description = llmcalc.load(config)
    assert llmcalc.params(description).total == llmcalc.params(preset).total
    assert llmcalc.kv(description, seq=512).bytes == llmcalc.kv(preset, seq=512).bytes
    assert "read as" in description.notes[0]


@pytest.mark.parametrize(
    ("config", "model_type", "tied_total", "table"),
    [
        (EXECUTORCH, "qwen3", 4_022_468_096, 151936 * 2560),
        (EXECUTORCH_QWEN2, "qwen2", 32_763_876_352, 0),
        (EXECUTORCH_SMOLLM3, "smollm3", 3_075_098_624, 128256 * 2048),
        (EXECUTORCH_GRANITE, "granite", 2_533_539_840, 49159 * 2048),
    ],
)
def test_arguments_of_executorch_have_a_head_of_their_own(
    config: dict[str, Any], model_type: str, tied_total: int, table: int
) -> None:
    """The published totals of Qwen3 4B, Qwen2.5 32B (untied), SmolLM3 3B and Granite 3.3 2B with 49,159 tokens."""
    description = llmcalc.load(config)
    assert description.config is not None
    assert description.config["model_type"] == model_type
    assert llmcalc.params(description).total == tied_total + table


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}, "rms_norm": True}, 2_768_345_600),
        (
            {
                "d_model": 2560,
                "n_layer": 64,
                "vocab_size": 50277,
                "ssm_cfg": {"layer": "Mamba2"},
                "attn_layer_idx": [],
                "pad_vocab_size_multiple": 16,
            },
            2_702_599_680,
        ),
    ],
)
def test_arguments_of_mamba_have_the_published_parameters(config: dict[str, Any], total: int) -> None:
    """state-spaces/mamba-2.8b and mamba2-2.7b."""
    assert llmcalc.params(config).total == total


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ssm_cfg": {"layer": "Mamba3"}}, "ssm_cfg"),
        ({"attn_layer_idx": [9]}, "attn_layer_idx"),
        ({"d_model": 2.5}, "d_model"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 7}}, "headdim"),
    ],
)
def test_other_arguments_of_mamba_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llmcalc.params({"d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}, **fields})


def test_nanochat_has_no_parameters_but_matrices() -> None:
    total = 2 * 65536 * 1280 + 20 * 12 * 1280**2
    assert llmcalc.params(NANOCHAT).total == total == 560_988_160
    assert llmcalc.params({"step": 9, "model_config": NANOCHAT, "user_config": {}}).total == total


def test_nanogpt_without_biases_has_the_parameters_that_it_prints() -> None:
    """nanoGPT prints 123.59M: its parameters without the table of positions."""
    total = llmcalc.params({**GPT2, "bias": False, "vocab_size": 50304}).total
    assert total - 1024 * 768 == 123_587_328


MINIMIND: dict[str, Any] = {
    "model_type": "minimind", "vocab_size": 6400, "hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 8,
}  # fmt: skip
LATER = {**MINIMIND, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 1}
EARLIER = {**MINIMIND, "num_key_value_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
FIRST = {
    "model_type": "minimind", "vocab_size": 6400, "dim": 768, "n_layers": 16, "n_heads": 8, "n_kv_heads": 2,
    "hidden_dim": 2048, "multiple_of": 64, "n_routed_experts": 4, "n_shared_experts": True, "use_moe": False,
}  # fmt: skip
"""config.json of github.com/HYanChen/MiniMind2."""


@in_one_test
@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LATER, 64),
        ({**LATER, "use_moe": True}, 198),
        ({**EARLIER, "hidden_size": 512}, 26),
        ({**EARLIER, "hidden_size": 640, "use_moe": True}, 145),
        (FIRST, 104),
    ],
)
def test_versions_of_minimind_have_the_sizes_of_its_readme(config: dict[str, Any], published: int) -> None:
    assert round(llmcalc.params(config).total / 1e6) == published


def test_the_later_minimind_with_experts_is_198m_a64m() -> None:
    assert round(llmcalc.params({**LATER, "use_moe": True}).active / 1e6) == 64


def test_each_shared_expert_of_minimind_is_one_more_network() -> None:
    one, two = ({**EARLIER, "use_moe": True, "n_shared_experts": count} for count in (1, 2))
    assert llmcalc.params(two).total - llmcalc.params(one).total == 8 * 3 * 768 * 2048
    first = {**FIRST, "use_moe": True, "num_experts_per_tok": 2}
    routed_alone = {**first, "n_shared_experts": None}
    assert llmcalc.params(first).total - llmcalc.params(routed_alone).total == 16 * 3 * 768 * 2048
    assert llmcalc.params({**first, "n_shared_experts": 2}).total == llmcalc.params(first).total


@pytest.mark.parametrize("config", [MINIMIND, LATER | EARLIER])
def test_a_version_of_minimind_is_told_by_its_experts(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"num_experts.*expected either num_experts .since 2026. or n_routed_experts"):
        llmcalc.params(config)


def test_mlcs_config_is_that_of_its_model() -> None:
    fields = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "vocab_size": 100, "tie_word_embeddings": False,
    }  # fmt: skip
    engine = {"position_embedding_base": 10000.0, "context_window_size": 4096, "prefill_chunk_size": 512}
    written = {
        "model_type": "llama",
        "quantization": "q4f16_1",
        "model_config": {**fields, **engine},
        "version": "0.1.0",
    }
    description = llmcalc.load(written)
    assert llmcalc.params(description).total == llmcalc.params({"model_type": "llama", **fields}).total
    assert description.config is not None
    assert description.config["max_position_embeddings"] == 4096
    assert any("q4f16_1' is not counted; --quantize counts a scheme" in note for note in description.notes)


@in_one_test
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA3_8B, "vocab_size": -1}, "vocab_size: -1; expected the number of entries of the tokenizer"),
        ({**LLAMA3_8B, "vocab_size": 0}, "vocab_size: 0; expected a positive whole number"),
        ({**LLAMA3_8B, "ffn_dim_multiplier": "x"}, "ffn_dim_multiplier: 'x'; expected a number"),
        ({**MISTRAL_7B, "moe": 8}, "moe: 8; expected a table of fields"),
        ({**GPT2, "bias": 1}, "bias: 1; expected true or false"),
        ({**NANOCHAT, "window_pattern": "SSSL"}, "window_pattern: 'SSSL'; nanochat's later models"),
        ({**LLAMA3_8B, "n_experts": 8}, "model_type: missing"),
        ({**EXECUTORCH, "act_fn": "gelu"}, "act_fn: 'gelu'; expected 'silu' .ExecuTorch"),
        ({**EXECUTORCH, "layer_types": ["conv"]}, "layer_types: a list; expected none"),
        ({**EXECUTORCH, "use_qk_norm": 1}, "use_qk_norm: 1; expected true or false"),
        ({**EXECUTORCH, "attention_qkv_bias": True}, "those of qwen2, qwen3 together; expected those of one"),
        ({**EXECUTORCH, "qk_norm_before_rope": False}, "qk_norm_before_rope: expected true"),
        (
            {"name": "llama", "num_layers": 32, "n_head": 32, "hidden_dim": 4096, "vocab_size": 32000},
            "fields of llm-analysis.*expected the config.json",
        ),
        (
            {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0", "num_layers": 19},
            "_class_name: 'FluxTransformer2DModel' is a class of diffusers",
        ),
        (
            {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-2-7b-hf", "r": 16},
            "peft_type: 'LORA' is an adapter.*its base model, 'meta-llama/Llama-2-7b-hf'.*--lora-rank 16",
        ),
        (
            {"peft_type": "LORA", "r": 8, "target_modules": ["model.q_proj", "down_proj"], "use_dora": True}
            | {"modules_to_save": ["lm_head"], "rank_pattern": {"q_proj": 4}},
            "--lora-rank 8 --lora-targets down_proj,q_proj --modules-to-save lm_head --use-dora; .* state "
            "rank_pattern of this adapter",
        ),
        ({"peft_type": "LORA", "r": 8, "target_modules": "all-linear"}, "--lora-rank 8 --lora-targets all-linear$"),
        (
            {"peft_type": "LORA", "r": 8, "target_modules": ".*(q|k)_proj$"},
            r"with --lora-rank 8; --lora-targets .*do not state '\.\*\(q\|k\)_proj\$' in target_modules of",
        ),
        (
            {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "o|v"], "layers_to_transform": [0, 1]}
            | {"exclude_modules": ["lm_head"], "modules_to_save": ["classifier"]},
            "--lora-targets q_proj; .* state exclude_modules, layers_to_transform, 'o.v' in target_modules, "
            "'classifier' in modules_to_save of this adapter",
        ),
        (
            {"peft_type": "LORA", "r": 8, "target_modules": ["model.layers.3.self_attn.q_proj"]},
            "--lora-targets q_proj; .* state 'model.layers.3.self_attn.q_proj' in target_modules of",
        ),
        ({"peft_type": None, "r": 8}, "peft_type: null in an adapter's config; expected the kind of adapter"),
        ({"peft_type": "VERA", "r": 256}, "of PEFT's adapters llmcalc memory counts the training of LoRA alone"),
        (
            {"emb_size": 768, "feedforward_size": 3072, "hidden_size": 768, "heads_num": 12, "layers_num": 12},
            "fields of TencentPretrain: they state no size of a vocabulary",
        ),
        ({**GPT_OSS_20B, "experts_per_token": 0}, "experts_per_token: 0; expected a positive whole number"),
        ({**GPT_OSS_20B, "rope_scaling_factor": "32"}, "rope_scaling_factor: '32'; expected a positive number"),
        ({**SIMUMAX, "use_swiglu": False}, "use_swiglu: False; expected true"),
        ({**SIMUMAX, "layer_num": 0}, "layer_num: 0; expected a positive whole number"),
        ({**SIMUMAX, "dense_layers": "3"}, "dense_layers: '3'; expected a number from 0 to"),
        ({**SIMUMAX, "moe_shared_expert_intermediate_size": 3000}, "moe_shared.*: 3000; expected a multiple.*2048"),
        ({**SIMUMAX, "window": 128}, "window: is no field of SimuMax's models"),
    ],
)
def test_arguments_without_such_a_class_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llmcalc.load(config)


def test_a_yaml_file_is_refused_with_a_way_out(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text("n_layer: 2\n")
    err = run("params", str(path)).error
    assert err.count("error:") == 1
    assert "expected the config.json beside litgpt's model_config.yaml or the hub id in its hf_config" in err


def test_a_params_json_is_read_from_a_file(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps(LLAMA3_8B))
    for target in (path, tmp_path):
        assert run("params", str(target), "--format", "json").document["params"]["total"] == 8_030_261_248

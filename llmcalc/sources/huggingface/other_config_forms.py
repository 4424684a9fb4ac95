"""Configs of other programs: of model makers (Meta, Mistral, OpenAI), trainers, simulators and engines.

Sources: llama/model.py of meta-llama/llama (`ModelArgs`, `FeedForward`); model_args.py, llama_transformer.py and
attention.py in examples/models/llama of pytorch/executorch; model.py of karpathy/nanoGPT; nanochat/gpt.py
of karpathy/nanochat; the `model_config` of mlc-ai/mlc-llm; mamba_ssm/models and mamba_ssm/modules of
state-spaces/mamba; simumax/core/config.py (`ModelConfig`) and simumax/core/transformer of MooreThreads/SimuMax;
gpt_oss/torch/model.py (`ModelConfig`) of openai/gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from ...components.base import LARGEST_SIZE
from ...errors import InputError, short_repr
from ...workload.lora import ALL_LINEAR
from .config import is_json_integer, is_number
from .family import field_names

META_FIELDS = field_names("""
    dim n_layers n_heads n_kv_heads vocab_size multiple_of ffn_dim_multiplier norm_eps rope_theta use_scaled_rope
    max_batch_size max_seq_len rope_scaling_factor high_freq_factor
    """)
"""Fields of Meta's `params.json` for Llama 1 to 3."""

EXECUTORCH_FIELDS = META_FIELDS | field_names("""
    hidden_dim head_dim attention_qkv_bias use_qk_norm qk_norm_before_rope no_rope_layer_interval attention_multiplier
    residual_multiplier embedding_scale_factor logits_scaling
    """)
"""Fields of ExecuTorch's `ModelArgs` that are read."""

EXECUTORCH_SETTINGS = field_names("""
    use_hf_rope rope_freq_base rope_scale_factor max_context_len bos_idx eos_idx bos_count eos_count model_architecture
    use_kv_cache use_sdpa_with_kv_cache_op generate_full_logits enable_dynamic_shape device kv_io_bit_width
    original_max_position_embeddings max_position_embeddings rope_scaling_short_factor rope_scaling_long_factor
    rope_scaling_attention_factor
    """)
"""Fields of ExecuTorch's `ModelArgs` that change no count."""

EXECUTORCH_FIXED: dict[str, Any] = {
    "act_fn": "silu", "norm_type": "rmsnorm", "attention_type": "mha", "apply_embedding": True, "apply_output": True,
    "use_ffn_norm": True, "qk_norm_affine": True, "partial_rotary_factor": 1.0, "moe": False, "output_bias": False,
    "use_q_gate": False, "post_attention_norm": False, "post_ffn_norm": False, "rms_norm_add_unit_offset": False,
}  # fmt: skip
"""Fields of ExecuTorch's `ModelArgs` with the only value that is read; other fields must be null."""

PROGRAMS_WITHOUT_SIZES: dict[frozenset[str], str] = {
    field_names("name num_layers n_head hidden_dim vocab_size"): "llm-analysis: they state no norms, biases or gates",
    field_names(
        "emb_size feedforward_size heads_num layers_num"
    ): "TencentPretrain: they state no size of a vocabulary",
}
"""Fields that occur only in one program's configs → the program, and what its configs leave out."""

MISTRAL_FIELDS = field_names(
    "dim n_layers n_heads n_kv_heads head_dim hidden_dim vocab_size norm_eps rope_theta max_seq_len moe"
)
"""Fields of Mistral's `params.json`."""

GPT_OSS_NAMES = {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"}
GPT_OSS_SIZES = field_names("""
    num_hidden_layers vocab_size hidden_size intermediate_size head_dim num_attention_heads num_key_value_heads
    sliding_window
    """)
GPT_OSS_FIELDS = (
    GPT_OSS_SIZES
    | {*GPT_OSS_NAMES.values()}
    | field_names("""
    swiglu_limit initial_context_length rope_theta rope_scaling_factor rope_ntk_alpha rope_ntk_beta
    """)
)
"""Fields of OpenAI's `ModelConfig` of gpt-oss, in `original/config.json` of its repositories."""

NANOGPT_FIELDS = field_names("n_layer n_head n_embd block_size bias vocab_size dropout")
NANOCHAT_FIELDS = field_names("sequence_len sequence_length vocab_size n_layer n_head n_kv_head n_embd")

MAMBA_FIELDS = field_names("""
    d_model d_intermediate n_layer vocab_size ssm_cfg attn_layer_idx attn_cfg rms_norm residual_in_fp32 fused_add_norm
    pad_vocab_size_multiple tie_embeddings
    """)
"""Arguments of mamba_ssm's `MambaConfig`."""

SIMUMAX_FIELDS = field_names("""
    model_type model_name attention_type hidden_size head_num kv_head_num head_size intermediate_size layer_num
    vocab_size orig_vocab_size use_swiglu expert_num topk moe_ffn_hidden_size moe_shared_expert_intermediate_size
    dense_layers v_head_dim qk_head_dim qk_pos_emb_head_dim q_lora_rank kv_lora_rank capacity group_linear_mode
    moe_pad_expert_input_to_capacity make_vocab_size_divisible_by padded_vocab_size
    """)
"""Fields of SimuMax's `ModelConfig`."""

MLC_FIELDS = field_names("""
    position_embedding_base context_window_size prefill_chunk_size tensor_parallel_shards pipeline_parallel_stages
    max_batch_size attention_sink_size sliding_window_size disaggregation kwargs head_dim
    """)
"""Fields of MLC's `model_config` that are settings of its engine, and `head_dim`, which it fills in."""

MODULE_NAME = re.compile(r"[A-Za-z_][\w.-]{0,99}")
"""Pattern of a plain module name, as opposed to a regular expression for module names."""


SAVED_MODULES = ("embed_tokens", "lm_head")
"""Modules outside the layers that `--modules-to-save` accepts for every model."""

OTHER_ADAPTER_FIELDS = (
    "exclude_modules",
    "layer_replication",
    "layers_to_transform",
    "rank_pattern",
    "target_parameters",
)
"""Fields of a LoRA adapter's config that change its size and that no option states."""


def _adapter_advice(adapter_config: Mapping[str, Any]) -> str:
    """Returns the `llmcalc memory` options for training this adapter, and what those options leave out."""
    adapter_rank = adapter_config.get("r")
    if adapter_config["peft_type"] != "LORA" or not is_json_integer(adapter_rank) or adapter_rank < 1:
        return "of PEFT's adapters llmcalc memory counts the training of LoRA alone (--lora-rank)"
    options_text = f"--lora-rank {adapter_rank}"
    unstated_fields = [field_name for field_name in OTHER_ADAPTER_FIELDS if adapter_config.get(field_name)]
    for field_name, option_name in (("target_modules", "--lora-targets"), ("modules_to_save", "--modules-to-save")):
        field_value = adapter_config.get(field_name) or []
        module_names = field_value if isinstance(field_value, list) else [field_value]
        option_names = [name for name in module_names if isinstance(name, str) and MODULE_NAME.fullmatch(name)]
        if field_name == "target_modules" and isinstance(field_value, str) and field_value != ALL_LINEAR:
            option_names = []  # an expression, though it is one word
        if field_name == "modules_to_save":
            option_names = [name for name in option_names if name.rpartition(".")[2] in SAVED_MODULES]
        if option_names:
            options_text += f" {option_name} {','.join(sorted({name.rpartition('.')[2] for name in option_names}))}"
        other_names = [name for name in module_names if name not in option_names]
        other_names += [name for name in option_names if any(map(str.isdigit, name.split(".")))]  # of one layer
        if other_names:
            unstated_fields.append(f"{short_repr(other_names[0])} in {field_name}")
    options_text += " --use-dora" if adapter_config.get("use_dora") is True else ""
    remark = (
        "; --lora-targets and --modules-to-save name modules of all layers, and do not state "
        f"{', '.join(unstated_fields)} of this adapter"
    )
    return f"llmcalc memory counts its training with {options_text}{remark if unstated_fields else ''}"


def config_of_other_form(model_args: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Converts another program's config to a `config.json`, with remarks; any other config is unchanged.

    Raises `InputError` for a field of that form with a value that has no such config.
    """
    if isinstance(model_args.get("model_config"), dict) and isinstance(model_args.get("model_type"), str):
        return _read_mlc(model_args)
    nested_config = model_args.get("model_config")
    if isinstance(nested_config, dict) and {"n_layer", "n_head", "n_embd", "n_kv_head"} <= set(nested_config):
        model_args = nested_config  # meta_*.json beside a checkpoint of nanochat
    argument_names = frozenset(model_args)
    if {"head_num", "layer_num", "hidden_size"} <= argument_names:
        return _read_simumax(model_args)
    if "_class_name" in argument_names and "model_type" not in argument_names:
        raise InputError(
            f"_class_name: {short_repr(model_args['_class_name'])} is a class of diffusers, which is no language "
            "model; expected the config.json of one, such as that of a text encoder"
        )
    if "peft_type" in argument_names and "model_type" not in argument_names:
        base_model = model_args.get("base_model_name_or_path")
        base_name = short_repr(base_model) if base_model else "which it does not name"
        if model_args["peft_type"] is None:
            raise InputError(
                "peft_type: null in an adapter's config; expected the kind of adapter, such as 'LORA', or its base "
                f"model, {base_name}"
            )
        raise InputError(
            f"peft_type: {short_repr(model_args['peft_type'])} is an adapter, without the sizes of a model; expected "
            f"its base model, {base_name}; {_adapter_advice(model_args)}"
        )
    for program_fields, program_name in PROGRAMS_WITHOUT_SIZES.items():
        if program_fields <= argument_names:
            raise InputError(
                f"{', '.join(sorted(program_fields))}: fields of {program_name}; expected the config.json of the "
                "model, or a description in TOML, whose fields llmcalc schema lists"
            )
    if "model_type" in argument_names or "architectures" in argument_names:
        return model_args, []
    if {"dim", "n_layers", "n_heads", "hidden_dim"} <= argument_names <= MISTRAL_FIELDS:
        return _read_mistral(model_args)
    if {"dim", "n_layers", "n_heads", "vocab_size"} <= argument_names <= META_FIELDS:
        return _read_meta(model_args)
    if {"dim", "n_layers", "n_heads", "vocab_size"} <= argument_names and argument_names & {
        "use_hf_rope",
        "max_context_len",
    }:
        return _read_executorch(model_args)
    if GPT_OSS_SIZES | {*GPT_OSS_NAMES.values()} <= argument_names <= GPT_OSS_FIELDS:
        return _read_gpt_oss(model_args)
    if {"n_layer", "n_head", "n_embd", "block_size"} <= argument_names <= NANOGPT_FIELDS:
        return {**model_args, "model_type": "nanogpt"}, ["arguments of nanoGPT: read as 'nanogpt', with its tied head"]
    if {"n_layer", "n_head", "n_embd", "n_kv_head"} <= argument_names <= NANOCHAT_FIELDS:
        return _read_nanochat(model_args)
    if {"d_model", "n_layer", "vocab_size", "ssm_cfg"} <= argument_names <= MAMBA_FIELDS:
        return _read_mamba(model_args)
    if {"n_layer", "n_head", "n_embd", "n_kv_head", "window_pattern"} <= argument_names:
        raise InputError(
            f"window_pattern: {short_repr(model_args['window_pattern'])}; nanochat's later models have windows and "
            "embeddings of values, which are not read; expected its first arguments alone, or a description in TOML, "
            "whose fields llmcalc schema lists"
        )
    return model_args, []


def _positive_size(model_args: Mapping[str, Any], field_name: str, default_size: int | None = None) -> int:
    """Returns the positive integer in a field. Raises `InputError` for another value, or if there is no default."""
    field_value = model_args.get(field_name, default_size)
    if field_name == "vocab_size" and field_value == -1:
        raise InputError("vocab_size: -1; expected the number of entries of the tokenizer, 32000 for Llama 1 and 2")
    if not is_json_integer(field_value) or not 0 < field_value <= LARGEST_SIZE:
        raise InputError(f"{field_name}: {short_repr(field_value)}; expected a positive whole number")
    return field_value


SEPARATE_HEAD_NOTE = "with an output head of its own (Llama 3.2 1B and 3B have none: --set tie_word_embeddings=true)"
"""The end of the remark on arguments that do not state whether the output head has a separate weight."""


def _read_meta(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads Llama's `params.json`: the FFN's width is computed from the model's width (`FeedForward`)."""
    config = {**_shared_fields(model_args), "model_type": "llama", "intermediate_size": _ffn_width(model_args)}
    return config, [f"params.json of Llama: read as 'llama' {SEPARATE_HEAD_NOTE}"]


def _ffn_width(model_args: Mapping[str, Any]) -> int:
    """Returns the FFN's width of Meta's `FeedForward`: 8/3 of the model's width, scaled and rounded up."""
    hidden_size, width_multiple = _positive_size(model_args, "dim"), _positive_size(model_args, "multiple_of", 256)
    ffn_factor = model_args.get("ffn_dim_multiplier")
    if ffn_factor is not None and (not is_number(ffn_factor) or not 0 < ffn_factor <= 100):
        raise InputError(f"ffn_dim_multiplier: {short_repr(ffn_factor)}; expected a number above 0, up to 100")
    ffn_width = 4 * hidden_size * 2 // 3
    return width_multiple * ceil((ffn_width if ffn_factor is None else int(ffn_factor * ffn_width)) / width_multiple)


def _read_executorch(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads ExecuTorch's Llama, which may have biases, QK-norm, layers without positions, or multipliers."""
    for field_name, field_value in model_args.items():
        if field_name not in EXECUTORCH_FIELDS | EXECUTORCH_SETTINGS and field_value != EXECUTORCH_FIXED.get(
            field_name
        ):
            raise InputError(
                f"{field_name}: {short_repr(field_value)}; expected {short_repr(EXECUTORCH_FIXED.get(field_name))} "
                "(ExecuTorch's models with another value are not read; the config.json of the model is)"
            )
    has_bias, has_norms = model_args.get("attention_qkv_bias", False), model_args.get("use_qk_norm", False)
    for field_name, field_value in (("attention_qkv_bias", has_bias), ("use_qk_norm", has_norms)):
        if not isinstance(field_value, bool):
            raise InputError(f"{field_name}: {short_repr(field_value)}; expected true or false")
    if has_norms and model_args.get("qk_norm_before_rope") is not True:
        raise InputError("qk_norm_before_rope: expected true, as of Qwen3")
    multiplier_fields = {
        "attention_multiplier": "attention_multiplier",
        "residual_multiplier": "residual_multiplier",
        "embedding_multiplier": "embedding_scale_factor",
        "logits_scaling": "logits_scaling",
    }
    config = {**_shared_fields(model_args), "model_type": "llama", "attention_bias": False}
    config["intermediate_size"] = (
        _ffn_width(model_args) if model_args.get("hidden_dim") is None else _positive_size(model_args, "hidden_dim")
    )
    if model_args.get("head_dim") is not None:
        config["head_dim"] = _positive_size(model_args, "head_dim")
    stated_multipliers = {
        multiplier_name: model_args[field_name]
        for multiplier_name, field_name in multiplier_fields.items()
        if model_args.get(field_name) is not None
    }
    feature_by_type = {
        "qwen2": has_bias,
        "qwen3": has_norms,
        "granite": stated_multipliers,
        "smollm3": model_args.get("no_rope_layer_interval"),
    }
    matching_types = [model_type for model_type, feature in feature_by_type.items() if feature]
    if len(matching_types) > 1:
        raise InputError(
            "attention_qkv_bias, use_qk_norm, no_rope_layer_interval, multipliers: those of "
            f"{', '.join(matching_types)} together; expected those of one"
        )
    if matching_types:
        config["model_type"] = matching_types[0]
    if matching_types == ["qwen2"]:
        config.pop("attention_bias")
    if matching_types == ["smollm3"]:
        config["no_rope_layer_interval"] = _positive_size(model_args, "no_rope_layer_interval")
    return config | stated_multipliers, [
        f"arguments of ExecuTorch's Llama: read as '{config['model_type']}' {SEPARATE_HEAD_NOTE}"
    ]


def _read_mistral(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads Mistral's `params.json`, with experts if it has a table `moe`."""
    config = {
        **_shared_fields(model_args),
        "model_type": "mistral",
        "intermediate_size": _positive_size(model_args, "hidden_dim"),
        "sliding_window": None,
    }
    if model_args.get("head_dim") is not None:
        config["head_dim"] = _positive_size(model_args, "head_dim")
    expert_args = model_args.get("moe")
    if expert_args is not None:
        if not isinstance(expert_args, dict):
            raise InputError(f"moe: {short_repr(expert_args)}; expected a table of fields")
        config |= {
            "model_type": "mixtral",
            "num_local_experts": _positive_size(expert_args, "num_experts"),
            "num_experts_per_tok": _positive_size(expert_args, "num_experts_per_tok"),
        }
    return config, [f"params.json of Mistral: read as '{config['model_type']}' with an output head of its own"]


def _read_gpt_oss(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads gpt-oss in OpenAI's config form; every second layer, starting with the first, has a window."""
    config: dict[str, Any] = {field_name: _positive_size(model_args, field_name) for field_name in GPT_OSS_SIZES}
    config |= {name: _positive_size(model_args, argument_name) for name, argument_name in GPT_OSS_NAMES.items()}
    context_length = _positive_size(model_args, "initial_context_length", 4096)
    rope_factor = model_args.get("rope_scaling_factor", 32)
    if not is_number(rope_factor) or not 0 < rope_factor <= LARGEST_SIZE:
        raise InputError(f"rope_scaling_factor: {short_repr(rope_factor)}; expected a positive number")
    config |= {
        "model_type": "gpt_oss",
        "max_position_embeddings": int(context_length * rope_factor),
        "tie_word_embeddings": False,
    }
    return config, [
        "config of OpenAI's own code: read as 'gpt_oss'; it does not say that its checkpoints have experts in MXFP4 "
        "(--quantize mxfp4)"
    ]


def _shared_fields(model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that Meta's and Mistral's `params.json` share."""
    head_count = _positive_size(model_args, "n_heads")
    config: dict[str, Any] = {
        "hidden_size": _positive_size(model_args, "dim"),
        "num_hidden_layers": _positive_size(model_args, "n_layers"),
        "num_attention_heads": head_count,
        "num_key_value_heads": _positive_size(model_args, "n_kv_heads", head_count),
        "vocab_size": _positive_size(model_args, "vocab_size"),
        "tie_word_embeddings": False,
    }
    names_by_field = {"rms_norm_eps": "norm_eps", "rope_theta": "rope_theta", "max_position_embeddings": "max_seq_len"}
    return config | {
        field_name: model_args[argument_name]
        for field_name, argument_name in names_by_field.items()
        if model_args.get(argument_name) is not None
    }


def _read_simumax(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads SimuMax's config. Its models have RMSNorm, no biases and a separate output head."""
    for field_name in sorted(set(model_args) - SIMUMAX_FIELDS):
        raise InputError(
            f"{field_name}: is no field of SimuMax's models, whose form this is; expected their fields alone"
        )
    if model_args.get("use_swiglu") is not True:
        raise InputError(f"use_swiglu: {short_repr(model_args.get('use_swiglu'))}; expected true, for a gated network")
    has_latent_attention = model_args.get("attention_type") == "mla"
    head_count, hidden_size = _positive_size(model_args, "head_num"), _positive_size(model_args, "hidden_size")
    config: dict[str, Any] = {
        "model_type": "deepseek_v3" if has_latent_attention else "llama",
        "hidden_size": hidden_size,
        "intermediate_size": _positive_size(model_args, "intermediate_size"),
        "num_hidden_layers": _positive_size(model_args, "layer_num"),
        "num_attention_heads": head_count,
        "num_key_value_heads": _positive_size(model_args, "kv_head_num", head_count),
        "vocab_size": _positive_size(model_args, "vocab_size"),
        "max_position_embeddings": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    if has_latent_attention:
        latent_fields = {"kv_lora_rank": "kv_lora_rank", "v_head_dim": "v_head_dim", "qk_nope_head_dim": "qk_head_dim"}
        latent_fields |= {"qk_rope_head_dim": "qk_pos_emb_head_dim"}
        config |= {name: _positive_size(model_args, argument_name) for name, argument_name in latent_fields.items()}
        config |= {"n_group": 1, "topk_group": 1}
        has_low_rank_queries = model_args.get("q_lora_rank") is not None
        config["q_lora_rank"] = _positive_size(model_args, "q_lora_rank") if has_low_rank_queries else None
    else:
        config["head_dim"] = _positive_size(model_args, "head_size")
    if _positive_size(model_args, "expert_num", 1) > 1:
        expert_width = _positive_size(model_args, "moe_ffn_hidden_size", config["intermediate_size"])
        shared_width = model_args.get("moe_shared_expert_intermediate_size") or 0
        if not is_json_integer(shared_width) or not 0 <= shared_width <= LARGEST_SIZE or shared_width % expert_width:
            raise InputError(
                f"moe_shared_expert_intermediate_size: {short_repr(shared_width)}; expected a multiple of the width of "
                f"a routed expert ({expert_width})"
            )
        dense_layer_count = model_args.get("dense_layers") or 0
        if not is_json_integer(dense_layer_count) or not 0 <= dense_layer_count <= config["num_hidden_layers"]:
            raise InputError(f"dense_layers: {short_repr(dense_layer_count)}; expected a number from 0 to layer_num")
        config |= {
            "model_type": "deepseek_v3" if has_latent_attention else "deepseek",
            "n_routed_experts": _positive_size(model_args, "expert_num"),
            "num_experts_per_tok": _positive_size(model_args, "topk"),
            "moe_intermediate_size": expert_width,
            "n_shared_experts": shared_width // expert_width,
            "first_k_dense_replace": dense_layer_count,
        }
    elif has_latent_attention:
        config["first_k_dense_replace"] = config["num_hidden_layers"]
    return config, [
        f"a model of SimuMax: read as '{config['model_type']}' with RMSNorm, without biases and with an output head of "
        "its own, as SimuMax's modules are; norms of queries and keys are not in its form"
    ]


def _read_nanochat(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads the model arguments of nanochat's first versions as a config."""
    hidden_size = _positive_size(model_args, "n_embd")
    context_length = model_args.get("sequence_len", model_args.get("sequence_length"))
    config = {
        "model_type": "nanochat",
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": _positive_size(model_args, "n_layer"),
        "num_attention_heads": _positive_size(model_args, "n_head"),
        "num_key_value_heads": _positive_size(model_args, "n_kv_head"),
        "vocab_size": _positive_size(model_args, "vocab_size", 50304),
        **({} if context_length is None else {"max_position_embeddings": context_length}),
    }
    return config, ["arguments of nanochat: read as 'nanochat', as in its first versions"]


def _read_mamba(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads the arguments of mamba_ssm, the first format of Mamba's checkpoints, which pad the vocabulary.

    Raises `InputError` for layers of attention or networks between those of Mamba, which its other models have.
    """
    ssm_config = model_args["ssm_cfg"]
    if not isinstance(ssm_config, dict):
        raise InputError(f"ssm_cfg: {short_repr(ssm_config)}; expected a table of fields")
    for field_name in ("attn_layer_idx", "attn_cfg", "d_intermediate"):
        if model_args.get(field_name):
            raise InputError(
                f"{field_name}: {short_repr(model_args[field_name])}; expected none: "
                "only models of Mamba's layers are read"
            )
    for field_name in ("rms_norm", "tie_embeddings"):
        if model_args.get(field_name, True) is not True:
            raise InputError(
                f"{field_name}: {short_repr(model_args[field_name])}; expected true, as in the published models"
            )
    layer_type, hidden_size = ssm_config.get("layer", "Mamba1"), _positive_size(model_args, "d_model")
    if layer_type not in ("Mamba1", "Mamba2") or set(ssm_config) - {"layer", "d_state", "expand", "headdim", "ngroups"}:
        raise InputError(
            f"ssm_cfg: {short_repr(ssm_config)}; expected layer Mamba1 or Mamba2, and d_state, expand, headdim, ngroups"
        )
    vocab_multiple = _positive_size(model_args, "pad_vocab_size_multiple", 8)
    vocab_size = _positive_size(model_args, "vocab_size")
    expansion_factor = _positive_size(ssm_config, "expand", 2)
    config: dict[str, Any] = {
        "model_type": "mamba" if layer_type == "Mamba1" else "mamba2",
        "vocab_size": vocab_multiple * ceil(vocab_size / vocab_multiple),
        "hidden_size": hidden_size,
        "num_hidden_layers": _positive_size(model_args, "n_layer"),
        "expand": expansion_factor,
        "state_size": _positive_size(ssm_config, "d_state", 16 if layer_type == "Mamba1" else 128),
        "tie_word_embeddings": True,
    }
    if layer_type == "Mamba2":
        head_dim = _positive_size(ssm_config, "headdim", 64)
        if expansion_factor * hidden_size % head_dim:
            raise InputError(
                f"ssm_cfg: headdim {head_dim} does not divide {expansion_factor * hidden_size}, the width of the scan"
            )
        group_count = _positive_size(ssm_config, "ngroups", 1)
        num_heads = expansion_factor * hidden_size // head_dim
        config |= {"head_dim": head_dim, "num_heads": num_heads, "n_groups": group_count}
    else:
        config["intermediate_size"] = expansion_factor * hidden_size
    return config, [f"arguments of mamba_ssm: read as '{config['model_type']}', with its vocabulary padded"]


def _read_mlc(model_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads MLC's config: the original config's fields, without the engine's settings."""
    model_config = {
        name: field_value for name, field_value in model_args["model_config"].items() if name not in MLC_FIELDS
    }
    original_fields = model_args["model_config"]
    other_names = {"rope_theta": "position_embedding_base", "max_position_embeddings": "context_window_size"}
    model_config |= {
        field_name: original_fields[original_name]
        for field_name, original_name in other_names.items()
        if original_fields.get(original_name) not in (None, -1)
    }
    config = {**model_config, "model_type": model_args["model_type"]}
    remarks = ["mlc-chat-config.json: read as the config of its model"]
    if model_args.get("quantization"):
        quantization_scheme = short_repr(model_args["quantization"])
        remarks.append(f"quantization: MLC's {quantization_scheme} is not counted; --quantize counts a scheme")
    return config, remarks

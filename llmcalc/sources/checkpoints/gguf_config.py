"""Converts a GGUF file's metadata to a Hugging Face config, so that a GGUF file can be a TARGET.

Keys: gguf-py/gguf/constants.py. Values that the converter does not write are inferred from the tensors: whether the
output is tied, whether projections have biases, whether experts are chosen with a correction.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from ...errors import InputError, short_repr, suggest
from .header import Checkpoint

FIELD_BY_KEY = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
"""Metadata key that every architecture has, without the architecture's name → the field of a Hugging Face config."""

LATENT_FIELD_BY_KEY = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
"""Metadata key of DeepSeek's architectures → the field of a Hugging Face config."""

MAX_LAYERS = 10_000
"""Largest number of layers whose kinds are listed; a model with more layers is refused later."""

_Config = dict[str, Any]


def _read_metadata(checkpoint: Checkpoint, architecture: str, fields_by_key: dict[str, str]) -> _Config:
    config_fields: _Config = {}
    for metadata_key, field_name in fields_by_key.items():
        metadata_value = checkpoint.metadata.get(f"{architecture}.{metadata_key}")
        if isinstance(metadata_value, list):
            if len(set(map(str, metadata_value))) != 1:
                raise InputError(
                    f"{architecture}.{metadata_key}: differs from layer to layer, which is not read; expected the "
                    "model's config.json or preset as TARGET"
                )
            metadata_value = metadata_value[0]
        if metadata_value is None:
            continue
        if not isinstance(metadata_value, int | float) or not isfinite(metadata_value):
            raise InputError(f"{architecture}.{metadata_key}: {short_repr(str(metadata_value))}; expected a number")
        config_fields[field_name] = metadata_value
    return config_fields


def _expert_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    return _read_metadata(checkpoint, architecture, {"expert_count": "num_experts"})


def _llama_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    expert_fields = _read_metadata(checkpoint, architecture, {"expert_count": "num_local_experts"})
    if not expert_fields.get("num_local_experts"):
        return {"attention_bias": _has_tensor(checkpoint, "attn_q.bias"), "num_experts_per_tok": None}
    return {**expert_fields, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}


def _shared_expert_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    fields_by_key = {
        "expert_count": "num_experts",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
    return _read_metadata(checkpoint, architecture, fields_by_key)


def _gpt_oss_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    expert_fields = _read_metadata(checkpoint, architecture, {"expert_count": "num_local_experts"})
    ffn_width = config.get("moe_intermediate_size") or config.get("intermediate_size")
    layer_kinds = _layer_types(config, lambda i: i % 2 == 0)
    return {**expert_fields, "intermediate_size": ffn_width, "moe_intermediate_size": None, "layer_types": layer_kinds}


def _gemma3_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    return {"layer_types": _layer_types(config, lambda i: i % 6 != 5)}


def _layer_types(config: _Config, has_window: Callable[[int], bool]) -> list[str]:
    """Returns each layer's kind by llama.cpp's fixed pattern for the architecture; files do not state the kinds."""
    stated_layer_count = config.get("num_hidden_layers")
    layer_count = stated_layer_count if isinstance(stated_layer_count, int) else 0
    return [
        "sliding_attention" if has_window(index) else "full_attention" for index in range(min(layer_count, MAX_LAYERS))
    ]


def _latent_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    config_fields = _read_metadata(checkpoint, architecture, LATENT_FIELD_BY_KEY)
    fields_by_key = {
        "attention.key_length_mla": "key_mla",
        "attention.value_length_mla": "value_mla",
        "attention.key_length": "key",
        "attention.value_length": "value",
    }
    head_fields = _read_metadata(checkpoint, architecture, fields_by_key)
    key_length = head_fields.get("key_mla", head_fields.get("key", 0))
    value_length = head_fields.get("value_mla", head_fields.get("value", 0))
    has_score_correction, group_count = _has_tensor(checkpoint, "exp_probs_b.bias"), config_fields.get("n_group", 1)
    return {
        **config_fields,
        "n_group": group_count,
        "q_lora_rank": config_fields.get("q_lora_rank"),
        "qk_nope_head_dim": key_length - config_fields.get("qk_rope_head_dim", 0),
        "v_head_dim": value_length,
        "num_key_value_heads": config.get("num_attention_heads"),
        "head_dim": None,
        "topk_method": "noaux_tc" if has_score_correction else "greedy" if group_count == 1 else "group_limited_greedy",
        "scoring_func": "sigmoid" if has_score_correction else "softmax",
        "model_type": "deepseek_v3" if has_score_correction else "deepseek_v2",
        "architectures": ["DeepseekV3ForCausalLM" if has_score_correction else "DeepseekV2ForCausalLM"],
        "num_nextn_predict_layers": 0 if has_score_correction else None,
    }


def _no_extra_fields(checkpoint: Checkpoint, architecture: str, config: _Config) -> _Config:
    return {}


ARCHITECTURES: dict[str, tuple[str, str, Callable[[Checkpoint, str, _Config], _Config]]] = {
    "llama": ("llama", "LlamaForCausalLM", _llama_fields),
    "mistral3": ("llama", "LlamaForCausalLM", _no_extra_fields),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _no_extra_fields),
    "qwen2moe": ("qwen2_moe", "Qwen2MoeForCausalLM", _shared_expert_fields),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", _no_extra_fields),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM", _expert_fields),
    "gemma": ("gemma", "GemmaForCausalLM", _no_extra_fields),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _no_extra_fields),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", _gemma3_fields),
    "gpt-oss": ("gpt_oss", "GptOssForCausalLM", _gpt_oss_fields),
    "deepseek2": ("deepseek_v3", "DeepseekV3ForCausalLM", _latent_fields),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", _no_extra_fields),
    "granite": ("granite", "GraniteForCausalLM", _no_extra_fields),
}
"""`general.architecture` → the config's model_type, class, and function for further fields; None removes a field."""


def _has_tensor(checkpoint: Checkpoint, name_suffix: str) -> bool:
    return any(tensor.name.endswith(name_suffix) for tensor in checkpoint.tensors)


def gguf_config(checkpoint: Checkpoint, error_location: str) -> _Config:
    """Returns the config that a file's metadata describe. Raises `InputError` for an unknown architecture."""
    architecture = checkpoint.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        architecture_text = short_repr(architecture) if isinstance(architecture, str) else "none"
        names_text = ", ".join(ARCHITECTURES)
        suggestion = suggest(str(architecture)[:40], list(ARCHITECTURES))
        raise InputError(
            f"{error_location}: general.architecture {architecture_text}: is not read from a header; expected one of "
            f"{names_text}, or the model's config.json or preset as TARGET.{suggestion}"
        )
    model_type, architecture_text, read_further_fields = ARCHITECTURES[architecture]
    config: _Config = {
        "model_type": model_type,
        "architectures": [architecture_text],
        **_read_metadata(checkpoint, architecture, FIELD_BY_KEY),
    }
    embedding_tensor = next((tensor for tensor in checkpoint.tensors if tensor.name == "token_embd.weight"), None)
    if embedding_tensor is None or len(embedding_tensor.shape) != 2:
        raise InputError(f"{error_location}: token_embd.weight: missing; the first file of a split model has it")
    config["vocab_size"] = embedding_tensor.shape[0]
    config["tie_word_embeddings"] = not any(tensor.name == "output.weight" for tensor in checkpoint.tensors)
    config |= read_further_fields(checkpoint, architecture, config)
    model_title = checkpoint.metadata.get("general.name")
    config["_name_or_path"] = model_title if isinstance(model_title, str) and model_title else error_location
    return {field_name: field_value for field_name, field_value in config.items() if field_value is not None}

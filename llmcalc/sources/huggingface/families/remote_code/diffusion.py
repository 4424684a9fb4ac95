"""Language models that denoise masked tokens, with a class in the model's own repository.

LLaDA, Dream and RND1 attend in both directions and keep no cache, so they are read as encoders. SDAR, LLaDA 2,
Fast-dLLM and Nemotron Labs Diffusion denoise one block after another and keep the cache of earlier blocks: decoders.

Sources: the modeling files of the models' repositories, in `Family.source` of each model type.
"""

from __future__ import annotations

from typing import Any

from .....components.base import LARGEST_SIZE
from ...class_defaults import class_defaults, class_fields
from ...code_addresses import GITHUB, HUB, MLX_VLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    encoder,
    gated_experts,
    glu,
    layer_table,
    qk_norm_fields,
    rmsnorm,
    stack_of_combined_kinds,
)
from ..experts import mixtral
from ..experts.mixtral import read_qwen3_moe
from .open_models import OLMO_NAMES

DENOISING_NOTE = "denoising: the further passes over the same tokens are not counted"


def _read_llada(config: Config) -> Table:
    """Reads LLaDA: OLMo's fields with Llama's layers.

    LLaDA-MoE's configs state the same model type and Llama's field names.
    """
    config.notes.append(DENOISING_NOTE)
    if config.has("num_experts"):
        return _read_llada_moe(config)
    config.require_fields(block_type="llama", layer_norm_type="rms")
    for field_name in ("attention_layer_norm", "input_emb_norm", "alibi", "bias_for_layer_norm"):
        config.require(field_name, None, False)
    config.require("rope", True)
    norm, has_bias = rmsnorm(config.number("rms_norm_eps")), config.flag("include_bias")
    hidden_size, has_qkv_bias = config.integer("hidden_size"), has_bias or config.flag("include_qkv_bias")
    config.fields_read.add("mlp_ratio")
    ffn_width = config.optional_integer("intermediate_size") or config.integer("mlp_ratio") * hidden_size
    if ffn_width > LARGEST_SIZE:
        raise config.field_error("mlp_ratio", f"a width of at most {LARGEST_SIZE}")
    attention_table = attention(config, **biases(has_qkv_bias, *QKV_BIASES), **biases(has_bias, "o_bias"))
    block = layer_table(attention_table, glu(config, has_bias, ffn_width), norm)
    is_tied = config.flag("tie_word_embeddings")
    embedding_rows = config.optional_integer("embedding_size") or config.integer("vocab_size")
    config.fields_read.add("vocab_size")
    head_fields = biases(has_bias and not is_tied, "bias")
    return {**encoder(config, block, {"final_norm": norm}, head_fields), "vocab_size": embedding_rows}


def _read_llada_moe(config: Config) -> Table:
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    qk_layernorm = config.flag("qk_layernorm")
    attention_table = attention(config, **attention_biases(config), **(qk_norm_fields(norm) if qk_layernorm else {}))
    shared_width = config.optional_integer("shared_expert_intermediate_size")
    experts = gated_experts(config, config.integer("expert_intermediate_size"), shared_width)
    expert_flags = config.get("moe_layer_freq")
    expert_frequencies = expert_flags if isinstance(expert_flags, list) else [expert_flags] * depth
    if len(expert_frequencies) != depth or any(
        expert_frequency not in (0, 1) for expert_frequency in expert_frequencies
    ):
        raise config.error("moe_layer_freq", expert_flags, f"1, or {depth} times 0 or 1")
    layer_kinds = ["moe" if expert_frequency else "dense" for expert_frequency in expert_frequencies]
    if "dense" in layer_kinds:
        dense_ffn = {"type": "mlp", **glu(config, ffn_width=config.integer("dense_intermediate_size"))}
    else:
        dense_ffn = {}
    config.fields_read.add("dense_intermediate_size")
    block = layer_table(attention_table, experts, norm)
    dense_layer_fields = {"feed_forward": dense_ffn} if dense_ffn else {}
    stack_fields = stack_of_combined_kinds((layer_kinds, {"moe": {}, "dense": dense_layer_fields}))
    return encoder(config, block, {**stack_fields, "final_norm": norm}, {})


def _read_dream(config: Config) -> Table:
    """Reads Dream: Qwen 2.5's layers."""
    config.notes.append(DENOISING_NOTE)
    config.require("use_sliding_window", False)
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **biases(True, *QKV_BIASES))
    block = layer_table(attention_table, glu(config), norm)
    return encoder(config, block, {"final_norm": norm}, {})


def _read_rnd1(config: Config) -> Table:
    """Reads RND1: Qwen 3's experts, without a window."""
    config.notes.append(DENOISING_NOTE)
    config.require("use_sliding_window", False)
    model_fields = read_qwen3_moe(config)
    model_fields["encoder"] = model_fields.pop("decoder")
    return model_fields


BLOCK_FIELDS = field_names("""
    bd_size block_length block_size debug ep_size fuse_cross_entropy max_window_layers micro_forward skip_checkpoint
    sliding_window use_deepep use_sliding_window
    """)
"""Fields of training and sampling in blocks."""

NEMOTRON_FIELDS = field_names("""
    ar_loss_weight default_diffusion_min_threshold default_diffusion_sampler default_diffusion_sampling_scaling_factor
    default_diffusion_steps default_diffusion_threshold default_generation_mode dlm_loss_weight dlm_paradigm
    dp_varying_mask_ratio
    """)
"""Fields of Nemotron Labs Diffusion's training and sampling."""

QWEN_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}


FAMILIES = {
    "llada": Family(
        _read_llada,
        {
            "embedding_size": None,
            "num_key_value_heads": None,
            "head_dim": None,
            "intermediate_size": None,
            "mlp_ratio": 4,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "block_type": "llama",
            "layer_norm_type": "rms",
            "rope": True,
            "alibi": False,
            "attention_layer_norm": False,
            "input_emb_norm": False,
            "bias_for_layer_norm": False,
            "include_bias": False,
            "include_qkv_bias": False,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "qk_layernorm": True,
            "moe_layer_freq": 1,
        },
        BLOCK_FIELDS
        | field_names("""
            activation_type alibi_bias_max attention_layer_norm_with_affine block_group_size clip_qkv embedding_dropout
            flash_attention init_cutoff_factor init_device init_fn layer_norm_with_affine multi_query_attention
            moe_router_enable_expert_bias moe_router_score_function moe_router_topk_scaling_factor norm_topk_prob
            precision rope_full_precision routed_scaling_factor router_num_group router_topk_group scale_logits
            """),
        aliases=OLMO_NAMES,
        generates_text=True,
        source=f"{HUB}GSAI-ML/LLaDA-8B-Base modeling_llada.py",
    ),
    "Dream": Family(
        _read_dream,
        QWEN_DEFAULTS,
        BLOCK_FIELDS | {"use_mrope"},
        generates_text=True,
        source=f"{HUB}Dream-org/Dream-v0-Instruct-7B modeling_dream.py",
    ),
    "rnd1": Family(
        _read_rnd1,
        class_defaults("qwen3_moe"),
        mixtral.FAMILIES["qwen3_moe"].ignored_fields
        | class_fields("qwen3_moe")
        | BLOCK_FIELDS
        | {"moe_backend", "num_diffusion_steps"},
        generates_text=True,
        source=f"{GITHUB}RadicalNumerics/RND1/blob/main/rnd/modeling_rnd.py",
    ),
    "sdar": Family(
        None,
        text_type="qwen3",
        tying_source="text",
        ignored_fields=BLOCK_FIELDS,
        source=f"{HUB}JetLM/SDAR-8B-Chat modeling_sdar.py",
    ),
    "sdar_moe": Family(
        None,
        text_type="qwen3_moe",
        tying_source="text",
        ignored_fields=BLOCK_FIELDS,
        source=f"{HUB}JetLM/SDAR-30B-A3B-Chat modeling_sdar_moe.py",
    ),
    "Fast_dLLM_Qwen": Family(
        None,
        text_type="qwen2",
        tying_source="text",
        ignored_fields=BLOCK_FIELDS,
        source="https://github.com/NVlabs/Fast-dLLM/tree/main/v2",
    ),
    "nemotron_labs_diffusion": Family(
        None,
        text_type="llama",
        generates_text=True,
        tying_source="text",
        ignored_fields=BLOCK_FIELDS | NEMOTRON_FIELDS,
        source=f"{MLX_VLM}nemotron_labs_diffusion",
    ),
    "llada2_moe": Family(
        None,
        text_type="bailing_moe_v2",
        generates_text=True,
        tying_source="text",
        ignored_fields=BLOCK_FIELDS,
        source="https://github.com/Blaizzy/mlx-vlm/blob/main/mlx_vlm/models/llada2_moe/language.py",
    ),
}

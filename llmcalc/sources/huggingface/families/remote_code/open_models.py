"""OLMo 1 and Molmo 1 in the form of the first checkpoints (hf_olmo, molmo), and DCLM (openlm).

Sources: olmo/model.py and olmo/config.py of allenai/OLMo; open_lm/model.py and open_lm/norms.py of
mlfoundations/open_lm; vllm/model_executor/models/molmo.py of vllm-project/vllm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .....components.base import LARGEST_SIZE
from ...code_addresses import VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    attention,
    biases,
    decoder,
    layer_table,
    layernorm,
    learned_positions,
    qk_norm_fields,
    rmsnorm,
    rope,
)


def _read_hf_olmo(config: Config) -> Table:
    """Reads OLMo 1, with one flag for all linear biases and one for norm weights."""
    has_bias = config.flag("include_bias")
    config.choice({"sequential": True, "llama": True}, "block_type")
    norm_has_bias = has_bias if config.get("bias_for_layer_norm") is None else config.flag("bias_for_layer_norm")
    is_affine = config.flag("layer_norm_with_affine")
    qk_norm_is_affine = config.flag("attention_layer_norm_with_affine")
    norm = _olmo_norm(config, is_affine, norm_has_bias)
    token_mixer: Table = attention(
        config, position=None, num_key_value_heads=_kv_heads(config), **biases(has_bias, *QKVO_BIASES)
    )
    token_mixer.pop("head_dim", None)
    stack_fields: Table = {}
    if config.flag("rope"):
        token_mixer["position"] = rope(config)
    elif config.flag("alibi"):
        token_mixer["position"] = {"type": "alibi"}
    else:
        stack_fields["position"] = learned_positions(config)
    config.fields_read.update(("alibi", "rope_theta"))
    if config.flag("attention_layer_norm"):
        token_mixer |= qk_norm_fields(_olmo_norm(config, qk_norm_is_affine, norm_has_bias), "projection")
    if config.flag("embedding_layer_norm"):
        stack_fields["embedding_norm"] = norm
    block = layer_table(
        token_mixer, _feed_forward(config, has_bias), norm, "output" if config.flag("norm_after") else "pre"
    )
    embedding_rows = config.optional_integer("embedding_size") or config.integer("vocab_size")
    is_tied = config.flag("tie_word_embeddings")
    config.fields_read.add("vocab_size")
    head_fields = biases(has_bias and not is_tied, "bias")
    return {**decoder(config, block, norm, head_fields, stack_fields), "vocab_size": embedding_rows}


def _olmo_norm(config: Config, is_affine: bool, has_bias: bool) -> Table:
    eps = config.number("layer_norm_eps")
    norm_functions = {"default": layernorm, "low_precision": layernorm, "rms": rmsnorm}
    norm_fields = {"bias": has_bias} if is_affine else {"weight": False}
    norm: Table = config.choice(norm_functions, "layer_norm_type")(eps, **norm_fields)
    return norm


def _kv_heads(config: Config) -> int:
    """Returns the number of key and value heads, which the older `multi_query_attention` sets to 1 or to all."""
    head_count, stated_kv_heads = config.integer("num_attention_heads"), config.optional_integer("num_key_value_heads")
    if config.get("multi_query_attention") is None:
        return stated_kv_heads or head_count
    kv_head_count = 1 if config.flag("multi_query_attention") else head_count
    if stated_kv_heads not in (None, kv_head_count):
        raise config.error(
            "num_key_value_heads", stated_kv_heads, f"{kv_head_count}, as multi_query_attention says, or none"
        )
    return kv_head_count


def _feed_forward(config: Config, has_bias: bool) -> Table:
    """Returns the FFN; for SwiGLU, `mlp_hidden_size` is the width of gate and values together."""
    ffn_width = config.optional_integer("intermediate_size") or _ffn_width_of_ratio(config, config.integer("mlp_ratio"))
    config.fields_read.add("mlp_ratio")
    activation = config.choice({"swiglu": "silu", "gelu": "gelu", "relu": "relu"}, "hidden_act")
    if activation != "silu":
        return {"intermediate_size": ffn_width, "hidden_act": activation, **biases(has_bias, "up_bias", "down_bias")}
    half_width = config.quotient("intermediate_size", ffn_width, 2) if ffn_width % 2 == 0 else 0
    if not half_width:
        raise config.error("intermediate_size", ffn_width, "an even number")
    return {
        "intermediate_size": half_width,
        "hidden_act": activation,
        "gated": True,
        **biases(has_bias, "gate_bias", "up_bias", "down_bias"),
    }


def _ffn_width_of_ratio(config: Config, width_multiplier: int) -> int:
    """Returns the default width of a feed-forward network: a multiple of the hidden size."""
    hidden_size = config.integer("hidden_size")
    if width_multiplier * hidden_size > LARGEST_SIZE:
        raise config.error(
            "hidden_size",
            hidden_size,
            f"at most {LARGEST_SIZE // width_multiplier}, for the network is {width_multiplier} times as wide",
        )
    return width_multiplier * hidden_size


def _read_molmo(config: Config) -> Table:
    """Reads Molmo 1: 128 additional embedding rows for images, which the head does not score."""
    config.require_fields(layer_norm_type="rms", tie_word_embeddings=False)
    norm = rmsnorm(config.number("layer_norm_eps"))
    token_mixer = attention(config, **biases(config.flag("qkv_bias"), *QKV_BIASES))
    token_mixer.pop("head_dim", None)
    if config.flag("attention_layer_norm"):
        token_mixer |= qk_norm_fields(norm, "projection")
    ffn_width = config.integer("intermediate_size")
    if ffn_width % 2:
        raise config.error("intermediate_size", ffn_width, "an even number: the gate and the other half together")
    feed_forward = {"intermediate_size": ffn_width // 2, "hidden_act": "silu", "gated": True}
    block = layer_table(token_mixer, feed_forward, norm, "output" if config.flag("norm_after") else "pre")
    embedding_rows = config.optional_integer("embedding_size") or config.integer("vocab_size")
    config.fields_read.add("vocab_size")
    config.notes.append(
        "the vision encoder, whose sizes are in the code of the model, and its projector are not counted: "
        f"{_molmo_vision_params(config):,} parameters"
    )
    return {**decoder(config, block, norm), "vocab_size": embedding_rows, "additional_vocab_size": 128}


def _molmo_vision_params(config: Config) -> int:
    """Returns the number of parameters of Molmo 1's image encoder and of its projector.

    The encoder is CLIP's large one for 336 pixels, of whose 24 layers two are read: the second-to-last and the ninth
    from the end, side by side. Four patches become one by attention of their mean, and a gated network has the text
    model's widths.
    """
    hidden_size, patch_values, position_rows, depth = 1024, 3 * 14 * 14, 24 * 24 + 1, 23
    params = 4 * hidden_size * (hidden_size + 1) + 2 * 4 * hidden_size * hidden_size + 5 * hidden_size + 4 * hidden_size
    encoder_params = hidden_size * (patch_values + 1 + position_rows + 2) + depth * params
    pooling_params = 3 * (2 * hidden_size + 1) * hidden_size + (hidden_size + 1) * hidden_size + 2 * 2 * hidden_size
    gated_width = config.integer("intermediate_size") // 2
    return encoder_params + pooling_params + gated_width * (2 * hidden_size + config.integer("hidden_size"))


OLMO_MODULES = {
    "layers": "transformer.blocks",
    "embed_tokens": "transformer.wte",
    "norm": "transformer.ln_f",
    "lm_head": "transformer.ff_out",
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ".att_proj"),
    "o_proj": ".attn_out",
    **dict.fromkeys(("gate_proj", "up_proj"), ".ff_proj"),
    "down_proj": ".ff_out",
    "self_attn_pre_norm": "attn_norm",
    "mlp_pre_norm": "ff_norm",
}
"""Node → its module in the code of OLMo 1 and Molmo 1."""


def _read_openlm(config: Config) -> Table:
    """Reads OpenLM's models, whose arguments may be in a separate table."""
    model_arguments: Mapping[str, Any] = config.table("params_args_dict") if config.has("params_args_dict") else {}
    config.fields_read.add("params_args_dict")
    config_data = {**model_arguments, **config.config_fields}
    inner_config = Config(
        config_data, config.defaults, config.model_type, config.head_kind, config.location, config.aliases
    )
    model_fields = _openlm_arguments(inner_config)
    config.fields_read |= inner_config.fields_read
    return model_fields


def _openlm_arguments(config: Config) -> Table:
    eps, hidden_size = config.number("norm_eps"), config.integer("hidden_size")
    norm_tables = {
        "default_layer_norm": layernorm(eps),
        "lp_layer_norm": layernorm(eps),
        "gain_only_lp_layer_norm": layernorm(eps, bias=False),
        "gain_only_layer_norm": layernorm(eps, bias=False),
        "no_wb_layer_norm": layernorm(eps, weight=False),
        "rms_norm": rmsnorm(eps),
    }
    norm = config.choice(norm_tables, "model_norm")
    config.require("moe_freq", 0)
    has_rope = config.choice(
        {"rotary": True, "head_rotary": True, "llama_rotary": True, "none": False}, "positional_embedding_type"
    )
    token_mixer: Table = {"num_attention_heads": config.integer("num_attention_heads")}
    if has_rope:
        token_mixer["position"] = {"type": "rope"}
    config.quotient("num_attention_heads", hidden_size, token_mixer["num_attention_heads"])
    if config.flag("apply_qk_norm"):
        token_mixer |= qk_norm_fields(norm, "projection")
    ffn_width = 256 * -(
        -(2 * _ffn_width_of_ratio(config, 4) // 3) // 256
    )  # two thirds of four times the width, up to a multiple of 256
    gated_ffn = {"intermediate_size": ffn_width, "gated": True}
    ffns_by_kind = {
        "swiglu": {**gated_ffn, "hidden_act": "silu"},
        "swiglu_torch": {**gated_ffn, "hidden_act": "silu"},
        "gemma_geglu": {**gated_ffn, "hidden_act": "gelu", **biases(True, "gate_bias", "up_bias", "down_bias")},
        "gelu": {"intermediate_size": _ffn_width_of_ratio(config, 4), "hidden_act": "gelu"},
    }
    ffn = config.choice(ffns_by_kind, "ffn_type")
    stack_fields = {"embedding_norm": norm} if config.flag("post_embed_norm") else {}
    block = layer_table(token_mixer, ffn, norm)
    return decoder(config, block, norm, stack=stack_fields)


OLMO_SOURCE = "https://github.com/allenai/OLMo olmo/model.py"
OPEN_LM_SOURCE = "https://github.com/mlfoundations/open_lm open_lm/model.py"

OLMO_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "mlp_hidden_size",
    "hidden_act": "activation_type",
    "max_position_embeddings": "max_sequence_length",
    "tie_word_embeddings": "weight_tying",
}
"""Usual name of a field → its name in configs of OLMo's first code and of LLaDA, which is derived from it."""

FAMILIES = {
    "hf_olmo": Family(
        _read_hf_olmo,
        {
            "vocab_size": 50257,
            "embedding_size": 50304,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_key_value_heads": None,
            "num_hidden_layers": 12,
            "mlp_ratio": 4,
            "intermediate_size": None,
            "hidden_act": "swiglu",
            "block_type": "sequential",
            "alibi": False,
            "rope": False,
            "multi_query_attention": None,
            "attention_layer_norm": False,
            "attention_layer_norm_with_affine": True,
            "embedding_layer_norm": False,
            "layer_norm_type": "default",
            "layer_norm_with_affine": True,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 1024,
            "include_bias": True,
            "bias_for_layer_norm": None,
            "tie_word_embeddings": True,
            "norm_after": False,
        },
        field_names("""
            activation_checkpointing alibi_bias_max block_group_size clip_qkv emb_init_std embedding_dropout
            flash_attention init_cutoff_factor init_device init_fn precision rope_full_precision scale_emb_init
            scale_logits
            """),
        aliases=OLMO_NAMES,
        modules=OLMO_MODULES,
        source=OLMO_SOURCE,
    ),
    "molmo": Family(
        _read_molmo,
        {
            "vocab_size": 50304,
            "embedding_size": None,
            "num_key_value_heads": None,
            "layer_norm_type": "rms",
            "layer_norm_eps": 1e-5,
            "qkv_bias": False,
            "attention_layer_norm": False,
            "norm_after": False,
            "tie_word_embeddings": False,
        },
        frozenset({"clip_qkv", "use_position_ids", "image_feature_dropout", "weight_tying"}),
        modules=OLMO_MODULES,
        source=f"{VLLM}molmo.py",
    ),
    "openlm": Family(
        _read_openlm,
        {
            "norm_eps": 1e-5,
            "model_norm": "default_layer_norm",
            "max_position_embeddings": 2048,
            "post_embed_norm": False,
            "apply_qk_norm": False,
            "moe_freq": 0,
            "positional_embedding_type": "rotary",
            "ffn_type": "swiglu",
            "tie_word_embeddings": False,
        },
        field_names("""
            attn_activation attn_name attn_seq_scalar attn_seq_scalar_alpha model moe_capacity_factor
            moe_expert_model_parallelism moe_loss_weight moe_num_experts moe_top_k moe_weight_parallelism qk_norm
            """),
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "max_position_embeddings": "seq_len",
            "tie_word_embeddings": "weight_tying",
        },
        source=OPEN_LM_SOURCE,
    ),
}

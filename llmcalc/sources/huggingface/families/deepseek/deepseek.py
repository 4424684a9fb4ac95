"""Multi-head latent attention with routed experts above some dense layers: DeepSeek-V2, V3 and similar models.

transformers: models/deepseek_v2, models/deepseek_v3, models/glm4_moe_lite, models/mistral4, models/axk1; only dense
    layers: models/minicpm3, models/youtu. Kimi K2's configs are DeepSeek-V3's with another model type.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, field_names
from ...field_writers import PARTIAL_ROTARY_WRITER, FieldWriters
from ...parts import (
    Table,
    decoder,
    decoder_of_kinds,
    dense_or_moe_kinds,
    full_rope,
    glu,
    layer_table,
    moe,
    mtp_modules,
    rmsnorm,
)


def latent_attention(config: Config, v_head_dim: int | None = None, **attention_fields: Any) -> Table:
    """Returns latent attention (MLA) from DeepSeek's config fields. v_head_dim: default the config's."""
    return {
        "type": "mla",
        "num_attention_heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.optional_integer("q_lora_rank"),
        **config.integer_fields("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
        "v_head_dim": v_head_dim or config.integer("v_head_dim"),
        "attention_bias": config.flag("attention_bias"),
        "position": full_rope(config),
        **attention_fields,
    }


def routed_experts(
    config: Config,
    has_shared_bias: bool = False,
    expert_count_names: tuple[str, ...] = ("num_local_experts",),
    **moe_fields: Any,
) -> Table:
    """Returns DeepSeek's mixture of experts, where one wide FFN stands for all shared experts.

    expert_count_names: other names that the class accepts for n_routed_experts.
    """
    expert_width = config.integer("moe_intermediate_size")
    shared_expert_count = 0 if config.get("n_shared_experts") is None else config.count("n_shared_experts")
    shared_expert = glu(config, has_shared_bias, expert_width * shared_expert_count) if shared_expert_count else None
    n_routed_experts = config.integer("n_routed_experts", *expert_count_names)
    num_experts_per_tok = config.integer("num_experts_per_tok")
    return moe(n_routed_experts, num_experts_per_tok, glu(config, ffn_width=expert_width), shared_expert, **moe_fields)


SIGMOID_ROUTING: Table = {"router": {"score_correction": "buffer", "scoring_func": "sigmoid"}}
"""DeepSeek-V3's routing."""


def deepseek_decoder(
    config: Config, attention: Table, experts: Table, layer_kinds: list[str], mlp_bias: bool = False, **moe_layer: Any
) -> Table:
    """Returns a model of pre-norm layers, `dense` or `moe`, with the MTP modules of the config.

    moe_layer: fields of a layer with experts that differ from the dense layer.
    """
    config.require("moe_layer_freq", 1)
    norm = rmsnorm(config.number("rms_norm_eps"))
    layer_changes = {"dense": {}, "moe": {"feed_forward": experts, **moe_layer}}
    ffn = glu(config, mlp_bias) if "dense" in layer_kinds else experts
    block = layer_table(attention, ffn, norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes), **mtp_modules(config))


def _read_deepseek_v2(config: Config) -> Table:
    if config.flag("mlp_bias") and config.get("n_shared_experts") == 0:
        raise config.error(
            "n_shared_experts",
            0,
            "1 or more with mlp_bias (with 0, the class still has the biases of an FFN of width 0)",
        )
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    if config.has("use_mla") and not config.flag("use_mla"):
        attention_table = _attention_without_query_latent(config)
    else:
        attention_table = latent_attention(config)
    experts = routed_experts(config, config.flag("mlp_bias"), ("num_experts",))
    return deepseek_decoder(config, attention_table, experts, layer_kinds, config.flag("mlp_bias"))


def _attention_without_query_latent(config: Config) -> Table:
    """Returns multi-head attention for a config whose `use_mla` is false (DeepSeek-VL2 Tiny, DeepSeek-OCR)."""
    config.fields_read.update(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    head_count = config.integer("num_attention_heads")
    attention_fields: Table = {"num_attention_heads": head_count, "position": full_rope(config)}
    kv_head_count = config.optional_integer("num_key_value_heads")
    return (
        attention_fields
        if kv_head_count in (None, head_count)
        else {**attention_fields, "num_key_value_heads": kv_head_count}
    )


def _read_deepseek_v3(config: Config) -> Table:
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    return deepseek_decoder(config, latent_attention(config), routed_experts(config, **SIGMOID_ROUTING), layer_kinds)


def _read_mistral4(config: Config) -> Table:
    config.require("mlp_bias", False)
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    return deepseek_decoder(config, latent_attention(config), routed_experts(config), layer_kinds)


def _read_glm4_moe_lite(config: Config) -> Table:
    if not config.has("mlp_layer_types"):
        config.require("first_k_dense_replace", 1)
    attention_table = latent_attention(
        config, qk_rope_head_dim=config.integer("qk_rope_head_dim", "head_dim")
    )  # head_dim is another name for it in the class
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), 1)
    return deepseek_decoder(config, attention_table, routed_experts(config, **SIGMOID_ROUTING), layer_kinds)


def _read_axk1(config: Config) -> Table:
    """Reads A.X-K1, which has a norm only on the output of the experts."""
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    attention = latent_attention(config)
    experts = routed_experts(config, **SIGMOID_ROUTING)
    return deepseek_decoder(
        config, attention, experts, layer_kinds, norm_placement="sandwich", without_norms=["self_attn_post_norm"]
    )


def _read_minicpm3(config: Config) -> Table:
    """Reads MiniCPM3. Its scaling factors of embeddings, residuals and logits are not counted as FLOPs."""
    v_head_dim = config.optional_integer("v_head_dim") or config.quotient(
        "num_attention_heads", config.integer("hidden_size"), config.integer("num_attention_heads")
    )
    return _dense_decoder(config, latent_attention(config, v_head_dim), config.flag("mlp_bias"))


def _read_youtu(config: Config) -> Table:
    config.require("mlp_bias", False)
    return _dense_decoder(config, latent_attention(config))


def _dense_decoder(config: Config, attention: Table, has_mlp_bias: bool = False) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    return decoder(config, layer_table(attention, glu(config, has_mlp_bias), norm), norm)


LATENT_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
ROUTING_FIELDS = field_names("""
    aux_loss_alpha ep_size head_dim intermediate_size moe_layer_freq n_group norm_topk_prob num_key_value_heads
    qk_head_dim rope_interleave routed_scaling_factor scoring_func seq_aux topk_group topk_method
    """)
"""Ignored config fields: those that choose the experts, and those that latent attention does not read."""

LATENT_WRITERS: FieldWriters = {"num_key_value_heads": lambda s: s.first_value("num_attention_heads")}


FAMILIES = {
    "deepseek_v2": Family(_read_deepseek_v2, {"moe_layer_freq": 1}, ROUTING_FIELDS, field_writers=LATENT_WRITERS),
    "deepseek_v3": Family(_read_deepseek_v3, {"moe_layer_freq": 1}, ROUTING_FIELDS, field_writers=LATENT_WRITERS),
    "kimi_k2": Family(_read_deepseek_v3, {"moe_layer_freq": 1}, ROUTING_FIELDS, class_model_type="deepseek_v3"),
    "kimi_k25": Family(None, text_type="deepseek_v3", tower_file="qwen"),
    "mistral4": Family(
        _read_mistral4,
        {"moe_layer_freq": 1, "mlp_bias": False},
        ROUTING_FIELDS | {"sliding_window"},
        field_writers=LATENT_WRITERS,
    ),
    "glm4_moe_lite": Family(
        _read_glm4_moe_lite,
        {"moe_layer_freq": 1, "first_k_dense_replace": 1},
        ROUTING_FIELDS,
        field_writers={**LATENT_WRITERS, "mlp_layer_types": "mlp_layer_types", **PARTIAL_ROTARY_WRITER},
    ),
    "axk1": Family(
        _read_axk1,
        {"moe_layer_freq": 1, "first_k_dense_replace": 1},
        ROUTING_FIELDS,
        field_writers=LATENT_WRITERS,
        modules={"mlp": "mlp - mlp.post_mlp_layernorm | mlp", "mlp_post_norm": "mlp.post_mlp_layernorm"},
    ),
    "minicpm3": Family(_read_minicpm3, ignored_fields=ROUTING_FIELDS, field_writers=LATENT_WRITERS),
    "youtu": Family(_read_youtu, {"mlp_bias": False}, ROUTING_FIELDS, field_writers=LATENT_WRITERS),
}

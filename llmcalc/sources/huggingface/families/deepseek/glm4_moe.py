"""Grouped-query attention with DeepSeek's experts: GLM-4.5, dots.llm1, MiniMax-M2.

Some first layers are dense; MiniMax-M2 has experts in every layer.

transformers: models/glm4_moe, models/dots1, models/minimax_m2.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import (
    FULL_OR_SLIDING,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    decoder,
    decoder_of_kinds,
    dense_or_moe_kinds,
    glu,
    layer_table,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
    rope,
)
from .deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, deepseek_decoder, routed_experts


def _read_glm4_moe(config: Config) -> Table:
    """Reads GLM-4.5: o_proj has no bias, regardless of attention_bias, and heads need not fill the hidden size."""
    norm = qk_norm_fields(rmsnorm(config.number("rms_norm_eps"))) if config.flag("use_qk_norm") else {}
    hidden_size, head_count = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or hidden_size // head_count
    biases = attention_biases(config, QKV_BIASES)
    attention_table = attention(config, head_dim=head_dim, position=rope(config, 0.5), **biases, **norm)
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    return deepseek_decoder(config, attention_table, routed_experts(config, **SIGMOID_ROUTING), layer_kinds)


def _read_dots1(config: Config) -> Table:
    config.require("moe_layer_freq", 1)
    depth = config.integer("num_hidden_layers")
    norm = rmsnorm(config.number("rms_norm_eps"))
    window_size = config.optional_integer("sliding_window")
    first_sliding_layer = depth if window_size is None else config.count("max_window_layers")
    default_layer_kinds = ["full" if layer_index < first_sliding_layer else "sliding" for layer_index in range(depth)]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    sliding_layer_fields = {} if window_size is None else {"attention": {"sliding_window": window_size}}
    attention_changes: Table = {"full": {}, "sliding": sliding_layer_fields}
    ffn_changes: Table = {
        "dense": {},
        "moe": {"feed_forward": routed_experts(config, **SIGMOID_ROUTING)} if "moe" in ffn_kinds else {},
    }
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm))
    block = layer_table(attention_table, glu(config), norm)
    return decoder_of_kinds(config, block, norm, (attention_kinds, attention_changes), (ffn_kinds, ffn_changes))


def _read_minimax_m2(config: Config) -> Table:
    """Reads MiniMax-M2: QK-norm over all heads together, and experts in every layer."""
    config.require_fields(use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, shared_intermediate_size=0)
    if config.has("attn_type_list") and set(config.integers("attn_type_list")) != {1}:
        raise config.field_error("attn_type_list", "1 for every layer (full attention)")
    norm = rmsnorm(config.number("rms_norm_eps"))
    rotary_fields = {"rotary_dim": config.integer("rotary_dim")} if config.has("rotary_dim") else {}
    attention_table = attention(
        config, position={**rope(config), **rotary_fields}, **qk_norm_fields(norm, "projection")
    )
    num_local_experts = config.integer("num_local_experts", "num_experts")
    experts = moe(num_local_experts, config.integer("num_experts_per_tok"), glu(config), **SIGMOID_ROUTING)
    return decoder(config, layer_table(attention_table, experts, norm), norm)


FAMILIES = {
    "glm4_moe": Family(_read_glm4_moe, {"moe_layer_freq": 1}, ROUTING_FIELDS, field_writers=PARTIAL_ROTARY_WRITER),
    "dots1": Family(_read_dots1, {"moe_layer_freq": 1}, ROUTING_FIELDS | {"use_sliding_window"}),
    "minimax_m2": Family(
        _read_minimax_m2,
        {
            "attention_bias": False,
            "moe_layer_freq": 1,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "use_routing_bias": True,
            "shared_intermediate_size": 0,
        },
        field_names("""
            scoring_func shared_moe_mode use_mtp num_mtp_modules mtp_transformer_layers sliding_window
            mlp_intermediate_size layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta
            """),
        field_writers=PARTIAL_ROTARY_WRITER,
        other_model_types=frozenset({"mixtral"}),
        earlier_names={"mlp": "block_sparse_moe"},
    ),
}

"""Upstage's Solar Open and JetBrains' Mellum 2: grouped-query attention with experts in every layer.

Solar Open has DeepSeek-V3's experts; Mellum 2 has QK-norm and sliding windows.

transformers: models/solar_open, models/mellum.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    decoder,
    decoder_of_kinds,
    dense_or_moe_kinds,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    note_uncounted_mtp,
    qk_norm_fields,
    rmsnorm,
    rope,
)
from .deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, routed_experts


def _read_solar_open(config: Config) -> Table:
    """Reads Solar Open: o_proj has no bias, regardless of attention_bias."""
    config.require_if_present("first_k_dense_replace", 0)
    config.require_if_present("use_qk_norm", False)
    config.integer("n_shared_experts")
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, **attention_biases(config, QKV_BIASES))
    return decoder(config, layer_table(attention_table, routed_experts(config, **SIGMOID_ROUTING), norm), norm)


def _read_mellum(config: Config) -> Table:
    """Reads Mellum 2: full and sliding layers have different RoPE parameters."""
    note_uncounted_mtp(config)
    depth = config.integer("num_hidden_layers")
    norm = rmsnorm(config.number("rms_norm_eps"))
    window_size = config.optional_integer("sliding_window")
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full"] * depth)
    ffn_kinds = dense_or_moe_kinds(config, depth, 0)
    attention_table = attention(
        config, position=rope(config, layer_kind="full_attention"), **attention_biases(config), **qk_norm_fields(norm)
    )
    position_encoding = rope(config, layer_kind="sliding_attention")
    sliding_attention = {
        "position": position_encoding,
        **({} if window_size is None else {"sliding_window": window_size}),
    }
    experts = gated_experts(config, count_fields=("num_experts", "num_local_experts"))
    block = layer_table(attention_table, glu(config) if "dense" in ffn_kinds else experts, norm)
    layer_changes: Table = {"dense": {}, "moe": {"feed_forward": experts} if "dense" in ffn_kinds else {}}
    sliding_layer_fields = {"attention": sliding_attention}
    return decoder_of_kinds(
        config,
        block,
        norm,
        (attention_kinds, {"full": {}, "sliding": sliding_layer_fields}),
        (ffn_kinds, layer_changes),
    )


FAMILIES = {
    "solar_open": Family(_read_solar_open, ignored_fields=ROUTING_FIELDS),
    "mellum": Family(
        _read_mellum,
        ignored_fields=frozenset({"max_window_layers", "use_sliding_window"}),
        aliases={"num_nextn_predict_layers": "num_mtp_layers"},
        has_older_aliases=True,
    ),
}

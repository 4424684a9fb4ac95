"""Xiaomi's MiMo: Qwen2's layers with an MTP module. MiMo-V2-Flash: sliding windows with sinks.

MiMo-V2-Flash has more key/value heads in sliding layers, and values narrower than keys.

transformers: models/mimo_v2_flash; MiMo-7B has no class there and is computed by Qwen2's.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, field_names
from ...parts import (
    DENSE_OR_MOE,
    FULL_OR_SLIDING,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    decoder_of_kinds,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    mtp_modules,
    rmsnorm,
)
from ..deepseek.deepseek import ROUTING_FIELDS, SIGMOID_ROUTING


def _read_mimo(config: Config) -> Table:
    config.require_fields(attention_bias=True, use_sliding_window=False)
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = layer_table(attention(config, **biases(True, *QKV_BIASES)), glu(config), norm)
    return decoder(config, block, norm, **mtp_modules(config))


def _read_mimo_v2_flash(config: Config) -> Table:
    """Reads MiMo-V2-Flash: sliding layers have sinks and twice the key/value heads.

    The class does not read the published fields for sliding layers and for the kinds of layers (`swa_head_dim`,
    `hybrid_layer_pattern`), so they must have the values that it builds.
    """
    config.require_fields(add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(
        config,
        v_head_dim=config.integer("v_head_dim"),
        num_key_value_heads=config.integer("num_key_value_heads"),
        **attention_biases(config, QKV_BIASES),
    )
    if config.has("sliding_window_size"):
        window_size = config.integer("sliding_window_size") + 1
    else:
        window_size = config.integer("sliding_window")
    num_key_value_heads = 2 * config.integer("num_key_value_heads")
    sliding_attention = {"num_key_value_heads": num_key_value_heads, "sinks": True, "sliding_window": window_size}
    head_fields = {field_name: config.integer(field_name) for field_name in SLIDING_SIZE_FIELDS} | {
        "num_key_value_heads": sliding_attention["num_key_value_heads"]
    }
    for field_name, field_value in head_fields.items():
        config.require_if_present(f"swa_{field_name}", field_value)
    count_fields = ("n_routed_experts", "num_local_experts")
    experts = gated_experts(config, count_fields=count_fields, **SIGMOID_ROUTING)
    default_layer_kinds = ["sliding" if index > 0 and (index + 1) % 6 else "full" for index in range(depth)]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    ffn_kinds = listed_kinds(
        config, "mlp_layer_types", DENSE_OR_MOE, ["moe" if layer_index else "dense" for layer_index in range(depth)]
    )
    _require_marked_layers(config, "hybrid_layer_pattern", "sliding", attention_kinds)
    _require_marked_layers(config, "moe_layer_freq", "moe", ffn_kinds)
    block = layer_table(attention_table, glu(config), norm)
    attention_changes = {"full": {}, "sliding": {"attention": sliding_attention}}
    ffn_changes = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder_of_kinds(config, block, norm, (attention_kinds, attention_changes), (ffn_kinds, ffn_changes))


def _require_marked_layers(config: Config, field_name: str, layer_kind: str, layer_kinds: list[str]) -> None:
    """Raises `InputError` unless a list of 0 and 1 has 1 exactly for the layers of one kind."""
    if config.has(field_name) and config.integers(field_name) != [int(kind == layer_kind) for kind in layer_kinds]:
        layer_types_field = "mlp_layer_types" if layer_kind == "moe" else "layer_types"
        expected_text = f"1 for the {layer_kind} layers of {layer_types_field}: the class does not read {field_name}"
        raise config.field_error(field_name, expected_text)


SLIDING_SIZE_FIELDS = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
"""Fields of attention sizes that configs may state separately for sliding layers, as `swa_…`."""


FAMILIES = {
    "mimo": Family(
        _read_mimo,
        {"head_dim": None, "attention_bias": True},
        frozenset({"sliding_window", "max_window_layers"}),
        class_model_type="qwen2",
    ),
    "mimo_v2_flash": Family(
        _read_mimo_v2_flash,
        {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False},
        ROUTING_FIELDS
        | field_names("""
            attention_chunk_size hybrid_block_size layernorm_epsilon n_shared_experts partial_rotary_factor
            swa_rope_theta
            """),
        field_writers={
            "num_key_value_heads": lambda s: (
                s.full_attention.num_key_value_heads or s.full_attention.num_attention_heads
            )
        },
    ),
}

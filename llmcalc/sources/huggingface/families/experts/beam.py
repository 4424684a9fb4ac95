"""Beam: gated attention with QK-norm and DeepSeek-V3's routing.

Layers with a sliding window have RoPE, full ones no positions.

transformers: models/beam.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    dense_or_moe_kinds,
    float32_rmsnorm,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    qk_norm_fields,
    rope,
)
from ..deepseek.deepseek import SIGMOID_ROUTING


def _read_beam(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), float32_rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(
        config,
        position=rope(config, layer_kind="sliding_attention"),
        output_gate={"per": "element", "bias": "head"},
        **attention_biases(config),
        **qk_norm_fields(norm),
    )
    default_layer_kinds = [
        "sliding" if (layer_index + 1) % 6 and layer_index < depth - 1 else "full" for layer_index in range(depth)
    ]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    rope_parameters = config.config_fields.get("rope_parameters") or {}
    full_layer_changes = {} if rope_parameters.get("full_attention") else {"attention": {"position": "none"}}
    window_size = config.optional_integer("sliding_window")
    if window_size is None and "sliding" in attention_kinds:
        raise config.error("sliding_window", None, "a number of tokens, for there are layers with a window")
    experts = gated_experts(config, **SIGMOID_ROUTING)
    block = layer_table(attention_table, glu(config), norm, "sandwich")
    layer_changes: Table = {"full": full_layer_changes, "sliding": {"attention": {"sliding_window": window_size}}}
    ffn_kinds: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder_of_kinds(
        config, block, norm, (attention_kinds, layer_changes), (dense_or_moe_kinds(config, depth, 3), ffn_kinds)
    )


FAMILIES = {
    "beam": Family(
        _read_beam,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        modules={"self_attn.gate_proj": "gate_proj + gate_bias", "gate_proj.head_bias": ".self_attn.gate_bias"},
    )
}

"""RecurrentGemma (Griffin): alternating recurrent blocks and local attention.

transformers: models/recurrent_gemma. Its `intermediate_size` is the total width of the gate and up projections.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...family import Family
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import (
    ACTIVATIONS,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    decoder,
    glu,
    layer_table,
    offset_rmsnorm,
    rope,
    stack_of_variants,
)


def _read_recurrent_gemma(config: Config) -> Table:
    depth = config.integer("num_hidden_layers")
    hidden_size = config.integer("hidden_size")
    head_count = config.integer("num_attention_heads")
    norm = offset_rmsnorm(config.number("rms_norm_eps"))
    recurrent_width = config.optional_integer("lru_width") or hidden_size
    config.quotient("num_attention_heads", recurrent_width, head_count)
    window_size = config.integer("attention_window_size", "sliding_window")
    local_attention = attention(
        config,
        position=rope(config, 0.5),
        sliding_window=window_size,
        o_bias=True,
        **attention_biases(config, QKV_BIASES),
    )
    recurrent_mixer: Table = {
        "type": "rglru",
        "lru_width": recurrent_width,
        "num_attention_heads": head_count,
        "conv1d_width": config.integer("conv1d_width"),
    }
    recurrent_mixer["hidden_act"] = config.choice(ACTIVATIONS, "hidden_activation")
    ffn_width = config.quotient("intermediate_size", config.integer("intermediate_size") // 2 * 2, 2)
    ffn = glu(config, bias=True, ffn_width=ffn_width, activation_field="hidden_activation")
    block: Table = layer_table(local_attention, ffn, norm)
    block_types = config.texts("block_types")
    if not block_types or set(block_types) - {"recurrent", "attention"}:
        raise config.field_error("block_types", "a list of recurrent and attention")
    layer_kinds = (block_types * depth)[:depth]
    layer_variants = {"recurrent": {"attention": recurrent_mixer}, "attention": {}}
    return decoder(config, block, norm, stack=stack_of_variants(layer_variants, layer_kinds))


FAMILIES = {
    "recurrent_gemma": Family(
        _read_recurrent_gemma,
        ignored_fields=frozenset({"final_w_init_variance_scale", "embeddings_scale_by_sqrt_dim"}),
        field_writers={
            "block_types": lambda s: s.layer_kinds(sliding_attention="attention"),
            "attention_window_size": lambda s: require_present(s.window),
            "intermediate_size": lambda s: 2 * s.network.intermediate_size,
            **PARTIAL_ROTARY_WRITER,
        },
    )
}

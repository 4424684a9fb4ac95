"""MiMo-V2.5 and -Pro: sliding layers with separate sizes, and experts in listed layers.

MiMo-V2-Flash has a class in transformers, which reads fewer of the fields (`experts.mimo`).

Source: the file in `Family.source`.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV,
    Table,
    attention,
    biases,
    combined_kinds,
    decoder,
    glu,
    layer_table,
    moe,
    rmsnorm,
    uncounted_prediction,
)
from ..deepseek.deepseek import ROUTING, SIGMOID

SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
"""Sizes of attention that sliding layers have as `swa_…`."""


def _mimo_v2(config: Config) -> Table:
    """Reads MiMo-V2.5: only sliding layers have sinks; 1 in `hybrid_layer_pattern` marks a sliding layer."""
    config.require("add_full_attention_sink_bias", None, False)
    config.require("n_shared_experts", None, 0)
    uncounted_prediction(config)
    depth, norm = config.size("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    qkv = biases(config.flag("attention_bias"), *QKV)
    head_fields = {name: config.size(name, "head_dim") if name == "v_head_dim" else config.size(name) for name in SIZES}
    sliding_sizes = {
        name: config.size(f"swa_{name}") if config.has(f"swa_{name}") else size for name, size in head_fields.items()
    }
    window = config.size("sliding_window_size", "sliding_window")
    sinks = {"sinks": True} if config.flag("add_swa_attention_sink_bias") else {}
    mixer = attention(config, **qkv, **head_fields)
    attention_kinds = ["sliding" if mark else "full" for mark in _layer_marks(config, "hybrid_layer_pattern", depth)]
    network_kinds = ["moe" if mark else "dense" for mark in _layer_marks(config, "moe_layer_freq", depth)]
    experts = moe(
        config.size("n_routed_experts"),
        config.size("num_experts_per_tok"),
        glu(config, width=config.size("moe_intermediate_size")),
        **SIGMOID,
    )
    block = layer_table(mixer, glu(config), norm)
    attention_changes: Table = {
        "full": {},
        "sliding": {"attention": {**mixer, **sliding_sizes, **sinks, "sliding_window": window}},
    }
    network_changes: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    return decoder(
        config,
        block,
        norm,
        stack=combined_kinds((attention_kinds, attention_changes), (network_kinds, network_changes)),
    )


def _layer_marks(config: Config, field: str, depth: int) -> list[int]:
    """Returns a list with 0 or 1 for each layer. Raises `InputError` for another length or another number."""
    layer_marks = config.sizes(field)
    if len(layer_marks) != depth or not {*layer_marks} <= {0, 1}:
        raise config.error(field, layer_marks, f"{depth} times 0 or 1, one for each layer")
    return layer_marks


FAMILIES = {
    "mimo_v2": Family(
        _mimo_v2,
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "add_swa_attention_sink_bias": False,
            "add_full_attention_sink_bias": None,
            "n_shared_experts": None,
        },
        ROUTING
        | field_names(
            """
            attention_chunk_size attention_projection_layout attention_value_scale hybrid_block_size
            num_nextn_predict_layers num_mtp_modules sliding_window sliding_window_size swa_rope_theta
            """
        ),
        uncounted_fields={
            **dict.fromkeys(("vision_config", "audio_config"), "its encoder is not counted"),
            "num_mtp_layers": "the {} multi-token-prediction modules are not counted",
        },
        aliases={"rms_norm_eps": "layernorm_epsilon"},
        source=f"{VLLM}mimo_v2.py",
    )
}

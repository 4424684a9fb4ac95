"""Baichuan-M1: keys and values blended with the previous token's, and a separate number of heads in sliding layers.

Wang et al. 2025 (arXiv:2502.12671). Its head scores by rows of unit length, which has no parameters. Source: the
modeling file in `Family.source`.
"""

from __future__ import annotations

from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, decoder_of_kinds, glu, layer_table, rmsnorm, rope


def _read_baichuan_m1(config: Config) -> Table:
    config.require("conv_window", 2)
    depth, window_size = config.integer("num_hidden_layers"), config.integer("sliding_window")
    sliding_indices = {*config.integers("sliding_window_layers")}
    if sliding_indices and max(sliding_indices) >= depth:
        raise config.error("sliding_window_layers", sorted(sliding_indices), f"indices below num_hidden_layers {depth}")
    norm = rmsnorm(config.number("rms_norm_eps"))
    full_attention = _attention(config, "num_attention_heads", "num_key_value_heads")
    layer_changes: Table = {"full": {}}
    if sliding_indices:
        sliding_attention = _attention(config, "num_swa_attention_heads", "num_swa_key_value_heads")
        layer_changes["sliding"] = {"attention": {**sliding_attention, "sliding_window": window_size}}
    layer_kinds = ["sliding" if layer_index in sliding_indices else "full" for layer_index in range(depth)]
    block = layer_table(full_attention, glu(config), norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes))


def _attention(config: Config, heads_field: str, kv_heads_field: str) -> Table:
    """Returns attention that blends neighbouring tokens' keys and values. heads_field: field of the head count."""
    head_count = config.optional_integer(heads_field) or config.integer("num_attention_heads")
    kv_head_count = config.optional_integer(kv_heads_field) or config.integer("num_key_value_heads")
    return {
        "type": "blended",
        "num_attention_heads": head_count,
        "num_key_value_heads": kv_head_count,
        "head_dim": config.quotient(heads_field, config.integer("hidden_size"), head_count),
        "position": rope(config),
    }


FAMILIES = {
    "baichuan_m1": Family(
        _read_baichuan_m1,
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "conv_window": 2,
            "num_swa_attention_heads": None,
            "num_swa_key_value_heads": None,
            "sliding_window_layers": (),
        },
        source=f"{HUB}baichuan-inc/Baichuan-M1-14B-Base modeling_baichuan.py",
    )
}

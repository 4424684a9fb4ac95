"""Doge: an attention mask computed from the values, and optionally product-key experts with one hidden unit.

The residual has a learned weight.

transformers: models/doge.
"""

from __future__ import annotations

from math import isqrt

from ...config import Config
from ...dropout import HIDDEN_DROPOUT
from ...family import Family
from ...parts import ACTIVATIONS, Table, decoder, glu, layer_table, rmsnorm, rope


def _read_doge(config: Config) -> Table:
    # a field of the first checkpoints' own code; the class reads mlp_bias
    config.require_if_present("hidden_bias", False)
    hidden_size = config.integer("hidden_size")
    head_count = config.integer("num_attention_heads")
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table: Table = {
        "type": "dynamic_mask",
        "num_attention_heads": head_count,
        "num_key_value_heads": config.optional_integer("num_key_value_heads") or head_count,
        "head_dim": config.optional_integer("head_dim") or _head_dim(config, hidden_size, head_count),
        "keep_window_size": config.integer("keep_window_size"),
        "attention_bias": config.flag("attention_bias"),
        "norm": norm,
        "position": rope(config),
    }
    if config.optional_integer("sliding_window") is not None:
        attention_table["sliding_window"] = config.integer("sliding_window")
    dense_ffn = glu(config, config.flag("mlp_bias"))
    block = layer_table(
        attention_table, _product_key_moe(config, dense_ffn) if config.flag("is_moe") else dense_ffn, norm
    )
    return decoder(config, {**block, "residual_scale": "residual"}, norm)


def _head_dim(config: Config, hidden_size: int, head_count: int) -> int:
    """Returns the size of a head: hidden_size / heads, rounded down."""
    if head_count > hidden_size:
        raise config.error("num_attention_heads", head_count, f"at most hidden_size {hidden_size}")
    return hidden_size // head_count


def _product_key_moe(config: Config, shared_expert: Table) -> Table:
    """Returns product-key experts (the largest square number up to num_experts); the dense FFN is a shared expert."""
    expert_count, top_k = config.integer("num_experts"), config.integer("num_experts_per_tok")
    keys_per_half = isqrt(expert_count)
    if top_k > keys_per_half**2:
        raise config.error(
            "num_experts_per_tok", top_k, f"at most the {keys_per_half**2} of {expert_count} experts that form a square"
        )
    routed_experts_table = {
        "num_experts": expert_count,
        "num_keys": keys_per_half,
        "num_experts_per_tok": top_k,
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
    }
    return {"type": "product_key_moe", **routed_experts_table, "shared_expert": shared_expert}


FIRST_CODE_FIELDS = frozenset(
    {
        "dynamic_mask_ratio",
        "expert_retrieval_size",
        "num_cdmoe_experts",
        "num_cdmoe_experts_per_head",
        "num_cdmoe_heads",
    }
)
"""Ignored config fields of the first repositories' code; the class reads is_moe and num_experts instead."""

FAMILIES = {
    "doge": Family(
        _read_doge,
        ignored_fields=FIRST_CODE_FIELDS,
        field_writers={"is_moe": lambda s: bool(getattr(s.networks[0], "num_experts", 0))},
        dropout_fields=HIDDEN_DROPOUT,
    )
}

"""DBRX: experts in every layer, LayerNorms without bias, and config fields in two nested tables.

transformers: models/dbrx.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import ACTIVATIONS, Table, decoder, layer_table, layernorm, moe, rope


def _read_dbrx(config: Config) -> Table:
    attn_config = config.section("attn_config", {"kv_n_heads": 1})
    ffn_config = config.section("ffn_config", FFN_DEFAULTS)
    head_count, norm = config.integer("num_attention_heads"), layernorm(bias=False)
    activation = ffn_config.table("ffn_act_fn").get("name", "silu")
    if activation not in ACTIVATIONS:
        raise ffn_config.error("ffn_act_fn", activation, "a name among " + ", ".join(ACTIVATIONS))
    num_key_value_heads = attn_config.integer("kv_n_heads")
    attention_table = {
        "num_attention_heads": head_count,
        "num_key_value_heads": num_key_value_heads,
        "position": rope(attn_config),
    }
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    intermediate_size = ffn_config.integer("ffn_hidden_size")
    expert = {"intermediate_size": intermediate_size, "hidden_act": ACTIVATIONS[activation], "gated": True}
    moe_num_experts = ffn_config.integer("moe_num_experts")
    experts = moe(moe_num_experts, ffn_config.integer("moe_top_k"), expert, expert_loop=True, sliced_experts=True)
    return decoder(config, layer_table(attention_table, experts, norm), norm)


FFN_DEFAULTS: Table = {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1, "ffn_act_fn": {"name": "silu"}}

UNREACHED_CLIP = 1e9
"""A bound for the clipping of queries, keys and values that is so large that nothing is clipped; DBRX requires one."""


FAMILIES = {
    "dbrx": Family(
        _read_dbrx,
        ignored_fields=frozenset({"num_key_value_heads"}),  # the class copies it from `attn_config`
        aliases={
            "num_attention_heads": "n_heads",
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "max_position_embeddings": "max_seq_len",
        },
        field_writers={
            "attn_config": lambda s: {
                "kv_n_heads": s.usual_value("num_key_value_heads"),
                "rope_theta": s.rotary_position.rope_theta,
                "clip_qkv": UNREACHED_CLIP,
            },
            "ffn_config": lambda s: {
                "ffn_hidden_size": s.moe.expert.intermediate_size,
                "moe_num_experts": s.moe.num_experts,
                "moe_top_k": s.moe.num_experts_per_tok,
                "ffn_act_fn": {"name": s.moe.expert.hidden_act},
            },
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields={},
    )
}

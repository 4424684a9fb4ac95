"""JetMoE: experts in attention and in the FFN, each with a separate router.

transformers: models/jetmoe. The norms of the layers use the class's default epsilon.
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import Table, decoder, glu, layer_table, moe, rmsnorm, rope


def _read_jetmoe(config: Config) -> Table:
    expert_count, top_k = config.integer("num_local_experts"), config.integer("num_experts_per_tok")
    head_fields = {
        "num_key_value_heads": config.integer("num_key_value_heads"),
        "head_dim": config.integer("kv_channels"),
    }
    token_mixer = {
        "type": "mixture_of_attention",
        "num_experts": expert_count,
        "num_experts_per_tok": top_k,
        **head_fields,
        "position": rope(config),
    }
    ffn = moe(expert_count, top_k, glu(config, activation_field="activation_function"), output_bias=True)
    block: Table = layer_table(token_mixer, ffn, rmsnorm())
    return decoder(config, block, rmsnorm(config.number("rms_norm_eps")))


FAMILIES = {
    "jetmoe": Family(
        _read_jetmoe,
        ignored_fields=frozenset(
            {"bias", "ffn_hidden_size", "glu", "moe_num_experts", "moe_top_k", "num_attention_heads", "num_layers"}
        ),
        aliases={"kv_channels": "head_dim"},
        field_writers={
            "kv_channels": lambda s: s.first_value("head_dim"),
            "num_key_value_heads": lambda s: s.first_value("num_key_value_heads"),
        },
        has_older_aliases=True,
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    )
}

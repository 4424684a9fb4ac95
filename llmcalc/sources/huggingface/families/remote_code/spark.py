"""Spark-X2.5: Llama's layers with an output gate per head, and sliding windows in three of four layers.

Sources: the modeling file in `Family.source`, and its ports in SGLang (models/spark2_5.py) and MLX-LM.
"""

from __future__ import annotations

from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, decoder, glu, layer_table, rmsnorm, rope, sliding_stack


def _read_spark(config: Config) -> Table:
    config.require("gate_attn_act_mode", "sigmoid")
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    output_gate: Table = {"output_gate": {"per": "head"}} if config.flag("headwise_attn_output_gate") else {}
    position_encoding = rope(config, layer_kind="full_attention")
    attention_table = attention(config, position=position_encoding, **output_gate, **attention_biases(config))
    ffn = glu(config, config.flag("mlp_bias"))
    block = layer_table(attention_table, ffn, norm)
    if not config.has("layer_types"):
        layer_types = config.config_fields.get("layer_types")
        raise config.error("layer_types", layer_types, f"a list with the kind of each of {depth} layers")
    sliding_attention: Table = {"position": rope(config, layer_kind="sliding_attention")}
    return decoder(config, block, norm, stack=sliding_stack(config, ["full"] * depth, sliding_attention))


FAMILIES = {
    "spark2_5": Family(
        _read_spark,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "mlp_bias": False,
            "headwise_attn_output_gate": True,
            "gate_attn_act_mode": "sigmoid",
            "sliding_window": None,
            "layer_types": None,
            "tie_word_embeddings": False,
        },
        modules={"embed_tokens": "embedding", "self_attn.gate_proj": "g_proj", "self_attn.o_proj": "out_proj"},
        source=f"{HUB}XHToken/Spark-X2.5-4B modeling_spark.py",
    )
}

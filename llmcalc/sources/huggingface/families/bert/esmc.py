"""ESM C, a protein model: pre-norm layers with RoPE, a LayerNorm on all queries and keys, and a gated FFN.

transformers: models/esmc.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, encoder, glu, layer_table, layernorm, qk_norm_fields


def _read_esmc(config: Config) -> Table:
    config.require("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"), None)
    attention_table = attention(
        config, **attention_biases(config), **qk_norm_fields(layernorm(bias=False), "projection")
    )
    block = layer_table(attention_table, glu(config, config.flag("mlp_bias")), layernorm())
    head_fields = {"bias": True, "transform": {"hidden_act": "gelu", "norm": layernorm()}}
    stack_fields = {"final_norm": layernorm(bias=False)}
    model_fields = encoder(
        config, block, stack_fields, head_fields, {"transform": {"hidden_act": "tanh", "norm": None}}
    )
    return {**model_fields, "tie_word_embeddings": False}


FAMILIES = {"esmc": Family(_read_esmc, modules={"lm_head.norm": "layer_norm", "classifier.dense": "dense"})}

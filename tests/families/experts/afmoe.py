from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_hidden_layers": 5,
    "head_dim": 6,
    "moe_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]

SHAPES = {
    "AfmoeForCausalLM": [
        {"model_type": "afmoe", **SMALL, "num_dense_layers": 2},
        {
            "model_type": "afmoe",
            **SMALL,
            "num_dense_layers": 0,
            "num_shared_experts": 1,
            "attention_bias": True,
            "layer_types": TYPES,
        },
        {
            "model_type": "afmoe",
            **SMALL,
            "num_key_value_heads": None,
            "global_attn_every_n_layers": 2,
            "tie_word_embeddings": True,
        },
    ],
    "LagunaForCausalLM": [
        {"model_type": "laguna", **SMALL},
        {
            "model_type": "laguna",
            **SMALL,
            "layer_types": TYPES,
            "num_attention_heads_per_layer": [4, 6, 6, 4, 6],
            "gating": "per-element",
        },
        {
            "model_type": "laguna",
            **SMALL,
            "layer_types": TYPES,
            "num_attention_heads_per_layer": [4, 6, 2, 2, 6],
            "gating": "per-head",
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 12,
    "num_experts_per_tok": 2,
}
SLIDING, FULL = "sliding_attention", "full_attention"
ANGLES = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}

SHAPES = {
    "SolarOpenForCausalLM": [
        {
            "model_type": "solar_open",
            **SMALL,
            "n_routed_experts": 6,
            "first_k_dense_replace": 0,
            "use_qk_norm": False,
            "intermediate_size": 40,
        },
        {
            "model_type": "solar_open",
            **SMALL,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "n_group": 2,
            "head_dim": 6,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "MellumForCausalLM": [
        {
            "model_type": "mellum",
            **SMALL,
            "num_experts": 6,
            "intermediate_size": 40,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            "sliding_window": 16,
            "rope_parameters": ANGLES,
        },
        {"model_type": "mellum", **SMALL, "num_experts": 5, "attention_bias": True, "tie_word_embeddings": True},
        {
            "model_type": "mellum",
            **SMALL,
            "num_experts": 5,
            "intermediate_size": 40,
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "layer_types": [FULL, SLIDING, FULL, SLIDING],
            "sliding_window": 12,
        },
    ],
}

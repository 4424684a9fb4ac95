from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 12,
    "num_experts": 5,
    "router_hidden_size": 10,
}
SLIDING = ["hybrid", "hybrid_sliding", "hybrid"]

SHAPES = {
    "ZayaForCausalLM": [
        {"model_type": "zaya", **SMALL},
        {
            "model_type": "zaya",
            **SMALL,
            "layer_types": SLIDING,
            "sliding_window": 6,
            "cca_time0": 3,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        {
            "model_type": "zaya",
            **SMALL,
            "num_hidden_layers": 1,
            "num_key_value_heads": 4,
            "cca_time1": 4,
            "lm_head_bias": True,
        },
    ],
    "ZayaModel": [{"model_type": "zaya", **SMALL, "head_dim": 12}],
}

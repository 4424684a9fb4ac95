from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "kv_channels": 12,
    "intermediate_size": 24,
}

SHAPES = {
    "JetMoeForCausalLM": [
        {"model_type": "jetmoe", **SMALL, "num_local_experts": 4},
        {
            "model_type": "jetmoe",
            **SMALL,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": False,
        },
    ],
}

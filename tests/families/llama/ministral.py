from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}

TYPES = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]

SHAPES = {
    "MinistralForCausalLM": [
        {"model_type": "ministral", **SMALL, "head_dim": 8},
        {
            "model_type": "ministral",
            **SMALL,
            "head_dim": 6,
            "sliding_window": 16,
            "layer_types": TYPES,
            "tie_word_embeddings": True,
        },
    ],
    "Ministral3ForCausalLM": [
        {"model_type": "ministral3", **SMALL},
        {"model_type": "ministral3", **SMALL, "sliding_window": 16, "head_dim": 8, "tie_word_embeddings": True},
    ],
    "Ministral3Model": [{"model_type": "ministral3", **SMALL, "num_key_value_heads": 4}],
}

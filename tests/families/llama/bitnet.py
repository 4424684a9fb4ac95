from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}

SHAPES = {
    "BitNetForCausalLM": [
        {"model_type": "bitnet", **SMALL},
        {
            "model_type": "bitnet",
            **SMALL,
            "num_key_value_heads": None,
            "attention_bias": True,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
        },
    ],
    "NanoChatForCausalLM": [
        {"model_type": "nanochat", **SMALL},
        {
            "model_type": "nanochat",
            **SMALL,
            "num_key_value_heads": None,
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "NanoChatModel": [{"model_type": "nanochat", **SMALL}],
}

from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}

SHAPES = {
    "DiffLlamaForCausalLM": [
        {"model_type": "diffllama", **SMALL},
        {
            "model_type": "diffllama",
            **SMALL,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 48}

SHAPES = {
    "RecurrentGemmaForCausalLM": [
        {"model_type": "recurrent_gemma", **SMALL},
        {
            "model_type": "recurrent_gemma",
            **SMALL,
            "num_key_value_heads": 1,
            "lru_width": 24,
            "conv1d_width": 3,
            "attention_window_size": 16,
            "attention_bias": True,
            "block_types": ["attention", "recurrent"],
            "tie_word_embeddings": False,
            "intermediate_size": 45,
        },
    ],
    "RecurrentGemmaModel": [{"model_type": "recurrent_gemma", **SMALL, "head_dim": 16}],
}

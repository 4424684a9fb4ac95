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
    "Phi3ForCausalLM": [
        {"model_type": "phi4_multimodal", **SMALL, "pad_token_id": 0, "bos_token_id": 0},
        {
            "model_type": "phi4_multimodal",
            **SMALL,
            "num_key_value_heads": None,
            "sliding_window": 16,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "partial_rotary_factor": 0.5,
        },
    ],
}

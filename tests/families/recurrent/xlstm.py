from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2}

SHAPES = {
    "xLSTMForCausalLM": [
        {"model_type": "xlstm", **SMALL},
        {
            "model_type": "xlstm",
            **SMALL,
            "use_bias": True,
            "qk_dim_factor": 1.0,
            "v_dim_factor": 1.5,
            "chunk_size": 16,
            "ffn_proj_factor": 1.3,
            "weight_mode": "fused",
            "tie_word_embeddings": True,
        },
        {
            "model_type": "xlstm",
            **SMALL,
            "num_blocks": 2,
            "embedding_dim": 128,
            "num_heads": 4,
            "chunk_size": 5,
            "ffn_round_up_to_multiple_of": 10,
        },
    ],
}

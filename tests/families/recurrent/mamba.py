from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}
HEADS = {"num_heads": 4, "head_dim": 16}

SHAPES = {
    "MambaForCausalLM": [
        {"model_type": "mamba", **SMALL},
        {
            "model_type": "mamba",
            **SMALL,
            "hidden_size": 40,
            "expand": 3,
            "conv_kernel": 3,
            "time_step_rank": 5,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": False,
        },
        {"model_type": "mamba", **SMALL, "intermediate_size": 80},
    ],
    "MambaModel": [{"model_type": "mamba", **SMALL}],
    "FalconMambaForCausalLM": [
        {"model_type": "falcon_mamba", **SMALL},
        {"model_type": "falcon_mamba", **SMALL, "tie_word_embeddings": False, "use_bias": True, "time_step_rank": 6},
    ],
    "Mamba2ForCausalLM": [
        {"model_type": "mamba2", **SMALL, **HEADS, "n_groups": 2, "chunk_size": 16},
        {
            "model_type": "mamba2",
            **SMALL,
            **HEADS,
            "n_groups": 1,
            "chunk_size": 24,
            "tie_word_embeddings": True,
            "use_bias": True,
            "use_conv_bias": False,
        },
        {"model_type": "mamba2", **SMALL, **HEADS, "n_groups": 4, "conv_kernel": 5},
    ],
    "Mamba2Model": [{"model_type": "mamba2", **SMALL, **HEADS, "n_groups": 2, "chunk_size": 16}],
}

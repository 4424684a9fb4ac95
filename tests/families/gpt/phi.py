from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {**SMALL, "num_key_value_heads": 2}

SHAPES = {
    "Phi3ForCausalLM": [
        {"model_type": "phi3", **SMALL, "pad_token_id": None},
        {
            "model_type": "phi3",
            "pad_token_id": None,
            **GROUPED,
            "sliding_window": 16,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
        {
            "model_type": "phi3",
            "pad_token_id": None,
            **GROUPED,
            "sliding_window": None,
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        },
    ],
    "PhiForCausalLM": [
        {"model_type": "phi", **SMALL},
        {
            "model_type": "phi",
            **GROUPED,
            "qk_layernorm": True,
            "partial_rotary_factor": 0.25,
            "hidden_act": "relu",
            "tie_word_embeddings": True,
        },
    ],
    "PhiModel": [{"model_type": "phi", **SMALL, "num_key_value_heads": None}],
    "PersimmonForCausalLM": [
        {"model_type": "persimmon", **SMALL},
        {"model_type": "persimmon", **SMALL, "qk_layernorm": False, "hidden_act": "gelu", "tie_word_embeddings": True},
    ],
    "StableLmForCausalLM": [
        {"model_type": "stablelm", **SMALL, "num_key_value_heads": 4},
        {
            "model_type": "stablelm",
            **GROUPED,
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "tie_word_embeddings": True,
        },
    ],
    "Starcoder2ForCausalLM": [
        {"model_type": "starcoder2", **GROUPED},
        {
            "model_type": "starcoder2",
            **GROUPED,
            "use_bias": False,
            "sliding_window": 16,
            "tie_word_embeddings": False,
            "mlp_type": "default",
        },
    ],
    "Jais2ForCausalLM": [
        {"model_type": "jais2", **SMALL},
        {
            "model_type": "jais2",
            **GROUPED,
            "head_dim": 16,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
        },
    ],
}

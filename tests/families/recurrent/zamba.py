from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
}
ZAMBA2 = {"model_type": "zamba2", **SMALL, "n_mamba_heads": 4, "mamba_d_state": 8, "chunk_size": 16, "adapter_rank": 5}

SHAPES = {
    "ZambaForCausalLM": [
        {
            "model_type": "zamba",
            **SMALL,
            "num_hidden_layers": 9,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
        },
        {
            "model_type": "zamba",
            **SMALL,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "linear_attention", "hybrid"],
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
            "n_mamba_heads": 1,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_dt_rank": 7,
        },
    ],
    "Zamba2ForCausalLM": [
        {
            **ZAMBA2,
            "num_hidden_layers": 7,
            "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_mem_rope": True,
        },
        {
            **ZAMBA2,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "linear_attention", "hybrid"],
            "use_shared_attention_adapter": True,
            "num_key_value_heads": None,
            "mamba_ngroups": 2,
            "add_bias_linear": True,
            "intermediate_size": None,
        },
        {
            **ZAMBA2,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "num_mem_blocks": 2,
            "num_key_value_heads": 2,
        },
        {
            **ZAMBA2,
            "num_hidden_layers": 7,
            "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "tie_word_embeddings": False,
            "use_long_context": True,
            "use_mem_rope": True,
        },
        {
            **ZAMBA2,
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 3,
            "tie_word_embeddings": False,
        },
    ],
    "Zamba2Model": [{**ZAMBA2, "num_hidden_layers": 54}],
}

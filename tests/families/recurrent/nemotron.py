from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
HYBRID = {
    "model_type": "nemotron_h",
    **SMALL,
    "head_dim": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "chunk_size": 16,
    "n_groups": 2,
}
EXPERTS = {"n_routed_experts": 4, "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 28}

SHAPES = {
    "NemotronForCausalLM": [
        {"model_type": "nemotron", **SMALL, "num_hidden_layers": 3},
        {
            "model_type": "nemotron",
            **SMALL,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "hidden_act": "gelu",
        },
    ],
    "NemotronHForCausalLM": [
        {**HYBRID, "hybrid_override_pattern": "M-M*-M-", "num_hidden_layers": 7},
        {
            **HYBRID,
            **EXPERTS,
            "hybrid_override_pattern": "MEM*E",
            "head_dim": 12,
            "use_bias": True,
            "mlp_bias": True,
            "use_conv_bias": False,
        },
        {
            **HYBRID,
            **EXPERTS,
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            "moe_latent_size": 12,
            "num_experts_per_tok": 3,
            "num_nextn_predict_layers": 1,
            "mtp_layers_block_type": ["attention", "moe"],
        },
        {
            **HYBRID,
            **EXPERTS,
            "layers_block_type": ["linear_attention", "full_attention", "moe"],
            "moe_latent_size": 12,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "mamba_head_dim": 10,
        },
        {**HYBRID, **EXPERTS},
    ],
    "NemotronHModel": [
        {**HYBRID, "hybrid_override_pattern": "*M-", "mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_chunk_size": 24}
    ],
}

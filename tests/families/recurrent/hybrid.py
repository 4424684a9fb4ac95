from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = {**COMMON_GROUPED, "num_hidden_layers": 4}
HEADS = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_chunk_size": 16}

SHAPES = {
    "JambaForCausalLM": [
        {
            "model_type": "jamba",
            **SMALL,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
        },
        {
            "model_type": "jamba",
            **SMALL,
            "attn_layer_period": 2,
            "attn_layer_offset": 0,
            "expert_layer_period": 3,
            "expert_layer_offset": 2,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "mamba_dt_rank": 7,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
        {
            "model_type": "jamba",
            **SMALL,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "num_hidden_layers": 6,
        },
    ],
    "JambaModel": [
        {"model_type": "jamba", **SMALL, "num_local_experts": 3, "num_hidden_layers": 6},
        # the name that is not a field of the class takes precedence
        {"model_type": "jamba", **SMALL, "num_experts": 5, "num_local_experts": 3, "num_hidden_layers": 6},
    ],
    "BambaForCausalLM": [
        {"model_type": "bamba", **SMALL, **HEADS, "attn_layer_indices": [1, 3]},
        {
            "model_type": "bamba",
            **SMALL,
            **HEADS,
            "mamba_n_groups": 2,
            "mamba_d_head": 16,
            "attn_layer_indices": [0, 9],
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "num_key_value_heads": None,
        },
        {"model_type": "bamba", **SMALL, **HEADS, "attn_layer_indices": [3]},
    ],
    "GraniteMoeHybridForCausalLM": [
        {
            "model_type": "granitemoehybrid",
            **SMALL,
            **HEADS,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "shared_intermediate_size": 40,
            "num_local_experts": 4,
        },
        {
            "model_type": "granitemoehybrid",
            **SMALL,
            **HEADS,
            "layers_block_type": ["linear_attention", "mamba", "full_attention", "mamba"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 56,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
            "mamba_n_groups": 4,
        },
        {
            "model_type": "granitemoehybrid",
            **SMALL,
            **HEADS,
            "num_key_value_heads": None,
            "layer_types": ["mamba"] * 3 + ["attention"],
        },
    ],
    "GraniteMoeHybridModel": [{"model_type": "granitemoehybrid", **SMALL, **HEADS, "layer_types": ["attention"] * 4}],
    "FalconH1ForCausalLM": [
        {"model_type": "falcon_h1", **SMALL, **HEADS, "mamba_d_ssm": 48},
        {
            "model_type": "falcon_h1",
            **SMALL,
            **HEADS,
            "mamba_d_ssm": None,
            "mamba_rms_norm": True,
            "mamba_n_groups": 2,
            "projectors_bias": True,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "mamba_d_head": 16,
        },
    ],
    "FalconH1Model": [
        {
            "model_type": "falcon_h1",
            **SMALL,
            **HEADS,
            "mamba_d_ssm": 48,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        }
    ],
}

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

PUZZLE: dict[str, Any] = {
    "model_type": "nemotron_h_puzzle",
    **COMMON_GROUPED,
    "head_dim": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "chunk_size": 16,
    "n_groups": 2,
    "n_routed_experts": 8,
    "moe_shared_expert_intermediate_size": 28,
    "moe_latent_size": 12,
    "num_hidden_layers": None,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "NemotronHPuzzleForCausalLM": [
        {
            **PUZZLE,
            "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "moe"],
            "block_configs": [
                {"block_type": "mamba"},
                {"block_type": "moe", "moe_intermediate_size": 20, "num_experts_per_tok": 2},
                {"block_type": "attention"},
                {"block_type": "moe", "moe_intermediate_size": 24, "num_experts_per_tok": 3},
                {"block_type": "mamba", "mamba_num_heads": 8},
                {"block_type": "moe", "moe_intermediate_size": 20, "num_experts_per_tok": 2},
            ],
        },
        {
            **PUZZLE,
            "hybrid_override_pattern": "M*-E",
            "block_configs": [
                {"block_type": "mamba"},
                {"block_type": "attention", "num_key_value_heads": 4},
                {"block_type": "mlp", "intermediate_size": 40},
                {
                    "block_type": "moe",
                    "n_routed_experts": 4,
                    "num_experts_per_tok": 1,
                    "moe_intermediate_size": 16,
                    "moe_shared_expert_intermediate_size": 20,
                },
            ],
            "mlp_bias": True,
        },
    ],
}

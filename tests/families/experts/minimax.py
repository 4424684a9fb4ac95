from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = {**COMMON_GROUPED, "num_hidden_layers": 5, "intermediate_size": 24, "num_local_experts": 6}
LISTED = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]

SHAPES = {
    "MiniMaxForCausalLM": [
        {"model_type": "minimax", **SMALL},
        {
            "model_type": "minimax",
            **SMALL,
            "head_dim": 12,
            "block_size": 20,
            "layer_types": LISTED,
            "tie_word_embeddings": True,
            "num_experts_per_tok": 3,
        },
    ],
    "MiniMaxModel": [
        {"model_type": "minimax", **SMALL, "num_key_value_heads": 4, "block_size": 8, "mlp_alpha_factor": 3.5}
    ],
}

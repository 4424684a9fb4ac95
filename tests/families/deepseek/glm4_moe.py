from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "num_experts_per_tok": 2}
MOE: dict[str, Any] = {**SMALL, "moe_intermediate_size": 20, "n_routed_experts": 8, "n_shared_experts": 1}

SHAPES = {
    "Glm4MoeForCausalLM": [
        {"model_type": "glm4_moe", **MOE, "head_dim": 6},
        {
            "model_type": "glm4_moe",
            **MOE,
            "first_k_dense_replace": 0,
            "use_qk_norm": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {"model_type": "glm4_moe", **MOE, "num_nextn_predict_layers": 1, "n_shared_experts": 2},
    ],
    "Dots1ForCausalLM": [
        {"model_type": "dots1", **MOE, "first_k_dense_replace": 1, "head_dim": 6},
        {
            "model_type": "dots1",
            **MOE,
            "sliding_window": 16,
            "max_window_layers": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {"model_type": "dots1", **MOE, "sliding_window": None, "first_k_dense_replace": 2},
    ],
    "MiniMaxM2ForCausalLM": [
        {"model_type": "minimax_m2", **SMALL, "num_local_experts": 6, "head_dim": 8, "rotary_dim": 4},
        {
            "model_type": "minimax_m2",
            **SMALL,
            "num_local_experts": 4,
            "head_dim": 10,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ],
}

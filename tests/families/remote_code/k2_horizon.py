from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

K2_HORIZON: dict[str, Any] = {
    "model_type": "k2_horizon",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "layernorm_num_groups": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0},
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "num_shared_experts": 1,
    "router_score_func": "sigmoid",
    "router_scaling_factor": 2.5,
    "moe_gate_bias": True,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "K2HorizonForCausalLM": [
        {**K2_HORIZON, "mlp_only_layers": [0, 1, 2, 3], "rope_head_dim": 16},
        {**K2_HORIZON, **EXPERTS, "rope_head_dim": 8, "layernorm_num_groups": 1},
        {
            **K2_HORIZON,
            **EXPERTS,
            "attention_gate_func": "softplus",
            "mova_num_experts": 5,
            "mova_num_experts_per_tok": 2,
        },
        {
            **K2_HORIZON,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "decoder_sparse_step": 2,
            "mova_num_experts": 3,
            "mova_num_experts_per_tok": 1,
            "attention_gate_func": "silu",
            "attention_bias": False,
            "query_key_norm": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "tie_word_embeddings": True,
        },
    ],
}

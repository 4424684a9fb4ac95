from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

LING: dict[str, Any] = {
    "model_type": "bailing_moe_v2_5",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
}

LING_2_5 = {
    **LING,
    "head_dim": 8,
    "layer_group_size": 2,
    "use_qk_norm": True,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
    "partial_rotary_factor": 0.5,
}
LING_3 = {**LING, "model_type": "bailing_moe_v3", "head_dim": 8, "short_conv_kernel_size": 4, "no_kda_lora": True}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "BailingMoeV2_5ForCausalLM": [
        LING_2_5,
        {**LING_2_5, "q_lora_rank": None, "use_linear_silu": True, "use_bias": True, "num_shared_experts": 2},
        {**LING_2_5, "layer_group_size": 3, "first_k_dense_replace": 0, "use_qkv_bias": True, "use_qk_norm": False},
    ],
    "BailingMoeV3ForCausalLM": [
        {**LING_3, "layer_group_size": 2, "kda_lower_bound": -5.0},
        {**LING_3, "layer_group_size": 4, "kda_safe_gate": False, "num_hidden_layers": 5},
    ],
}

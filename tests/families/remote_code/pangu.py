from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

PANGU: dict[str, Any] = {
    "model_type": "pangu_ultra_moe",
    **COMMON_SMALL,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "sandwich_norm": True,
}

PRO: dict[str, Any] = {
    "model_type": "PanguProMoE",
    **COMMON_SMALL,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "PanguProMoEForCausalLM": [
        {**PRO, "shared_expert_intermediate_size": 20},
        {**PRO, "shared_expert_intermediate_size": 0, "tie_word_embeddings": True},
    ],
    "PanguUltraMoEForCausalLM": [
        {
            **PANGU,
            "attention_kv_lora_dim": 8,
            "attention_q_lora_dim": 12,
            "attention_qk_dim": 8,
            "attention_qk_rope_dim": 4,
            "attention_v_dim": 8,
            "num_routed_experts": 8,
            "num_shared_experts": 1,
            "num_dense_layers": 1,
        },
        {
            **PANGU,
            "kv_lora_rank": 8,
            "q_lora_rank": None,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 8,
            "router_enable_expert_bias": True,
            "num_nextn_predict_layers": 1,
        },
    ],
}

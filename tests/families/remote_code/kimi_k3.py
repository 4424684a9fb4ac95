from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

TEXT: dict[str, Any] = {
    "model_type": "kimi_linear",
    **COMMON_SMALL,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "q_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 2,
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "attn_res_block_size": 2,
    "routed_expert_hidden_size": 16,
    "latent_moe_use_norm": True,
    "linear_attn_config": {
        "full_attn_layers": [2, 5],
        "kda_layers": [1, 3, 4],
        "num_heads": 2,
        "head_dim": 6,
        "short_conv_kernel_size": 3,
        "gate_lower_bound": -5.0,
        "use_full_rank_gate": True,
    },
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "KimiK3ForConditionalGeneration": [
        {"model_type": "kimi_k3", "text_config": TEXT},
        {
            "model_type": "kimi_k3",
            "text_config": {
                **TEXT,
                "attn_res_block_size": 3,
                "latent_moe_use_norm": False,
                "routed_expert_hidden_size": None,
                "first_k_dense_replace": 2,
            },
        },
    ],
    "KimiLinearForCausalLM": [
        {**TEXT, "model_type": "kimi_k3_text"},
        {
            **TEXT,
            "model_type": "kimi_k3_text",
            "num_shared_experts": 0,
            "mla_use_output_gate": False,
            "first_k_dense_replace": 0,
        },
    ],
}

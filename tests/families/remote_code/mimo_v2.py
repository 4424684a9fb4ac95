from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

MIMO: dict[str, Any] = {
    "model_type": "mimo_v2",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "sliding_window_size": 8,
    "max_position_embeddings": 64,
}

NAIVE: dict[str, Any] = {
    **MIMO,
    "model_type": "naive_n05_flash",
    "attention_bias": False,
    "hidden_act": "silu",
    "hybrid_layer_pattern": [0, 1, 0, 1],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 12, "swa_v_head_dim": 8},
    **{"enable_dsa": True, "index_n_heads": 3, "index_head_dim": 8, "index_top_k": 6, "index_n_kv_heads": 1},
    "partial_rotary_factor": 0.334,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "MiMoV2ForCausalLM": [
        {
            **MIMO,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_head_dim": 12,
            "swa_v_head_dim": 8,
            "add_swa_attention_sink_bias": True,
            "layernorm_epsilon": 1e-6,
            "vision_config": {"depth": 2},
        },
        {**MIMO, "swa_num_attention_heads": 8, "swa_head_dim": 8, "attention_bias": True, "v_head_dim": 12},
        {
            **MIMO,
            "hybrid_layer_pattern": [0] * 4,
            "moe_layer_freq": [1, 0, 1, 0],
            "tie_word_embeddings": True,
            "num_nextn_predict_layers": 3,
        },
    ],
    "NaiveN05FlashForCausalLM": [
        NAIVE,
        {**NAIVE, "attention_bias": True, "add_full_attention_sink_bias": True, "partial_rotary_factor": 0.5},
    ],
}

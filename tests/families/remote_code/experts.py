from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "max_position_embeddings": 64}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek",
    **SMALL,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
LING: dict[str, Any] = {
    "model_type": "bailing_moe",
    **SMALL,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
}
LING2: dict[str, Any] = {
    **LING,
    "model_type": "bailing_moe_v2",
    "head_dim": 8,
    "use_qk_norm": True,
    "rotary_dim": 4,
    "moe_router_enable_expert_bias": True,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
RING: dict[str, Any] = {
    **LING2,
    "model_type": "bailing_moe_linear",
    "num_hidden_layers": 5,
    "layer_group_size": 2,
    "group_norm_size": 2,
}
KLEAR: dict[str, Any] = {
    "model_type": "Klear",
    **SMALL,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}
SARVAM: dict[str, Any] = {
    "model_type": "sarvam_mla",
    **SMALL,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
SMALLTHINKER: dict[str, Any] = {
    "model_type": "smallthinker",
    **{name: size for name, size in SMALL.items() if name != "intermediate_size"},
    "head_dim": 16,
    "moe_ffn_hidden_size": 16,
    "moe_num_primary_experts": 8,
    "moe_num_active_primary_experts": 2,
}
HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan",
    **SMALL,
    "num_hidden_layers": 4,
    "num_experts": 4,
    "moe_topk": 1,
    "num_shared_expert": 1,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
}
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m1",
    **SMALL,
    "num_hidden_layers": 4,
    "num_local_experts": 6,
    "attn_type_list": [0, 0, 0, 1],
    "head_dim": 12,
    "rotary_dim": 6,
    "postnorm": True,
}

SHAPES = {
    "BailingMoeLinearV2ForCausalLM": [
        RING,
        {
            **{name: value for name, value in RING.items() if name != "rotary_dim"},
            "num_hidden_layers": 4,
            "layer_group_size": 3,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": False,
            "use_qkv_bias": True,
            "linear_silu": True,
            "first_k_dense_replace": 0,
        },
    ],
    "KlearMoeForCausalLM": [
        KLEAR,
        {**KLEAR, "mlp_only_layers": [0], "n_shared_experts": 2, "attention_bias": True, "tie_word_embeddings": True},
        {**KLEAR, "decoder_sparse_step": 2},
    ],
    "MiniMaxM1ForCausalLM": [MINIMAX, {**MINIMAX, "attn_type_list": [1, 0, 1, 0], "rotary_dim": None}],
    "MiniMaxText01ForCausalLM": [
        {**MINIMAX, "model_type": "minimax_text_01", "num_experts_per_tok": 3, "shared_intermediate_size": 0},
        {**MINIMAX, "model_type": "minimax_text_01", "num_key_value_heads": 4, "head_dim": None},
    ],
    "DeepseekForCausalLM": [
        DEEPSEEK,
        {**DEEPSEEK, "first_k_dense_replace": 0, "n_shared_experts": None, "attention_bias": True},
    ],
    "BailingMoeForCausalLM": [LING, {**LING, "use_bias": True, "use_qkv_bias": True, "num_shared_experts": 0}],
    "BailingMoeV2ForCausalLM": [
        LING2,
        {**LING2, "rotary_dim": None, "partial_rotary_factor": 0.5, "moe_shared_expert_intermediate_size": 8},
    ],
    "SarvamMoEForCausalLM": [
        {**LING2, "model_type": "sarvam_moe", "rotary_dim": None},
        {**LING, "model_type": "sarvam_moe", "moe_router_enable_expert_bias": True, "head_dim": 16},
    ],
    "Param2MoEForCausalLM": [
        {**LING2, "model_type": "param2moe", "use_qk_norm": True},
        {**LING2, "model_type": "param2moe", "use_qk_norm": False, "num_hidden_layers": 3},
    ],
    "SarvamMLAForCausalLM": [
        {**SARVAM, "first_k_dense_replace": 1},
        {**SARVAM, "q_lora_rank": 8, "num_shared_experts": 0, "moe_router_enable_expert_bias": False},
    ],
    "SmallThinkerForCausalLM": [
        {**SMALLTHINKER, "rope_layout": [0, 1, 1], "sliding_window_layout": [0, 1, 1], "sliding_window_size": 8},
        {**SMALLTHINKER, "rope_layout": [1, 1, 1], "tie_word_embeddings": True},
    ],
    "HunYuanForCausalLM": [
        {**HUNYUAN, "use_cla": True, "cla_share_factor": 2},
        {**HUNYUAN, "use_cla": False, "num_experts": 1, "attention_bias": True},
    ],
    "ArcticForCausalLM": [
        {"model_type": "arctic", **SMALL, "num_local_experts": 4, "use_residual": True, "moe_layer_frequency": 1},
        {"model_type": "arctic", **SMALL, "num_local_experts": 4, "use_residual": True},
        {"model_type": "arctic", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    ],
    "Grok1ForCausalLM": [
        {"model_type": "grok-2", **SMALL, "num_local_experts": 4, "moe_intermediate_size": 24, "residual_moe": True},
        {"model_type": "grok-2", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16},
    ],
    "Grok1ModelForCausalLM": [
        {"model_type": "grok-1", **SMALL, "num_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "grok-1", **SMALL, "num_experts": 8, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    ],
}

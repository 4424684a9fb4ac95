from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "index_n_heads": 3,
    "index_head_dim": 10,
    "index_topk": 8,
}

SHAPES = {
    "DeepseekV32ForCausalLM": [
        {"model_type": "deepseek_v32", **SMALL},
        {
            "model_type": "deepseek_v32",
            **SMALL,
            "first_k_dense_replace": 0,
            "attention_bias": True,
            "index_topk": 2048,
            "tie_word_embeddings": True,
        },
    ],
    "GlmMoeDsaForCausalLM": [
        {"model_type": "glm_moe_dsa", **SMALL},
        {
            "model_type": "glm_moe_dsa",
            **SMALL,
            "indexer_types": ["full", "shared", "full", "shared"],
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        {
            "model_type": "glm_moe_dsa",
            **SMALL,
            "index_topk_freq": 2,
            "index_skip_topk_offset": 1,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
        },
        {"model_type": "glm_moe_dsa", **SMALL, "index_topk_pattern": "FSSF", "num_nextn_predict_layers": 1},
    ],
    "AXK2ForCausalLM": [
        {"model_type": "axk2", **SMALL, "gated_norm_rank": 5, "bos_token_id": 1, "eos_token_id": 2},
        {
            "model_type": "axk2",
            **SMALL,
            "n_group": None,
            "topk_group": None,
            "n_shared_experts": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "index_topk": 2048,
            "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        {"model_type": "axk2", **SMALL, "first_k_dense_replace": 0, "bos_token_id": 1, "eos_token_id": 2},
    ],
}

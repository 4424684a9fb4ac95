from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

LATENT = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
SMALL = {**COMMON_GROUPED, "num_key_value_heads": 4, **LATENT}
MOE: dict[str, Any] = {
    **SMALL,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
V3: dict[str, Any] = {**MOE, "n_group": 2, "topk_group": 1}
BIASED: dict[str, Any] = {
    **V3,
    "num_hidden_layers": 2,
    "attention_bias": True,
    "q_lora_rank": None,
    "tie_word_embeddings": True,
}

SHAPES = {
    "DeepseekV2ForCausalLM": [
        {"model_type": "deepseek_v2", **MOE, "first_k_dense_replace": 1, "q_lora_rank": None},
        {
            "model_type": "deepseek_v2",
            **MOE,
            "n_shared_experts": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "DeepseekV3ForCausalLM": [
        {"model_type": "deepseek_v3", **V3, "first_k_dense_replace": 1},
        {
            "model_type": "deepseek_v3",
            **BIASED,
        },  # only dense layers: the class has three dense layers by default
        {
            "model_type": "deepseek_v3",
            **V3,
            "first_k_dense_replace": 0,
            "n_shared_experts": 3,
            "num_nextn_predict_layers": 1,
        },
        {"model_type": "kimi_k2", **V3, "first_k_dense_replace": 1, "n_group": 1},
        {"model_type": "kimi_k2", **BIASED, "first_k_dense_replace": 0},
    ],
    "DeepseekV3Model": [{"model_type": "deepseek_v3", **V3, "first_k_dense_replace": 2}],
    "Mistral4ForCausalLM": [
        {"model_type": "mistral4", **MOE},
        {
            "model_type": "mistral4",
            **MOE,
            "first_k_dense_replace": 2,
            "attention_bias": True,
            "q_lora_rank": None,
            "tie_word_embeddings": True,
        },
    ],
    "Glm4MoeLiteForCausalLM": [
        {"model_type": "glm4_moe_lite", **MOE},
        {
            "model_type": "glm4_moe_lite",
            **MOE,
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "AXK1ForCausalLM": [
        {"model_type": "axk1", **V3},
        {"model_type": "axk1", **V3, "first_k_dense_replace": 2, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "MiniCPM3ForCausalLM": [
        {"model_type": "minicpm3", **SMALL},
        {
            "model_type": "minicpm3",
            **SMALL,
            "v_head_dim": None,
            "q_lora_rank": None,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ],
    "YoutuForCausalLM": [
        {"model_type": "youtu", **SMALL},
        {"model_type": "youtu", **SMALL, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": False},
    ],
}

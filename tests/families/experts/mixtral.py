from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED
LOCAL = {**SMALL, "num_local_experts": 4}
QWEN = {**SMALL, "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 3}
QWEN2 = {**QWEN, "shared_expert_intermediate_size": 40}

SHAPES = {
    "MixtralForCausalLM": [
        {"model_type": "mixtral", **LOCAL},
        {
            "model_type": "mixtral",
            **LOCAL,
            "head_dim": 16,
            "sliding_window": 16,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": True,
        },
    ],
    "MixtralModel": [{"model_type": "mixtral", **LOCAL, "num_key_value_heads": 4}],
    "Qwen2MoeForCausalLM": [
        {"model_type": "qwen2_moe", **QWEN2},
        {"model_type": "qwen2_moe", **QWEN2, "decoder_sparse_step": 2, "qkv_bias": False, "tie_word_embeddings": True},
        {
            "model_type": "qwen2_moe",
            **QWEN2,
            "num_hidden_layers": 5,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 4,
            "mlp_only_layers": [0, 3],
        },
        {
            "model_type": "qwen2_moe",
            **QWEN2,
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ],
    "Qwen3MoeForCausalLM": [
        {"model_type": "qwen3_moe", **QWEN},
        {
            "model_type": "qwen3_moe",
            **QWEN,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_only_layers": [1],
            "tie_word_embeddings": True,
        },
        {"model_type": "qwen3_moe", **QWEN, "use_sliding_window": True, "sliding_window": 16, "num_experts": 0},
    ],
    "PhimoeForCausalLM": [
        {"model_type": "phimoe", **LOCAL},
        {
            "model_type": "phimoe",
            **LOCAL,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 16,
            "tie_word_embeddings": True,
        },
    ],
}

from __future__ import annotations

from tests.families.sizes import COMMON_SMALL

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
BIASED = {"attention_bias": True, "tie_word_embeddings": True}
LISTED = ["full_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"]

KIMI = {
    **COMMON_SMALL,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "linear_num_heads": 3,
    "linear_head_dim": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
BAILING = {
    **{k: v for k, v in KIMI.items() if k not in ("linear_num_heads", "linear_head_dim")},
    "head_dim": 6,
    "short_conv_kernel_size": 3,
    "layer_group_size": 3,
    "n_group": 2,
    "topk_group": 1,
}
CHECKPOINT = {
    "full_attn_layers": [2, 5],
    "kda_layers": [1, 3, 4],
    "num_heads": 2,
    "head_dim": 6,
    "short_conv_kernel_size": 3,
}
OLMO = {
    **COMMON_SMALL,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

SHAPES = {
    "Qwen3NextForCausalLM": [
        {"model_type": "qwen3_next", **SMALL, **EXPERTS},
        {"model_type": "qwen3_next", **SMALL, **EXPERTS, **BIASED, "intermediate_size": 40, "mlp_only_layers": [0, 3]},
        {
            "model_type": "qwen3_next",
            **SMALL,
            **EXPERTS,
            "decoder_sparse_step": 2,
            "full_attention_interval": 2,
            "linear_conv_kernel_dim": 3,
        },
        {"model_type": "qwen3_next", **SMALL, "num_experts": 0, "intermediate_size": 40, "layer_types": LISTED},
    ],
    "Qwen3NextModel": [{"model_type": "qwen3_next", **SMALL, **EXPERTS}],
    "Qwen3_5ForCausalLM": [
        {"model_type": "qwen3_5_text", **SMALL, "intermediate_size": 48},
        {
            "model_type": "qwen3_5_text",
            **SMALL,
            "intermediate_size": 48,
            "layer_types": LISTED,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "Qwen3_5MoeForCausalLM": [
        {"model_type": "qwen3_5_moe_text", **SMALL, **EXPERTS, "mtp_num_hidden_layers": 1},
        {
            "model_type": "qwen3_5_moe_text",
            **SMALL,
            **EXPERTS,
            "layer_types": LISTED,
            "linear_num_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ],
    "KimiLinearForCausalLM": [
        {"model_type": "kimi_linear", **KIMI},
        {
            "model_type": "kimi_linear",
            **KIMI,
            "linear_attn_config": CHECKPOINT,
            "q_lora_rank": 14,
            "num_key_value_heads": None,
            "first_k_dense_replace": 2,
        },
        {
            "model_type": "kimi_linear",
            **KIMI,
            "layer_types": LISTED,
            "mlp_layer_types": ["sparse", "dense", "dense", "sparse", "sparse"],
            "attention_bias": True,
            "num_shared_experts": 2,
            "tie_word_embeddings": True,
        },
    ],
    "BailingHybridForCausalLM": [
        {"model_type": "bailing_hybrid", **BAILING},
        {
            "model_type": "bailing_hybrid",
            **BAILING,
            "layer_types": LISTED,
            "kda_safe_gate": False,
            "attention_bias": True,
            "num_shared_experts": 2,
            "first_k_dense_replace": 0,
            "num_key_value_heads": None,
            "tie_word_embeddings": True,
        },
    ],
    "OlmoHybridForCausalLM": [
        {"model_type": "olmo_hybrid", **OLMO},
        {
            "model_type": "olmo_hybrid",
            **OLMO,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 8,
            "linear_value_head_dim": 5,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        {
            "model_type": "olmo_hybrid",
            **OLMO,
            "layer_types": LISTED,
            "linear_conv_kernel_dim": 3,
            "tie_word_embeddings": True,
        },
        {"model_type": "olmo_hybrid", **OLMO, "num_hidden_layers": 3},
    ],
}

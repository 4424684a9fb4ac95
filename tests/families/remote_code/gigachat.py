from __future__ import annotations

from typing import Any

GIGACHAT: dict[str, Any] = {
    "model_type": "gigachat3_5",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "GigaChat35ForCausalLM": [
        {**GIGACHAT, "full_attention_layers": [0, 3], "num_nextn_predict_layers": 2},
        {
            **GIGACHAT,
            "layer_types": ["full_attention", "linear_attention"],
            "num_hidden_layers": 2,
            "q_lora_rank": None,
            "first_k_dense_replace": 0,
            "norm_type": "LlamaRMSNorm",
            "layernorm_type": None,
            "gated_attention": False,
        },
        {
            **GIGACHAT,
            "linear_attention_type": None,
            "norm_type": "ZeroCenteredRMSNorm",
            "layernorm_type": "post",
            "n_shared_experts": 2,
            "tie_word_embeddings": True,
        },
    ],
}

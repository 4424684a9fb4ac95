from __future__ import annotations

from typing import Any

ALICE: dict[str, Any] = {
    "model_type": "alice_ai",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 16,
    "block_attn_res_block_size": 2,
    "max_position_embeddings": 64,
    "mtp_num_hidden_layers": 1,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "AliceAIForCausalLM": [
        ALICE,
        {
            **ALICE,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 0,
            "block_attn_res_block_size": 3,
            "mtp_num_hidden_layers": 0,
            "tie_word_embeddings": True,
        },
    ],
}

from __future__ import annotations

from typing import Any

GROVE: dict[str, Any] = {
    "model_type": "grove_moe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "GroveMoeForCausalLM": [
        GROVE,
        {**GROVE, "num_experts": 6, "mlp_only_layers": [1], "tie_word_embeddings": True, "norm_topk_prob": True},
    ],
}

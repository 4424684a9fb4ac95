from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "num_hidden_layers": 7, "num_key_value_heads": 1}
FLASH: dict[str, Any] = {
    **SMALL,
    "model_type": "mimo_v2_flash",
    "head_dim": 12,
    "v_head_dim": 8,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
}

SHAPES = {
    "Qwen2ForCausalLM": [
        {"model_type": "mimo", **SMALL, "num_nextn_predict_layers": 1},
        {"model_type": "mimo", **SMALL, "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": True},
    ],
    "MiMoV2FlashForCausalLM": [
        {**FLASH, "sliding_window": 16},
        {
            **FLASH,
            "sliding_window_size": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "sparse"],
        },
    ],
}

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "EagleLlamaForCausalLM": [
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 1},
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 3, "bias": False, "qkv_bias": True},
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 1, "layernorms": True, "fusion_bias": False},
    ],
    "LlamaForCausalLMEagle3": [
        {"model_type": "eagle3", **SMALL, "draft_vocab_size": 40},
        {"model_type": "eagle3", **SMALL, "head_dim": 6, "target_hidden_size": 20, "fc_norm": True},
        {
            "model_type": "eagle3",
            **SMALL,
            "num_hidden_layers": 2,
            "draft_vocab_size": 40,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "attention_bias": True,
            "eagle_aux_hidden_state_layer_ids": [1, 2],
        },
    ],
    "PEagleDraftModel": [
        {"model_type": "peagle", **SMALL, "num_hidden_layers": 4, "draft_vocab_size": 40},
        {"model_type": "peagle", **SMALL, "num_hidden_layers": 1},
    ],
}

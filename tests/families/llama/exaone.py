"""Shapes of the families in `sources/huggingface/families/llama/exaone.py`."""

from __future__ import annotations

from .llama import SMALL

EXPERTS = {"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 2}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "Exaone4ForCausalLM": [
        {"model_type": "exaone4", **SMALL, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "exaone4",
            **SMALL,
            "head_dim": 12,
            "sliding_window": None,
            "layer_types": [FULL] * 3,
            "tie_word_embeddings": True,
        },
        {
            "model_type": "exaone4",
            **SMALL,
            "sliding_window": 16,
            "sliding_window_pattern": "LLLG",
            "layer_types": [SLIDING, FULL, SLIDING],
        },
    ],
    "ExaoneMoeForCausalLM": [
        {"model_type": "exaone_moe", **SMALL, **EXPERTS, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "exaone_moe",
            **SMALL,
            **EXPERTS,
            "sliding_window": 16,
            "num_shared_experts": 2,
            "tie_word_embeddings": True,
            "head_dim": 12,
            "layer_types": [FULL, SLIDING, SLIDING],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_nextn_predict_layers": 1,
        },
    ],
}

from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = {**COMMON_GROUPED, "num_hidden_layers": 4}

TYPES = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]

SHAPES = {
    "MinistralForCausalLM": [
        {"model_type": "ministral", **SMALL, "head_dim": 8},
        {
            "model_type": "ministral",
            **SMALL,
            "head_dim": 6,
            "sliding_window": 16,
            "layer_types": TYPES,
            "tie_word_embeddings": True,
        },
    ],
    "Ministral3ForCausalLM": [
        {"model_type": "ministral3", **SMALL},
        {"model_type": "ministral3", **SMALL, "sliding_window": 16, "head_dim": 8, "tie_word_embeddings": True},
    ],
    "Ministral3Model": [{"model_type": "ministral3", **SMALL, "num_key_value_heads": 4}],
}

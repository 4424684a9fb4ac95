"""Shapes of the families in `sources/huggingface/families/gemma/embedding_gemma2.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

TEXT = {
    "model_type": "embedding_gemma2_text",
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": 3,
    "sliding_window_pattern": 2,
    "hidden_size_per_layer_input": 10,
    "embedding_dim": 14,
}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "EmbeddingGemma2TextModel": [
        TEXT,
        {
            **TEXT,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "attention_bias": True,
            "num_global_key_value_heads": 2,
            "per_layer_config": {
                "0": {"head_dim": 16, "num_key_value_heads": 4},
                "3": {"head_dim": 16, "num_key_value_heads": 4},
            },
        },
    ],
}

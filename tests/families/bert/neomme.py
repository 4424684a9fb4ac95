"""Shapes of the family in `sources/huggingface/families/bert/neomme.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "neomme",
    "vocab_size": 96,
    "embedding_rank": 12,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "sliding_window": 4,
    "patch_size": 4,
}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES: dict[str, list[dict[str, Any]]] = {
    "NeoMMEForMaskedLM": [
        SMALL,
        {
            **SMALL,
            "num_hidden_layers": 4,
            "layer_types": [FULL, SLIDING, FULL, SLIDING],
            "per_layer_config": {"0": {"sliding_window": None}, "2": {"sliding_window": None}},
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ],
    "NeoMMEForRetrieval": [{**SMALL, "num_hidden_layers": 3, "embedding_dim": 10}],
    "NeoMMEModel": [{**SMALL, "num_hidden_layers": 1}],
}

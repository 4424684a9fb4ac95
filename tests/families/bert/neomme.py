"""Shapes of the family in `sources/huggingface/families/bert/neomme.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "neomme",
    **COMMON_GROUPED,
    "embedding_rank": 12,
    "num_hidden_layers": 7,
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

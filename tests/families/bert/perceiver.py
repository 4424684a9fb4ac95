"""Shapes of the families in `sources/huggingface/families/bert/perceiver.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "perceiver",
    "num_latents": 6,
    "d_latents": 32,
    "d_model": 24,
    "num_self_attends_per_block": 3,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 4,
    "qk_channels": 16,
    "v_channels": 32,
    "vocab_size": 96,
    "max_position_embeddings": 40,
}

SHAPES = {
    "PerceiverForMaskedLM": [
        SMALL,
        {
            **SMALL,
            "d_model": 40,
            "num_blocks": 2,
            "num_self_attends_per_block": 2,
            "qk_channels": None,
            "v_channels": None,
            "cross_attention_shape_for_attention": "q",
            "self_attention_widening_factor": 2,
            "cross_attention_widening_factor": 3,
            "hidden_act": "relu",
            "use_query_residual": False,
            "num_cross_attention_heads": 2,
        },
        {**SMALL, "d_model": 32},
        {**SMALL, "num_blocks": 3, "num_self_attends_per_block": 1},
    ],
}

"""Shapes of the families in `sources/huggingface/families/gemma/muse.py`."""

from __future__ import annotations

from typing import Any

from ..llama.llama import SMALL as LLAMA

SMALL: dict[str, Any] = {**LLAMA, "head_dim": 8, "sliding_window": 7, "pad_token_id": 0}

SPARK: dict[str, Any] = {
    "moe_hidden_size": 20,
    "moe_intermediate_size": 12,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}

SHAPES = {
    "MuseGlimmerTextModel": [
        {"model_type": "muse_glimmer_text", **SMALL, "num_hidden_layers": 6},
        {
            "model_type": "muse_glimmer_text",
            **SMALL,
            "num_hidden_layers": 3,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "layer_rope_theta": [1e4, 0, 1e5],
        },
    ],
    "MuseSparkTextModel": [
        {"model_type": "muse_spark_text", **SMALL, **SPARK, "num_hidden_layers": 6},
        {
            "model_type": "muse_spark_text",
            **SMALL,
            **SPARK,
            "num_hidden_layers": 3,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "layer_rope_theta": [1e4, 0, 1e5],
            "mlp_layer_types": ["dense", "sparse", "dense"],
        },
    ],
}

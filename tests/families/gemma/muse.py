"""Shapes of the families in `sources/huggingface/families/gemma/muse.py`."""

from __future__ import annotations

from typing import Any

from ..llama.llama import SMALL as LLAMA

SMALL: dict[str, Any] = {**LLAMA, "head_dim": 8, "sliding_window": 7, "pad_token_id": 0}

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
}

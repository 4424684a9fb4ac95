"""Shapes of the families in `sources/huggingface/families/llama/molmo2.py`."""

from __future__ import annotations

from .llama import SMALL as LLAMA

SMALL = {**LLAMA, "head_dim": 8, "additional_vocab_size": 5}

SHAPES = {
    "Molmo2TextModel": [
        {"model_type": "molmo2_text", **SMALL},
        {
            "model_type": "molmo2_text",
            **SMALL,
            "head_dim": 12,
            "qk_norm_type": "olmo",
            "norm_after": True,
            "attention_bias": True,
            "additional_vocab_size": 0,
        },
    ],
}

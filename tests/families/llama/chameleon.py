"""Shapes of the families in `sources/huggingface/families/llama/chameleon.py`."""

from __future__ import annotations

from typing import Any

from .llama import SMALL

VQ: dict[str, Any] = {
    "embed_dim": 8,
    "num_embeddings": 12,
    "latent_channels": 8,
    "resolution": 16,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
}
IMAGES = {"vq_config": VQ, "vocabulary_map": {"<image>": 7}}

SHAPES = {
    "ChameleonForConditionalGeneration": [
        {"model_type": "chameleon", **SMALL, **IMAGES},
        {
            "model_type": "chameleon",
            **SMALL,
            **IMAGES,
            "num_key_value_heads": 4,
            "swin_norm": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ],
}

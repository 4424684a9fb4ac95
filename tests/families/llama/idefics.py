"""Shapes of the families in `sources/huggingface/families/llama/idefics.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

VISION: dict[str, Any] = {
    "embed_dim": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
SMALL: dict[str, Any] = {
    "model_type": "idefics",
    **COMMON_SMALL,
    "num_hidden_layers": 4,
    "cross_layer_interval": 2,
    "vision_config": VISION,
}
PERCEIVER: dict[str, Any] = {
    "resampler_n_latents": 4,
    "resampler_depth": 1,
    "resampler_n_heads": 2,
    "resampler_head_dim": 8,
}

SHAPES = {
    "IdeficsForVisionText2Text": [
        SMALL,
        {
            **SMALL,
            "additional_vocab_size": 2,
            "qk_layer_norms": True,
            "alpha_type": "vector",
            "use_resampler": True,
            "perceiver_config": PERCEIVER,
        },
        {**SMALL, "cross_layer_interval": 1, "tie_word_embeddings": True, "vision_config": {**VISION, "embed_dim": 32}},
    ],
    "IdeficsModel": [{**SMALL, "hidden_act": "relu"}],
}

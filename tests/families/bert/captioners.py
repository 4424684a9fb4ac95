"""Shapes of the families in `sources/huggingface/families/bert/captioners.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 64, "pad_token_id": 0}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}

SHAPES = {
    "GitForCausalLM": [
        {"model_type": "git", **SMALL, "vision_config": VISION},
        {
            "model_type": "git",
            **SMALL,
            "vision_config": VISION,
            "tie_word_embeddings": True,
            "hidden_act": "relu",
            "num_image_with_embedding": 2,
        },
    ],
    "BlipTextLMHeadModel": [
        {"model_type": "blip_text_model", **SMALL, "encoder_hidden_size": 32},
        {"model_type": "blip_text_model", **SMALL, "encoder_hidden_size": 24, "tie_word_embeddings": False},
    ],
}

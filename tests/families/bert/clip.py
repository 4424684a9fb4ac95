"""Shapes of the families in `sources/huggingface/families/bert/clip.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 90, "pad_token_id": 1, "bos_token_id": 0}
CLIP = {"model_type": "clip_text_model", **SMALL, "eos_token_id": 2, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
SIGLIP = {**CLIP, "model_type": "siglip_text_model", "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}

SHAPES = {
    "CLIPTextModel": [CLIP, {**CLIP, "hidden_act": "gelu", "projection_dim": 24}],
    "CLIPTextModelWithProjection": [{**CLIP, "projection_dim": 24}],
    "MetaClip2TextModel": [{**CLIP, "model_type": "metaclip_2_text_model"}],
    "MetaClip2TextModelWithProjection": [{**CLIP, "model_type": "metaclip_2_text_model", "projection_dim": 24}],
    "SiglipTextModel": [SIGLIP, {**SIGLIP, "projection_size": 24}],
    "Siglip2TextModel": [
        {**SIGLIP, "model_type": "siglip2_text_model"},
        {**SIGLIP, "model_type": "siglip2_text_model", "projection_size": 24},
    ],
}

"""Shapes of the families in `sources/huggingface/families/deepseek/deepseek_ocr.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_key_value_heads": None,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "pad_token_id": 0,
}
OTHER: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "mlp_bias": True,
    "n_shared_experts": 1,
}

SHAPES = {
    "DeepseekOcr2TextModel": [
        {"model_type": "deepseek_ocr2_text", **SMALL},
        {"model_type": "deepseek_ocr2_text", **OTHER},
    ],
    "UnlimitedOcrTextModel": [
        {"model_type": "unlimited_ocr_text", **SMALL, "layer_types": ["full_attention"] * 3},
        {
            "model_type": "unlimited_ocr_text",
            **OTHER,
            "num_key_value_heads": None,
            "layer_types": ["full_attention"] * 3,
        },
    ],
}

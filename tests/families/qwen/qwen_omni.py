"""Shapes of the families in `sources/huggingface/families/qwen/qwen_omni.py`."""

from __future__ import annotations

from .qwen_vl import EXPERTS, SLIDING, SMALL, TURNED

WIDE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 2, 3]}

SHAPES = {
    "Qwen2_5OmniThinkerTextModel": [
        {"model_type": "qwen2_5_omni_text", **TURNED},
        {"model_type": "qwen2_5_omni_text", **SMALL, **SLIDING, "head_dim": 12, "rope_parameters": WIDE},
    ],
    "Qwen3OmniMoeThinkerTextModel": [
        {"model_type": "qwen3_omni_moe_text", **EXPERTS},
        {
            "model_type": "qwen3_omni_moe_text",
            **EXPERTS,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_only_layers": [1],
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/glm/glm_vl.py`."""

from __future__ import annotations

from ..llama.llama import SMALL as LLAMA

TURNED = {"rope_type": "default", "rope_theta": 1e4}
SMALL = {**LLAMA, "pad_token_id": 0, "rope_parameters": {**TURNED, "mrope_section": [1, 1, 2]}}
WIDE = {**TURNED, "mrope_section": [1, 2, 3]}
EXPERTS = {
    **SMALL,
    "rope_parameters": {**TURNED, "mrope_section": [1, 1, 0]},
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
}

SHAPES = {
    "Glm4vTextModel": [
        {"model_type": "glm4v_text", **SMALL},
        {"model_type": "glm4v_text", **SMALL, "num_key_value_heads": None},
    ],
    "GlmOcrTextModel": [
        {"model_type": "glm_ocr_text", **SMALL},
        {"model_type": "glm_ocr_text", **SMALL, "head_dim": 12, "rope_parameters": WIDE},
    ],
    "Glm4vMoeTextModel": [
        {"model_type": "glm4v_moe_text", **EXPERTS},
        {
            "model_type": "glm4v_moe_text",
            **EXPERTS,
            "attention_bias": False,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
        },
    ],
}

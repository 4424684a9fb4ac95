"""Shapes of the families in `sources/huggingface/families/llama/cosmos3.py`."""

from __future__ import annotations

from .llama import SMALL as LLAMA

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
SMALL = {**LLAMA, "head_dim": 8, "rope_parameters": ROPE}

SHAPES = {
    "Cosmos3EdgeTextModel": [
        {"model_type": "cosmos3_edge_text", **SMALL},
        {"model_type": "cosmos3_edge_text", **SMALL, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ],
}

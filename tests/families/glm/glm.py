"""Shapes of the families in `sources/huggingface/families/glm/glm.py`."""

from __future__ import annotations

from ..llama.llama import SMALL as LLAMA

SMALL = {**LLAMA, "pad_token_id": 0}

SHAPES = {
    "GlmForCausalLM": [
        {"model_type": "glm", **SMALL},
        {
            "model_type": "glm",
            **SMALL,
            "head_dim": 12,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.5,
        },
    ],
    "Glm4ForCausalLM": [
        {"model_type": "glm4", **SMALL},
        {
            "model_type": "glm4",
            **SMALL,
            "head_dim": 12,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.5,
        },
    ],
    "Glm4Model": [{"model_type": "glm4", **SMALL}],
}

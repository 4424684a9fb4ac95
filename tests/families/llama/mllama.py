"""Shapes of the families in `sources/huggingface/families/llama/mllama.py`."""

from __future__ import annotations

from .llama import SMALL as LLAMA

SMALL = {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "pad_token_id": 0}

SHAPES = {
    "MllamaTextModel": [
        {"model_type": "mllama_text_model", **SMALL, "num_hidden_layers": 5},
        {
            "model_type": "mllama_text_model",
            **SMALL,
            "num_hidden_layers": 4,
            "cross_attention_layers": [0, 2],
            "num_key_value_heads": 4,
        },
    ],
}

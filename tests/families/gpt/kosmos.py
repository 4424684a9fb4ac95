"""Shapes of the families in `sources/huggingface/families/gpt/kosmos.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "embed_dim": 32,
    "layers": 3,
    "attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
}

SHAPES = {
    "Kosmos2TextForCausalLM": [
        {"model_type": "kosmos_2_text_model", **SMALL},
        {"model_type": "kosmos_2_text_model", **SMALL, "tie_word_embeddings": False, "activation_function": "relu"},
    ],
    "Kosmos2_5TextForCausalLM": [
        {"model_type": "kosmos_2_5_text_model", **SMALL},
        {"model_type": "kosmos_2_5_text_model", **SMALL, "tie_word_embeddings": False, "activation_function": "relu"},
    ],
}

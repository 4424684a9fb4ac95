"""Shapes of the families in `sources/huggingface/families/bert/ultrabert.py`."""

from __future__ import annotations

from typing import Any

from ..llama.llama import SMALL as LLAMA

SMALL: dict[str, Any] = {**LLAMA, "pad_token_id": 0, "prediction_head_size": 12, "sliding_window": 5}

SHAPES = {
    "UltrabertForMaskedLM": [
        {"model_type": "ultrabert", **SMALL, "num_hidden_layers": 4},
        {
            "model_type": "ultrabert",
            **SMALL,
            "num_hidden_layers": 3,
            "attention_windows": [0, 4, 4],
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "UltrabertForTokenClassification": [{"model_type": "ultrabert", **SMALL}],
    "UltrabertModel": [{"model_type": "ultrabert", **SMALL}],
}

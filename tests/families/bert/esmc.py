"""Shapes of the families in `sources/huggingface/families/bert/esmc.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "mask_token_id": 3,
}

SHAPES = {
    "EsmcForMaskedLM": [
        {"model_type": "esmc", **SMALL},
        {"model_type": "esmc", **SMALL, "attention_bias": True, "mlp_bias": True},
    ],
    "EsmcForSequenceClassification": [{"model_type": "esmc", **SMALL, "num_labels": 3}],
    "EsmcModel": [{"model_type": "esmc", **SMALL}],
}

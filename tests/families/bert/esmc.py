"""Shapes of the families in `sources/huggingface/families/bert/esmc.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "vocab_size": 40, "mask_token_id": 3}

SHAPES = {
    "EsmcForMaskedLM": [
        {"model_type": "esmc", **SMALL},
        {"model_type": "esmc", **SMALL, "attention_bias": True, "mlp_bias": True},
    ],
    "EsmcForSequenceClassification": [{"model_type": "esmc", **SMALL, "num_labels": 3}],
    "EsmcModel": [{"model_type": "esmc", **SMALL}],
}

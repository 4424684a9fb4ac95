"""Shapes of the families in `sources/huggingface/families/bert/layoutlm.py`."""

from __future__ import annotations

from .bert import SMALL

LAYOUT = {"model_type": "layoutlm", **SMALL, "max_2d_position_embeddings": 24}
TAPAS = {"model_type": "tapas", **SMALL}

SHAPES = {
    "LayoutLMForMaskedLM": [LAYOUT, {**LAYOUT, "type_vocab_size": 3, "tie_word_embeddings": False}],
    "LayoutLMForSequenceClassification": [{**LAYOUT, "num_labels": 5}],
    "LayoutLMForTokenClassification": [LAYOUT],
    "LayoutLMModel": [LAYOUT],
    "TapasForMaskedLM": [TAPAS, {**TAPAS, "type_vocab_sizes": [3, 9, 8, 2, 7, 6, 5], "tie_word_embeddings": False}],
    "TapasForSequenceClassification": [{**TAPAS, "num_labels": 3}],
    "TapasModel": [TAPAS],
}

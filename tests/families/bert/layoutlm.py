"""Shapes of the families in `sources/huggingface/families/bert/layoutlm.py`."""

from __future__ import annotations

from .bert import SMALL

LAYOUT = {"model_type": "layoutlm", **SMALL, "max_2d_position_embeddings": 24}
LAYOUT3 = {
    "model_type": "layoutlmv3",
    **SMALL,
    "max_2d_position_embeddings": 24,
    "coordinate_size": 6,
    "shape_size": 4,
    "rel_pos_bins": 8,
    "rel_2d_pos_bins": 12,
    "input_size": 16,
    "patch_size": 4,
}
TAPAS = {"model_type": "tapas", **SMALL}

SHAPES = {
    "LayoutLMForMaskedLM": [LAYOUT, {**LAYOUT, "type_vocab_size": 3, "tie_word_embeddings": False}],
    "LayoutLMForSequenceClassification": [{**LAYOUT, "num_labels": 5}],
    "LayoutLMForTokenClassification": [LAYOUT],
    "LayoutLMModel": [LAYOUT],
    "LayoutLMv3Model": [
        LAYOUT3,
        {**LAYOUT3, "type_vocab_size": 1, "pad_token_id": 0, "has_spatial_attention_bias": False},
        {**LAYOUT3, "has_relative_attention_bias": False, "has_spatial_attention_bias": False},
    ],
    "LayoutLMv3ForSequenceClassification": [{**LAYOUT3, "num_labels": 5}],
    "LayoutLMv3ForTokenClassification": [LAYOUT3, {**LAYOUT3, "num_labels": 12}],
    "LayoutLMv3ForQuestionAnswering": [LAYOUT3],
    "TapasForMaskedLM": [TAPAS, {**TAPAS, "type_vocab_sizes": [3, 9, 8, 2, 7, 6, 5], "tie_word_embeddings": False}],
    "TapasForSequenceClassification": [{**TAPAS, "num_labels": 3}],
    "TapasModel": [TAPAS],
}

"""Shapes of the families in `sources/huggingface/families/bert/nystromformer.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 90}
NYSTROM: dict[str, Any] = {"model_type": "nystromformer", **SMALL}
YOSO: dict[str, Any] = {"model_type": "yoso", **SMALL}
MRA: dict[str, Any] = {"model_type": "mra", **SMALL}

SHAPES = {
    "NystromformerForMaskedLM": [
        NYSTROM,
        {**NYSTROM, "conv_kernel_size": 5, "type_vocab_size": 3, "hidden_act": "relu", "tie_word_embeddings": False},
    ],
    "NystromformerForSequenceClassification": [{**NYSTROM, "num_labels": 3}],
    "NystromformerForTokenClassification": [{**NYSTROM, "num_labels": 3}],
    "NystromformerForMultipleChoice": [NYSTROM],
    "NystromformerModel": [{**NYSTROM, "conv_kernel_size": 9}],
    "YosoForMaskedLM": [YOSO, {**YOSO, "conv_window": 7, "tie_word_embeddings": False}],
    "YosoForSequenceClassification": [{**YOSO, "num_labels": 3}],
    "YosoForQuestionAnswering": [YOSO],
    "YosoModel": [YOSO],
    "MraForMaskedLM": [
        {**MRA, "max_position_embeddings": 128, "block_per_row": 1},
        {**MRA, "approx_mode": "sparse", "type_vocab_size": 3, "hidden_act": "relu", "tie_word_embeddings": False},
    ],
    "MraForSequenceClassification": [{**MRA, "num_labels": 3}],
    "MraForQuestionAnswering": [MRA],
    "MraModel": [MRA],
}

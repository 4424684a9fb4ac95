"""Shapes of the families in `sources/huggingface/families/bert/convbert.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "convbert",
    **COMMON_SMALL,
    "embedding_size": 32,
    "max_position_embeddings": 90,
    "conv_kernel_size": 5,
}

SHAPES = {
    "ConvBertForMaskedLM": [
        SMALL,
        {**SMALL, "embedding_size": 12, "tie_word_embeddings": False, "num_groups": 2},
        {**SMALL, "head_ratio": 8, "conv_kernel_size": 3, "hidden_act": "relu"},
    ],
    "ConvBertForSequenceClassification": [{**SMALL, "num_labels": 3}],
    "ConvBertForTokenClassification": [{**SMALL, "num_labels": 3}],
    "ConvBertForQuestionAnswering": [SMALL],
    "ConvBertModel": [SMALL],
}

"""Shapes of the families in `sources/huggingface/families/bert/mobilebert.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "mobilebert",
    **COMMON_SMALL,
    "embedding_size": 12,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "intra_bottleneck_size": 16,
    "num_feedforward_networks": 3,
    "max_position_embeddings": 90,
}

SHAPES = {
    "MobileBertForMaskedLM": [
        SMALL,
        {**SMALL, "tie_word_embeddings": False, "trigram_input": False, "num_feedforward_networks": 1},
        {**SMALL, "normalization_type": "layer_norm", "embedding_size": 32},
    ],
    "MobileBertForPreTraining": [SMALL],
    "MobileBertForSequenceClassification": [{**SMALL, "num_labels": 3, "classifier_activation": False}],
    "MobileBertForTokenClassification": [{**SMALL, "num_labels": 3}],
    "MobileBertForQuestionAnswering": [SMALL],
    "MobileBertModel": [SMALL],
}

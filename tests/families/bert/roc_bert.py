"""Shapes of the families in `sources/huggingface/families/bert/roc_bert.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "roc_bert",
    **COMMON_SMALL,
    "max_position_embeddings": 90,
    "pronunciation_embed_dim": 10,
    "pronunciation_vocab_size": 20,
    "shape_embed_dim": 12,
    "shape_vocab_size": 30,
}

SHAPES = {
    "RoCBertForMaskedLM": [SMALL, {**SMALL, "tie_word_embeddings": False, "type_vocab_size": 3}],
    "RoCBertForCausalLM": [{**SMALL, "is_decoder": True}],
    "RoCBertForSequenceClassification": [{**SMALL, "num_labels": 3}],
    "RoCBertModel": [SMALL],
}

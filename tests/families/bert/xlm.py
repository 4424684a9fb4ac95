"""Shapes of the families in `sources/huggingface/families/bert/xlm.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "emb_dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 90,
}
XLM = {"model_type": "xlm", **SMALL}
FLAUBERT = {"model_type": "flaubert", **SMALL}
OTHER: dict[str, Any] = {"n_langs": 5, "gelu_activation": False, "tie_word_embeddings": False}

SHAPES = {
    "XLMWithLMHeadModel": [XLM, {**XLM, **OTHER}],
    "XLMForTokenClassification": [{**XLM, "num_labels": 3}],
    "XLMModel": [XLM],
    "FlaubertWithLMHeadModel": [FLAUBERT, {**FLAUBERT, **OTHER}],
    "FlaubertModel": [FLAUBERT],
}

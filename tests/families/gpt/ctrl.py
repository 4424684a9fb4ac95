"""Shapes of the family in `sources/huggingface/families/gpt/ctrl.py`."""

from __future__ import annotations

SMALL = {"model_type": "ctrl", "vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 80, "dff": 48}

SHAPES = {
    "CTRLLMHeadModel": [SMALL, {**SMALL, "n_head": 2, "dff": 40, "tie_word_embeddings": False}],
    "CTRLModel": [SMALL],
    "CTRLForSequenceClassification": [{**SMALL, "num_labels": 3}],
}

"""Shapes of the families in `sources/huggingface/families/bert/longformer.py`.

They have 64 positions, a multiple of the windows: the class pads other lengths.
"""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "longformer",
    **COMMON_SMALL,
    "max_position_embeddings": 66,
    "attention_window": 4,
}

SHAPES = {
    "LongformerForMaskedLM": [SMALL, {**SMALL, "tie_word_embeddings": False, "attention_window": [4, 8, 4]}],
    "LongformerForTokenClassification": [{**SMALL, "type_vocab_size": 1, "num_labels": 5}],
    "LongformerModel": [{**SMALL, "hidden_act": "relu"}],
}

"""Shapes of the families in `sources/huggingface/families/bert/luke.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "luke",
    **COMMON_SMALL,
    "max_position_embeddings": 90,
    "entity_vocab_size": 40,
    "entity_emb_size": 12,
}

SHAPES = {
    "LukeForMaskedLM": [
        SMALL,
        {**SMALL, "tie_word_embeddings": False, "entity_emb_size": 32},
        {**SMALL, "use_entity_aware_attention": False},
    ],
    "LukeForSequenceClassification": [{**SMALL, "num_labels": 3}],
    "LukeForTokenClassification": [{**SMALL, "num_labels": 3}],
    "LukeModel": [SMALL],
}

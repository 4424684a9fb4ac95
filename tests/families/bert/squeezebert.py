"""Shapes of the families in `sources/huggingface/families/bert/squeezebert.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "squeezebert",
    **COMMON_SMALL,
    "embedding_size": 32,
    "max_position_embeddings": 90,
}

SHAPES = {
    "SqueezeBertForMaskedLM": [
        SMALL,
        {
            **SMALL,
            "q_groups": 2,
            "k_groups": 8,
            "v_groups": 1,
            "post_attention_groups": 16,
            "tie_word_embeddings": False,
        },
        {**SMALL, "intermediate_groups": 8, "output_groups": 1, "hidden_act": "relu"},
    ],
    "SqueezeBertForSequenceClassification": [{**SMALL, "num_labels": 3}],
    "SqueezeBertForQuestionAnswering": [SMALL],
    "SqueezeBertModel": [SMALL],
}

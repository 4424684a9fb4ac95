from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "xlnet",
    "vocab_size": 96,
    "d_model": 32,
    "n_layer": 3,
    "n_head": 4,
    "d_inner": 48,
}

SHAPES = {
    "XLNetLMHeadModel": [
        {**SMALL, "mem_len": None},
        {**SMALL, "tie_word_embeddings": False, "n_head": 2, "d_head": 16, "ff_activation": "relu", "mem_len": 5},
    ],
    "XLNetForSequenceClassification": [{**SMALL, "num_labels": 3}, {**SMALL, "summary_use_proj": False}],
    "XLNetForTokenClassification": [SMALL],
    "XLNetForQuestionAnsweringSimple": [SMALL],
    "XLNetModel": [{**SMALL, "n_layer": 1}],
}

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "funnel",
    "vocab_size": 96,
    "block_sizes": [2, 2, 1],
    "num_decoder_layers": 2,
    "d_model": 32,
    "n_head": 4,
    "d_head": 8,
    "d_inner": 48,
}

SHAPES = {
    "FunnelForMaskedLM": [
        SMALL,
        {
            **SMALL,
            "block_sizes": [1, 2],
            "block_repeats": [1, 2],
            "d_head": 6,
            "pool_q_only": False,
            "hidden_act": "relu",
        },
    ],
    "FunnelForPreTraining": [{**SMALL, "separate_cls": False}],
    "FunnelForSequenceClassification": [{**SMALL, "num_labels": 3, "truncate_seq": False}],
    "FunnelForMultipleChoice": [SMALL],
    "FunnelForTokenClassification": [{**SMALL, "block_repeats": [2, 1, 1]}],
    "FunnelForQuestionAnswering": [{**SMALL, "block_sizes": [2]}],
    "FunnelModel": [{**SMALL, "num_decoder_layers": 1}],
    "FunnelBaseModel": [SMALL],
}

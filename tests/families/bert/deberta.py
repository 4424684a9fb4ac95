from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "max_position_embeddings": 90}
RELATIVE: dict[str, Any] = {
    "relative_attention": True,
    "max_relative_positions": -1,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
}
ONE: dict[str, Any] = {"model_type": "deberta", **SMALL, **RELATIVE}
TWO: dict[str, Any] = {"model_type": "deberta-v2", **SMALL, **RELATIVE}
THREE: dict[str, Any] = {
    **TWO,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}

SHAPES = {
    "DebertaForMaskedLM": [
        ONE,
        {
            **ONE,
            "max_relative_positions": 40,
            "pos_att_type": ["p2c"],
            "position_biased_input": True,
            "type_vocab_size": 2,
            "tie_word_embeddings": False,
        },
        {"model_type": "deberta", **SMALL},
        {**ONE, "legacy": False, "tie_word_embeddings": False},
    ],
    "DebertaForSequenceClassification": [ONE],
    "DebertaV2ForMaskedLM": [
        THREE,
        TWO,
        {**TWO, "pos_att_type": ["c2p"], "position_buckets": 8, "type_vocab_size": 3, "tie_word_embeddings": False},
    ],
    "DebertaV2ForQuestionAnswering": [
        {**THREE, "conv_kernel_size": 3, "conv_act": "gelu"},
        {**TWO, "conv_kernel_size": 5, "conv_groups": 4},
    ],
    "DebertaV2ForSequenceClassification": [{**THREE, "num_labels": 3}],
    "DebertaV2ForTokenClassification": [THREE],
    "DebertaV2Model": [THREE],
}

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "esm",
    **COMMON_SMALL,
    "vocab_size": 33,
    "max_position_embeddings": 90,
    "pad_token_id": 1,
    "mask_token_id": 32,
}
ESM2 = {**SMALL, "position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False}
ESM1B = {**SMALL, "position_embedding_type": "absolute", "token_dropout": True, "emb_layer_norm_before": True}

SHAPES = {
    "EsmForMaskedLM": [
        ESM2,
        ESM1B,
        {**SMALL, "tie_word_embeddings": False},
        {**ESM2, "position_embedding_type": "none", "num_hidden_layers": 2},
    ],
    "EsmForSequenceClassification": [{**ESM2, "num_labels": 3}],
    "EsmForTokenClassification": [ESM1B],
    "EsmModel": [ESM2],
}

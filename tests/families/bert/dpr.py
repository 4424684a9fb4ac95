from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

DPR: dict[str, Any] = {"model_type": "dpr", **COMMON_SMALL, "max_position_embeddings": 40}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "DPRQuestionEncoder": [DPR, {**DPR, "type_vocab_size": 1, "hidden_act": "relu", "num_attention_heads": 2}],
    "DPRContextEncoder": [{**DPR, "intermediate_size": 40, "layer_norm_eps": 1e-5}],
}

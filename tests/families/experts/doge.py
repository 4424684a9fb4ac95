from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

DOGE: dict[str, Any] = {"model_type": "doge", **COMMON_GROUPED, "num_hidden_layers": 2}
MOE = {**DOGE, "is_moe": True, "num_experts": 36, "num_experts_per_tok": 5}

SHAPES = {
    "DogeForCausalLM": [
        DOGE,
        {
            **DOGE,
            "num_key_value_heads": None,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "keep_window_size": 20,
        },
        {**DOGE, "head_dim": 12, "num_key_value_heads": 1, "sliding_window": 16, "keep_window_size": 8},
        MOE,
        {
            **MOE,
            "num_experts": 41,
            "num_experts_per_tok": 1,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "hidden_act": "gelu",
            "norm_topk_prob": True,
        },
    ],
    "DogeModel": [DOGE, MOE],
    "DogeForSequenceClassification": [{**DOGE, "num_labels": 5, "pad_token_id": 0}],
}

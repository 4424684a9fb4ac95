from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

GROVE: dict[str, Any] = {
    "model_type": "grove_moe",
    **COMMON_GROUPED,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "GroveMoeForCausalLM": [
        GROVE,
        {**GROVE, "num_experts": 6, "mlp_only_layers": [1], "tie_word_embeddings": True, "norm_topk_prob": True},
    ],
}

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "step3_text",
    **COMMON_SMALL,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "share_q_dim": 20,
    "moe_intermediate_size": 16,
    "moe_num_experts": 6,
    "moe_top_k": 2,
    "share_expert_dim": 24,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Step3TextForCausalLM": [
        SMALL,
        {**SMALL, "moe_layers_enum": "1,3", "share_q_dim": None, "max_position_embedding": 64},
    ],
    "Step3VLForConditionalGeneration": [{"model_type": "step3_vl", "text_config": SMALL}],
}

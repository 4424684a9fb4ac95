"""Shapes of the families in `sources/huggingface/families/experts/step.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_hidden_layers": 5,
    "head_dim": 8,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "share_expert_dim": 16,
    "sliding_window": 7,
}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]

SHAPES = {
    "Step3p7TextModel": [
        {"model_type": "step3p5", **SMALL},
        {
            "model_type": "step3p5",
            **SMALL,
            "layer_types": KINDS,
            "num_sliding_attention_heads": 6,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"],
        },
        {
            "model_type": "step3p5",
            **SMALL,
            "num_key_value_heads": 4,  # as many as query heads, and fewer than those of layers with a window
            "layer_types": KINDS,
            "num_sliding_attention_heads": 8,
        },
        {
            "model_type": "step3p5",
            **SMALL,
            "layer_types": KINDS,
            "attention_other_setting": {"num_attention_heads": 8},
            "moe_layers_enum": "1,2,4",
            "attention_bias": True,
        },
        {"model_type": "step3p5", **SMALL, "mlp_bias": True, "num_local_experts": 12},
    ],
}

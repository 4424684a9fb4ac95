from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SPARK: dict[str, Any] = {
    "model_type": "spark2_5",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 5000000},
        "sliding_attention": {"partial_rotary_factor": 1, "rope_theta": 10000},
    },
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Spark2_5ForCausalLM": [
        {**SPARK, "headwise_attn_output_gate": True, "gate_attn_act_mode": "sigmoid"},
        {
            **SPARK,
            "headwise_attn_output_gate": False,
            "attention_bias": True,
            "mlp_bias": True,
            "layer_types": ["full_attention"] * 4,
            "tie_word_embeddings": False,
        },
    ],
}

from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED
TURNED = {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}}
SLIDING = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "num_key_value_heads": None}
EXPERTS = {**SMALL, "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 3}

SHAPES = {
    "Qwen2VLTextModel": [
        {"model_type": "qwen2_vl_text", **TURNED},
        {"model_type": "qwen2_vl_text", **TURNED, **SLIDING},
    ],
    "Qwen2_5_VLTextModel": [
        {"model_type": "qwen2_5_vl_text", **TURNED},
        {"model_type": "qwen2_5_vl_text", **TURNED, **SLIDING},
    ],
    "Qwen3VLTextModel": [
        {"model_type": "qwen3_vl_text", **SMALL, "head_dim": 8},
        {"model_type": "qwen3_vl_text", **SMALL, "head_dim": 16, "attention_bias": True, "num_key_value_heads": None},
    ],
    "Qwen3VLMoeTextModel": [
        {"model_type": "qwen3_vl_moe_text", **EXPERTS},
        {"model_type": "qwen3_vl_moe_text", **EXPERTS, "head_dim": 16, "attention_bias": True, "mlp_only_layers": [1]},
    ],
}

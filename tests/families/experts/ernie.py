from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "num_hidden_layers": 4, "intermediate_size": 40}
MOE: dict[str, Any] = {**SMALL, "moe_intermediate_size": 12, "moe_num_experts": 6, "moe_k": 2}
ANGLES = {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [1, 1, 2]}
VL: dict[str, Any] = {**SMALL, "moe_num_experts": 6, "moe_k": 2, "rope_parameters": ANGLES}

SHAPES = {
    "Ernie4_5ForCausalLM": [
        {"model_type": "ernie4_5", **SMALL},
        {
            "model_type": "ernie4_5",
            **SMALL,
            "head_dim": None,
            "num_key_value_heads": None,
            "use_bias": True,
            "tie_word_embeddings": False,
        },
        {"model_type": "ernie4_5", **SMALL, "head_dim": 6, "use_bias": None},
    ],
    "PaddleOCRTextModel": [
        {"model_type": "paddleocr_vl_text", **SMALL, "rope_parameters": {**ANGLES, "mrope_section": [16, 24, 24]}},
        {
            "model_type": "paddleocr_vl_text",
            **SMALL,
            "head_dim": 8,
            "rope_parameters": ANGLES,
            "num_key_value_heads": None,
            "use_bias": True,
        },
    ],
    "Ernie4_5_MoeForCausalLM": [
        {"model_type": "ernie4_5_moe", **MOE},
        {
            "model_type": "ernie4_5_moe",
            **MOE,
            "use_bias": True,
            "tie_word_embeddings": False,
            "moe_num_shared_experts": 1,
            "num_nextn_predict_layers": 0,
        },
        {
            "model_type": "ernie4_5_moe",
            **MOE,
            "moe_layer_start_index": 0,
            "moe_layer_end_index": 2,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 0,
            "num_nextn_predict_layers": 1,
        },
        {"model_type": "ernie4_5_moe", **MOE, "use_bias": True, "head_dim": 10, "moe_layer_start_index": 2},
    ],
    "Ernie4_5_VLMoeTextModel": [
        {"model_type": "ernie4_5_vl_moe_text", **VL, "moe_intermediate_size": [12, 5], "pad_token_id": 0},
        {
            "model_type": "ernie4_5_vl_moe_text",
            **VL,
            "use_bias": True,
            "moe_num_shared_experts": 0,
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        },
    ],
}

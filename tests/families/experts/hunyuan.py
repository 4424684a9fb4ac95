from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "intermediate_size": 24, "head_dim": 8}
TENCENT: dict[str, Any] = {
    "use_qk_norm": True,
    "use_cla": False,
    "cla_share_factor": 2,
    "mlp_bias": False,
    "norm_type": "rms",
    "attention_head_dim": 8,
}
ANGLES: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
HY3: dict[str, Any] = {**SMALL, "moe_intermediate_size": 10, "num_experts": 6, "num_experts_per_tok": 2}

SHAPES = {
    "HunYuanDenseV1ForCausalLM": [
        {"model_type": "hunyuan_v1_dense", **SMALL, **TENCENT},
        {
            "model_type": "hunyuan_v1_dense",
            **SMALL,
            "num_key_value_heads": None,
            "head_dim": 10,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "HunYuanMoEV1ForCausalLM": [
        {
            "model_type": "hunyuan_v1_moe",
            **SMALL,
            **TENCENT,
            "num_experts": 6,
            "moe_topk": [2, 2, 2],
            "moe_intermediate_size": [24] * 3,
            "num_shared_expert": [1] * 3,
        },
        {
            "model_type": "hunyuan_v1_moe",
            **SMALL,
            "num_experts": 5,
            "moe_topk": 3,
            "head_dim": 6,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {"model_type": "hunyuan_v1_moe", **SMALL, "num_experts": 5, "moe_topk": [1, 3, 2]},
        {"model_type": "hunyuan_v1_moe", **SMALL},
    ],
    "HunYuanDenseV1Model": [{"model_type": "hunyuan_v1_dense", **SMALL}],
    "HunYuanVLTextModel": [
        {
            "model_type": "hunyuan_vl_text",
            **SMALL,
            "attention_head_dim": 8,
            "org_vocab_size": 96,
            "rope_parameters": {**ANGLES, "mrope_section": [1, 1, 2]},
        },
        {
            "model_type": "hunyuan_vl_text",
            **SMALL,
            "num_key_value_heads": None,
            "head_dim": 12,
            "attention_bias": True,
            "rope_parameters": {**ANGLES, "mrope_section": [1, 2, 2, 1]},
        },
    ],
    "HYV3ForCausalLM": [
        {"model_type": "hy_v3", **HY3, "first_k_dense_replace": 1},
        {
            "model_type": "hy_v3",
            **HY3,
            "mlp_bias": True,
            "attention_bias": True,
            "num_shared_experts": 2,
            "tie_word_embeddings": True,
            "head_dim": 6,
        },
        {
            "model_type": "hy_v3",
            **HY3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_nextn_predict_layers": 1,
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/deepseek/glm5_next.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "glm5_next_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "index_topk": 6,
    "index_kpool": 3,
    "index_head_dim": 10,
    "index_n_heads": 3,
    "linear_num_heads": 3,
    "linear_head_dim": 8,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "pad_token_id": 0,
}
LINEAR, INDEXED = "linear_attention", "indexed_attention"

SHAPES = {
    "Glm5NextTextModel": [
        SMALL,
        {
            **SMALL,
            "layer_types": [INDEXED, INDEXED, LINEAR, INDEXED, INDEXED],
            "indexer_types": ["full", "shared", "full", "full", "shared"],
            "mlp_layer_types": ["sparse", "dense", "dense", "sparse", "sparse"],
            "linear_attn_config": {"num_heads": 2, "head_dim": 6, "short_conv_kernel_size": 3},
            "attention_bias": True,
            "n_shared_experts": 2,
            "linear_lower_bound": None,
        },
    ],
}

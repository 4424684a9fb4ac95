"""Shapes of the families in `sources/huggingface/families/deepseek/mistral_large4.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "mistral_large4_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "index_topk": 5,
    "index_head_dim": 10,
    "index_n_heads": 3,
}

SHAPES = {
    "MistralLarge4TextModel": [
        SMALL,
        {
            **SMALL,
            "indexer_types": ["full", "shared", "full", "shared", "shared", "full"],
            "no_rope_layers": [1, 0, 1, 1, 0, 0],
            "kv_source_layers": [0, 1, 0, 3, 1, 1],
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse", "sparse"],
            "attention_bias": True,
            "n_shared_experts": 2,
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/experts/inkling.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "inkling_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 7,
    "head_dim": 8,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 3,
    "swa_head_dim": 6,
    "sliding_window_size": 7,
    "d_rel": 3,
    "rel_extent": 9,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}

SHAPES = {
    "InklingForCausalLM": [
        SMALL,
        {
            **SMALL,
            "num_hidden_layers": 4,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid"],
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "conv_kernel_size": 3,
            "n_shared_experts": 3,
        },
        {**SMALL, "num_hidden_layers": 3, "local_layer_ids": [1], "dense_mlp_idx": 1, "dense_intermediate_size": 40},
    ],
    "InklingTextModel": [SMALL],
}

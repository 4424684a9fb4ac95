from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "minimax_m3_vl_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "rotary_dim": 4,
    "intermediate_size": 20,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 24,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 8,
    "index_topk_blocks": 2,
}
TYPES = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"]
OLDER = {
    "sparse_attention_freq": [0, 1, 1, 1],
    "sparse_num_index_heads": 1,
    "sparse_index_dim": 6,
    "sparse_block_size": 16,
    "sparse_topk_blocks": 1,
    "sparse_local_block": 1,
}

SHAPES = {
    "MiniMaxM3VLForCausalLM": [
        {**SMALL, "layer_types": TYPES},
        {**SMALL, "sparse_attention_config": OLDER, "moe_layer_freq": [0, 0, 1, 1], "tie_word_embeddings": True},
        {**SMALL, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
        {**SMALL, "layer_types": TYPES, "mlp_layer_types": ["sparse"] * 3 + ["dense"], "num_nextn_predict_layers": 1},
    ],
}

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 10,
    "sliding_window": 6,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 0],
    "kv_source_layer_ids": [1, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "index_n_heads": 3,
    "index_head_dim": 8,
    "index_topk": 3,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 2,
    "candidate_block_size": 3,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "engram_layer_ids": [0, 4],
    "engram_num_embeddings": [37, 41],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 2,
    "engram_head_dim": 5,
}
PLAIN: dict[str, Any] = {
    "engram_layer_ids": [],
    "engram_num_embeddings": [],
    "candidate_source_layer_id": -1,
    "num_hidden_layers": 5,
    "compress_ratios": [1, 1, 4, 4, 0],
    "kv_source_layer_ids": [0, 2],
    "index_source_layer_ids": [0, 1, 2],
    "hc_mult": 2,
    "o_groups": 4,
}

SHAPES = {"DeepseekV41ForCausalLM": [SMALL, {**SMALL, **PLAIN}]}

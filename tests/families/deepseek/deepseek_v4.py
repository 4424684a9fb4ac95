from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 10,
    "sliding_window": 16,
    "index_n_heads": 3,
    "index_head_dim": 8,
    "index_topk": 3,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}
TYPES = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]

SHAPES = {
    "DeepseekV4ForCausalLM": [
        SMALL,
        {
            **SMALL,
            "layer_types": TYPES,
            "mlp_bias": True,
            "num_hash_layers": 1,
            "hc_mult": 2,
            "o_groups": 4,
            "tie_word_embeddings": True,
        },
        {
            **SMALL,
            "compress_ratios": [0, 4, 4, 128, 0],
            "compress_rates": None,
            "compress_rate_hca": 5,
            "mlp_layer_types": ["moe"] * 4,
            "scoring_func": "sigmoid",
        },
    ],
    "DeepseekV4Model": [{**SMALL, "num_hidden_layers": 2}],
}

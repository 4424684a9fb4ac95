"""Shapes of the family in `sources/huggingface/families/deepseek/hy_v4.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

HY: dict[str, object] = {
    "model_type": "hy_v4",
    **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"},
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "index_topk": 7,
    "index_head_dim": 10,
    "index_n_heads": 3,
    "pad_token_id": 0,
}

SHAPES = {
    "HYV4ForCausalLM": [
        {**HY, "num_hidden_layers": 7},
        {
            **HY,
            "hc_mult": 3,
            "n_shared_experts": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "index_topk": 70,
            "indexer_types": ["full", "full", "shared"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
        {**HY, "mlp_layer_types": ["sparse"] * 3, "hc_magnitude": 1.5},
    ],
    "HYV4Model": [HY],
}

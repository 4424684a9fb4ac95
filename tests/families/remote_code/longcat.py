from __future__ import annotations

from typing import Any

LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash_ngram",
    "vocab_size": 96,
    "hidden_size": 24,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16,
    "num_layers": 2,
    "num_attention_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "moe_topk": 3,
    "zero_expert_num": 4,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "LongcatFlashNgramForCausalLM": [
        {**LONGCAT, "ngram_vocab_size_ratio": 3, "emb_neighbor_num": 4, "emb_split_num": 2},
        {**LONGCAT, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 2, "emb_split_num": 3, "zero_expert_num": 0},
    ],
}

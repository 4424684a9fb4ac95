from __future__ import annotations

from typing import Any

MPT: dict[str, Any] = {"model_type": "llm_foundry_mpt", "vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2}
GROUPED: dict[str, Any] = {"attn_type": "grouped_query_attention", "kv_n_heads": 2}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "MPTForCausalLM": [
        {**MPT, "no_bias": True, "attn_config": {**GROUPED, "alibi": True, "qk_ln": True}},
        {
            **MPT,
            "no_bias": True,
            "attention_bias": True,
            "attn_config": {"attn_type": "multiquery_attention", "rope": True, "sliding_window_size": 7},
            "ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 40, "ffn_act_fn": {"name": "silu"}},
            "norm_type": "low_precision_rmsnorm",
        },
        {
            **MPT,
            "head_dim": 6,
            "expansion_ratio": 2.5,
            "attn_config": {**GROUPED, "qk_gn": True},
            "tie_word_embeddings": False,
        },
    ],
}

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "dbrx", "vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 5, "moe_top_k": 2},
}  # fmt: skip

SHAPES = {
    "DbrxForCausalLM": [
        SMALL,
        {
            **SMALL,
            "n_layers": 3,
            "attn_config": {"clip_qkv": 4.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 24},
        },
    ],
}

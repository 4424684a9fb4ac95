from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3}

RWKV7: dict[str, Any] = {
    "model_type": "rwkv7",
    **SMALL,
    "head_dim": 8,
    "decay_low_rank_dim": 5,
    "a_low_rank_dim": 4,
    "v_low_rank_dim": 3,
    "gate_low_rank_dim": 7,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Rwkv5ForCausalLM": [
        {"model_type": "rwkv5", **SMALL, "head_size": 8, "attention_hidden_size": 32, "rescale_every": 6},
        {"model_type": "rwkv5", **SMALL, "head_size": 8, "intermediate_size": 64, "tie_word_embeddings": True},
    ],
    "Rwkv6ForCausalLM": [
        {"model_type": "rwkv6", **SMALL, "head_size": 8, "num_attention_heads": 64, "context_length": 64},
        {"model_type": "rwkv6", **SMALL, "head_size": 16, "attention_hidden_size": 48, "intermediate_size": 40},
    ],
    "RWKV7ForCausalLM": [
        {**RWKV7, "value_dim": [32, 32, 32], "fuse_norm": False},
        {**RWKV7, "intermediate_size": 48, "tie_word_embeddings": True, "max_position_embeddings": 64},
        {"model_type": "rwkv7", **SMALL, "head_size": 16, "decay_low_rank_dim": None, "gate_low_rank_dim": None},
    ],
}

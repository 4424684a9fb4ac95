from __future__ import annotations

from typing import Any

BAICHUAN: dict[str, Any] = {
    "model_type": "baichuan_m1",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "sliding_window": 5,
    "conv_window": 2,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "BaichuanM1ForCausalLM": [
        {
            **BAICHUAN,
            "sliding_window_layers": [1, 3],
            "num_swa_attention_heads": 8,
            "num_swa_key_value_heads": 4,
        },
        {**BAICHUAN, "sliding_window_layers": []},
    ],
}

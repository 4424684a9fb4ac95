from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

BAICHUAN: dict[str, Any] = {
    "model_type": "baichuan_m1",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
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

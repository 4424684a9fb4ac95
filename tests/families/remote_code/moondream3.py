from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "dim": 64,
    "ff_dim": 96,
    "n_layers": 3,
    "n_heads": 2,
    "n_kv_heads": 2,
    "vocab_size": 96,
    "max_context": 64,
    "moe": {"start_layer": 1, "n_experts": 4, "n_experts_per_tok": 2, "expert_inner_dim": 16},
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "HfMoondream3": [
        {"model_type": "moondream3", "config": {"text": TEXT, "vision": {"enc_dim": 32}}},
        {"model_type": "moondream3", "config": {"text": {**TEXT, "n_kv_heads": 1}}},
    ],
}

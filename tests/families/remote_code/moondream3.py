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
VISION: dict[str, Any] = {
    "enc_dim": 24,
    "enc_ff_dim": 20,
    "enc_n_layers": 2,
    "enc_n_heads": 2,
    "enc_patch_size": 4,
    "crop_size": 12,
    "proj_inner_dim": 40,
    "proj_out_dim": 32,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "HfMoondream3": [
        {"model_type": "moondream3", "config": {"text": TEXT, "vision": {**VISION, "proj_out_dim": 64}}},
        {"model_type": "moondream3", "config": {"text": {**TEXT, "n_kv_heads": 1}}},
    ],
}

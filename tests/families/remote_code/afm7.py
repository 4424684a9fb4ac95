from __future__ import annotations

from typing import Any

AFM: dict[str, Any] = {
    "model_type": "afm7",
    "vocab_size": 96,
    "hidden_dim": 32,
    "num_layers": 5,
    "num_kv_reuse_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "AFMModel": [
        {**AFM, "rope_theta": 500000.0},
        {**AFM, "num_kv_reuse_layers": 0, "num_kv_heads": 4, "hidden_dim_scale_factor": 1.3},
        {**AFM, "num_kv_reuse_layers": 4, "num_kv_heads": 1},
    ],
}

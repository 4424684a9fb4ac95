from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "phi4flash",
    **COMMON_GROUPED,
    "num_hidden_layers": 8,
    "max_position_embeddings": 64,
    "sliding_window": 5,
    "mamba_d_state": 6,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Phi4FlashForCausalLM": [
        SMALL,
        {
            **SMALL,
            "num_hidden_layers": 12,
            "sliding_window": [None, 5, None, 5, None, 5, None, None, None, None, None, None],
            "mamba_proj_bias": True,
            "mlp_bias": True,
            "lm_head_bias": True,
            "mamba_dt_rank": 3,
            "tie_word_embeddings": False,
        },
    ],
}

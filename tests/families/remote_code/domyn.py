from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

DOMYN: dict[str, Any] = {
    "model_type": "domynedge",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "max_position_embeddings": 64,
    "position_layers": ["nope", "rope", "rope", "nope"],
    "window_sizes": [[-1, 0], [8, 0], [8, 0], [-1, 0]],
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "DomynEdgeForCausalLM": [
        {**DOMYN, "head_sizes": [16, 8, 8, 16]},
        {
            **DOMYN,
            "per_layer_config": {str(i): {"head_dim": size} for i, size in enumerate((16, 8, 8, 12))},
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        },
    ],
}

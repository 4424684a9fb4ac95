from __future__ import annotations

from tests.families.sizes import COMMON_SMALL

SHAPES = {
    "QWenLMHeadModel": [
        {
            "model_type": "qwen",
            **COMMON_SMALL,
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "kv_channels": 8,
            "max_position_embeddings": 64,
        },
        {
            "model_type": "qwen",
            "vocab_size": 96,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "ffn_hidden_size": 96,
            "kv_channels": 8,
            "n_positions": 64,
            "no_bias": False,
        },
    ],
}

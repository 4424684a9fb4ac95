from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "llama4_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "intermediate_size": 20,
    "intermediate_size_mlp": 48,
    "num_local_experts": 4,
    "head_dim": 8,
    "attention_chunk_size": 16,
}

SHAPES = {
    "Llama4ForCausalLM": [
        SMALL,
        {
            **SMALL,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
            "attention_bias": True,
            "no_rope_layers": [],
            "tie_word_embeddings": True,
        },
        {
            **SMALL,
            "moe_layers": [0, 3],
            "num_experts_per_tok": 2,
            "no_rope_layers": [0, 1, 1, 0],
            "attention_chunk_size": 8192,
        },
    ],
}

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "num_hidden_layers": 4, "max_position_embeddings": 64}
PLAMO2 = {
    "model_type": "plamo2",
    **SMALL,
    "hidden_size_per_head": 8,
    "mamba_num_heads": 6,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
PLAMO3 = {"model_type": "plamo3", **SMALL, "head_dim": 16}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Plamo2ForCausalLM": [
        {**PLAMO2, "attention_window_size": 8, "full_attention_idx": [3]},
        {**PLAMO2, "mamba_step": 4, "attention_window_size": None, "tie_word_embeddings": False},
        {**PLAMO2, "mamba_step": 16, "num_hidden_layers": 2, "mamba_d_conv": 3},
        {**PLAMO2, "mamba_enabled": False, "num_key_value_heads": 4},
    ],
    "Plamo3ForCausalLM": [
        {**PLAMO3, "window_size": 8, "sliding_window_pattern": 2},
        {**PLAMO3, "interleaved_sliding_window": [8, 8, None, 8], "tie_word_embeddings": True},
    ],
}

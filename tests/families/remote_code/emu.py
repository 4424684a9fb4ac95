from __future__ import annotations

from typing import Any

EMU: dict[str, Any] = {
    "model_type": "emu3_5",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Emu3ForCausalLM": [
        {**EMU, "head_dim": 16, "sliding_window": 8, "max_window_layers": 2, "use_sliding_window": False},
        {**EMU, "tie_word_embeddings": True},
    ],
}

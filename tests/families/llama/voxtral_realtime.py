"""Shapes of the families in `sources/huggingface/families/llama/voxtral_realtime.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "voxtral_realtime_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}

SHAPES = {
    "VoxtralRealtimeTextModel": [
        SMALL,
        {**SMALL, "head_dim": 10, "sliding_window": None, "num_key_value_heads": 4, "hidden_act": "gelu"},
    ],
}

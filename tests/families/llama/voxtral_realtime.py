"""Shapes of the families in `sources/huggingface/families/llama/voxtral_realtime.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    "model_type": "voxtral_realtime_text",
    **COMMON_GROUPED,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}

SHAPES = {
    "VoxtralRealtimeTextModel": [
        SMALL,
        {**SMALL, "head_dim": 10, "sliding_window": None, "num_key_value_heads": 4, "hidden_act": "gelu"},
    ],
}

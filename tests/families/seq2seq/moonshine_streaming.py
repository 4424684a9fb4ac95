"""Shapes of the families in `sources/huggingface/families/seq2seq/moonshine_streaming.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

ENCODER: dict[str, Any] = {
    "model_type": "moonshine_streaming_encoder",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "sample_rate": 1600,
    "sliding_windows": [[16, 4], [16, 0]],
}
MOONSHINE: dict[str, Any] = {
    "model_type": "moonshine_streaming",
    **COMMON_GROUPED,
    "num_key_value_heads": 4,
    "max_position_embeddings": 300,
    "encoder_config": ENCODER,
}

SHAPES = {
    "MoonshineStreamingForConditionalGeneration": [
        MOONSHINE,
        {
            **MOONSHINE,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "head_dim": 10,
            "encoder_config": {
                **ENCODER,
                "hidden_size": 32,
                "num_key_value_heads": 2,
                "head_dim": 6,
                "attention_bias": True,
                "frame_ms": 7.5,
                "hidden_act": "relu",
            },
            "hidden_act": "gelu",
        },
    ],
    "MoonshineStreamingModel": [MOONSHINE],
}

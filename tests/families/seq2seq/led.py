"""Shapes of the families in `sources/huggingface/families/seq2seq/led.py`.

They have 64 positions, a multiple of the windows: the class pads other lengths.
"""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "led",
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    "attention_window": 4,
}

SHAPES = {
    "LEDForConditionalGeneration": [SMALL, {**SMALL, "tie_word_embeddings": False, "attention_window": [8, 4]}],
    "LEDForQuestionAnswering": [SMALL],
    "LEDModel": [{**SMALL, "activation_function": "relu"}],
}

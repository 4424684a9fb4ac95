"""Shapes of the families in `sources/huggingface/families/seq2seq/speech.py`."""

from __future__ import annotations

from typing import Any

S2T: dict[str, Any] = {
    "model_type": "speech_to_text",
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "conv_channels": 24,
    "input_feat_per_channel": 10,
    "max_source_positions": 200,
    "max_target_positions": 200,
}
MOONSHINE: dict[str, Any] = {
    "model_type": "moonshine",
    "vocab_size": 96,
    "hidden_size": 40,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 2,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}

SHAPES = {
    "Speech2TextForConditionalGeneration": [
        S2T,
        {**S2T, "tie_word_embeddings": False, "conv_kernel_sizes": [3, 7], "input_channels": 2},
    ],
    "Speech2TextModel": [{**S2T, "num_conv_layers": 1, "conv_kernel_sizes": [5], "activation_function": "gelu"}],
    "MoonshineForConditionalGeneration": [
        MOONSHINE,
        {**MOONSHINE, "tie_word_embeddings": False, "attention_bias": True, "decoder_hidden_act": "gelu"},
    ],
    "MoonshineModel": [MOONSHINE],
}

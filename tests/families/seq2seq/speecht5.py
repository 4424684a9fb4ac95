"""Shapes of the families in `sources/huggingface/families/seq2seq/speecht5.py`."""

from __future__ import annotations

from typing import Any

SPEECHT5: dict[str, Any] = {
    "model_type": "speecht5",
    "vocab_size": 96,
    "hidden_size": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "conv_dim": [8, 6],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "encoder_max_relative_position": 10,
    "max_text_positions": 200,
}

SHAPES = {
    "SpeechT5ForSpeechToText": [
        SPEECHT5,
        {
            **SPEECHT5,
            "tie_word_embeddings": False,
            "conv_bias": True,
            "feat_extract_norm": "layer",
            "num_conv_pos_embeddings": 7,
            "mask_time_prob": 0.0,
            "hidden_act": "relu",
        },
    ],
}

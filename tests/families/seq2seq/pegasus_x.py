"""Shapes of the families in `sources/huggingface/families/seq2seq/pegasus_x.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "pegasus_x",
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "num_global_tokens": 3,
    "block_size": 8,
}

SHAPES = {
    "PegasusXForConditionalGeneration": [
        SMALL,
        {**SMALL, "stagger_local_blocks": False, "block_size": 5, "tie_word_embeddings": False},
        {**SMALL, "encoder_layers": 1, "block_size": 512, "activation_function": "relu"},
    ],
    "PegasusXModel": [SMALL],
}

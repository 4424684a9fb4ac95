"""Shapes of the families in `sources/huggingface/families/seq2seq/prophetnet.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "prophetnet",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 140,
    "num_buckets": 8,
    "relative_max_distance": 20,
}

SHAPES = {
    "ProphetNetForConditionalGeneration": [
        SMALL,
        {**SMALL, "ngram": 3, "tie_word_embeddings": False, "activation_function": "relu", "num_buckets": 10},
        {**SMALL, "ngram": 1, "pad_token_id": 1, "num_decoder_layers": 1},
    ],
    "ProphetNetForCausalLM": [SMALL, {**SMALL, "tie_word_embeddings": False, "add_cross_attention": False}],
    "ProphetNetModel": [SMALL],
}

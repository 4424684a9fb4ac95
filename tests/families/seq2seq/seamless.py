"""Shapes of the families in `sources/huggingface/families/seq2seq/seamless.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 200,
}
SPEECH: dict[str, Any] = {
    "speech_encoder_layers": 1,
    "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 16,
    "t2u_encoder_layers": 1,
    "t2u_decoder_layers": 1,
    "t2u_encoder_ffn_dim": 16,
    "t2u_decoder_ffn_dim": 16,
    "t2u_encoder_attention_heads": 2,
    "t2u_decoder_attention_heads": 2,
    "num_conv_pos_embedding_groups": 4,
    "upsample_initial_channel": 32,
}
V1: dict[str, Any] = {"model_type": "seamless_m4t", **SMALL}
V2: dict[str, Any] = {"model_type": "seamless_m4t_v2", **SMALL}

SHAPES = {
    "SeamlessM4TForTextToText": [V1, {**V1, "tie_word_embeddings": False, "activation_function": "gelu"}],
    "SeamlessM4TModel": [{**V1, **SPEECH}],
    "SeamlessM4Tv2ForTextToText": [V2, {**V2, "tie_word_embeddings": False, "activation_function": "silu"}],
    "SeamlessM4Tv2Model": [{**V2, **SPEECH}],
}

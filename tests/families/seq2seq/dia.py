"""Shapes of the families in `sources/huggingface/families/seq2seq/dia.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 10, "intermediate_size": 48}
ENCODER: dict[str, Any] = {**SMALL, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 64}
DECODER: dict[str, Any] = {
    **SMALL,
    "hidden_size": 40,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 20,
    "num_channels": 3,
    "cross_num_attention_heads": 6,
    "cross_num_key_value_heads": 3,
    "cross_head_dim": 8,
    "cross_hidden_size": 32,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DIA: dict[str, Any] = {
    "model_type": "dia",
    "encoder_config": ENCODER,
    "decoder_config": DECODER,
    "delay_pattern": [0, 1, 2],
}

SHAPES = {
    "DiaForConditionalGeneration": [
        DIA,
        {
            **DIA,
            "encoder_config": {**ENCODER, "hidden_size": 24, "num_key_value_heads": 1, "hidden_act": "gelu"},
            "decoder_config": {**DECODER, "cross_hidden_size": 24, "num_channels": 2, "hidden_act": "gelu"},
            "delay_pattern": [0, 1],
        },
    ],
    "DiaModel": [DIA],
}

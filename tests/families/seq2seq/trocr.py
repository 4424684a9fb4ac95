"""Shapes of the families in `sources/huggingface/families/seq2seq/trocr.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
}
PIX2STRUCT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}

SHAPES = {
    "TrOCRForCausalLM": [
        {"model_type": "trocr", **SMALL},
        {"model_type": "trocr", **SMALL, "cross_attention_hidden_size": 24, "scale_embedding": True},
        {
            "model_type": "trocr",
            **SMALL,
            "layernorm_embedding": False,
            "tie_word_embeddings": False,
        },
        {"model_type": "trocr", **SMALL, "use_learned_position_embeddings": False, "max_position_embeddings": 90},
    ],
    "Pix2StructTextModel": [
        {"model_type": "pix2struct_text_model", **PIX2STRUCT},
        {"model_type": "pix2struct_text_model", **PIX2STRUCT, "tie_word_embeddings": True, "dense_act_fn": "relu"},
    ],
}

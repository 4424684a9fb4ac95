"""Shapes of the families in `sources/huggingface/families/seq2seq/udop.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "udop",
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "max_2d_position_embeddings": 20,
    "image_size": 8,
    "patch_size": 4,
}
TABLES = [{"type": "1d"}, {"type": "vertical", "relative_attention_num_buckets": 12}]

SHAPES = {
    "UdopForConditionalGeneration": [
        SMALL,
        {
            **SMALL,
            "d_kv": 12,
            "num_decoder_layers": 2,
            "feed_forward_proj": "gated-gelu",
            "relative_bias_args": TABLES,
        },
    ],
    "UdopEncoderModel": [SMALL],
    "UdopModel": [SMALL],
}

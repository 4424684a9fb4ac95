"""Shapes of the families in `sources/huggingface/families/bert/reformer.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "reformer",
    "vocab_size": 96,
    "hidden_size": 32,
    "attention_head_size": 6,
    "num_attention_heads": 4,
    "feed_forward_size": 40,
    "attn_layers": ["local", "lsh", "local"],
    "local_attn_chunk_length": 8,
    "lsh_attn_chunk_length": 4,
    "num_buckets": 4,
    "axial_pos_shape": [16, 16],
    "axial_pos_embds_dim": [12, 20],
    "max_position_embeddings": 256,
    "is_decoder": True,
}

SHAPES = {
    "ReformerModelWithLMHead": [
        SMALL,
        {**SMALL, "attn_layers": ["lsh", "lsh"], "num_hashes": 3, "num_buckets": [2, 4], "lsh_num_chunks_before": 2},
    ],
    "ReformerForMaskedLM": [
        {
            **SMALL,
            "is_decoder": False,
            "axial_pos_embds": False,
            "attn_layers": ["lsh", "local", "local"],
            "local_num_chunks_after": 1,
            "lsh_num_chunks_after": 1,
            "hidden_act": "gelu",
        }
    ],
    "ReformerModel": [SMALL],
}

"""Shapes of the families in `sources/huggingface/families/gpt/cpmant.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "cpmant",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "dim_head": 8,
    "dim_ff": 48,
    "num_hidden_layers": 3,
    "position_bias_num_buckets": 16,
    "position_bias_max_distance": 40,
    "prompt_types": 3,
    "prompt_length": 5,
    "segment_types": 4,
}

SHAPES = {
    "CpmAntForCausalLM": [
        SMALL,
        {**SMALL, "dim_head": 12, "prompt_types": 4, "prompt_length": 2, "tie_word_embeddings": False},
    ],
    "CpmAntModel": [{**SMALL, "segment_types": 3}],
}

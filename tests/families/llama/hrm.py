"""Shapes of the families in `sources/huggingface/families/llama/hrm.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 12,
    "intermediate_size": 48,
}

SHAPES = {
    "HrmTextForCausalLM": [
        {"model_type": "hrm_text", **SMALL},
        {
            "model_type": "hrm_text",
            **SMALL,
            "H_cycles": 3,
            "L_cycles": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

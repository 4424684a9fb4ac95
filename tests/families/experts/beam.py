"""Shapes of the families in `sources/huggingface/families/experts/beam.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_hidden_layers": 7,
    "head_dim": 8,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "sliding_window": 7,
}

SHAPES = {
    "BeamForCausalLM": [
        {"model_type": "beam", **SMALL},
        {
            "model_type": "beam",
            **SMALL,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

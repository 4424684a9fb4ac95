"""Shapes of the families in `sources/huggingface/families/llama/smollm3.py`."""

from __future__ import annotations

from .llama import SMALL as LLAMA

SMALL = {**LLAMA, "pad_token_id": 0}

SHAPES = {
    "SmolLM3ForCausalLM": [
        {"model_type": "smollm3", **SMALL, "num_hidden_layers": 5},
        {
            "model_type": "smollm3",
            **SMALL,
            "no_rope_layers": [1, 0, 1],
            "layer_types": None,
            "use_sliding_window": True,
            "sliding_window": 16,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
        },
        {
            "model_type": "smollm3",
            **SMALL,
            "use_sliding_window": True,
            "sliding_window": 16,
            "num_key_value_heads": None,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ],
    "SeedOssForCausalLM": [
        {"model_type": "seed_oss", **SMALL},
        {
            "model_type": "seed_oss",
            **SMALL,
            "head_dim": None,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "ArceeForCausalLM": [
        {"model_type": "arcee", **SMALL},
        {
            "model_type": "arcee",
            **SMALL,
            "head_dim": 12,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "ApertusForCausalLM": [
        {"model_type": "apertus", **SMALL, "dtype": "bfloat16"},
        {
            "model_type": "apertus",
            **SMALL,
            "dtype": "bfloat16",
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": None,
        },
        {"model_type": "apertus", **SMALL, "hidden_act": "silu"},
    ],
    "HeliumForCausalLM": [
        {"model_type": "helium", **SMALL, "head_dim": 8},
        {
            "model_type": "helium",
            **SMALL,
            "head_dim": 8,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

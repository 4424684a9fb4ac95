"""Shapes of the families in `sources/huggingface/families/llama/olmo.py`."""

from __future__ import annotations

from .llama import SMALL as LLAMA

SMALL = {**LLAMA, "pad_token_id": 0}

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}

SHAPES = {
    "OlmoForCausalLM": [
        {"model_type": "olmo", **SMALL, "clip_qkv": 8.0},
        {
            "model_type": "olmo",
            **SMALL,
            "num_key_value_heads": None,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "Olmo2ForCausalLM": [
        {"model_type": "olmo2", **SMALL},
        {"model_type": "olmo2", **SMALL, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "Olmo2Model": [{"model_type": "olmo2", **SMALL}],
    "Olmo3ForCausalLM": [
        {"model_type": "olmo3", **SMALL, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "olmo3",
            **SMALL,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        {
            "model_type": "olmo3",
            **SMALL,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention"] * 3,
        },
    ],
    "OlmoeForCausalLM": [
        {"model_type": "olmoe", **SMALL, **EXPERTS, "norm_topk_prob": False},
        {
            "model_type": "olmoe",
            **SMALL,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "FlexOlmoForCausalLM": [
        {"model_type": "flex_olmo", **SMALL, **EXPERTS},
        {
            "model_type": "flex_olmo",
            **SMALL,
            "num_key_value_heads": None,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}

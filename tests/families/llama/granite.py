"""Shapes of the families in `sources/huggingface/families/llama/granite.py`."""

from __future__ import annotations

from .llama import SMALL

FULL, SLIDING = "full_attention", "sliding_attention"
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}

SHAPES = {
    "GraniteForCausalLM": [
        {"model_type": "granite", **SMALL, "embedding_multiplier": 12.0, "attention_multiplier": 0.5},
        {
            "model_type": "granite",
            **SMALL,
            "num_key_value_heads": None,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "Granite4VisionTextModel": [
        {"model_type": "granite4_vision_text", **SMALL, "attention_multiplier": 0.5},
        {"model_type": "granite4_vision_text", **SMALL, "attention_bias": True, "mlp_bias": True},
    ],
    "GraniteDoclingTextModel": [
        {"model_type": "granite_docling_text", **SMALL, "pad_token_id": 0},
        {"model_type": "granite_docling_text", **SMALL, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True},
    ],
    "GraniteMoeForCausalLM": [
        {"model_type": "granitemoe", **SMALL, **EXPERTS},
        {"model_type": "granitemoe", **SMALL, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "GraniteMoeSharedForCausalLM": [
        {"model_type": "granitemoeshared", **SMALL, **EXPERTS},
        {
            "model_type": "granitemoeshared",
            **SMALL,
            **EXPERTS,
            "shared_intermediate_size": 40,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "HyperCLOVAXForCausalLM": [
        {"model_type": "hyperclovax", **SMALL},
        {
            "model_type": "hyperclovax",
            **SMALL,
            "use_post_norm": False,
            "head_dim": 12,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "HyperCLOVAXModel": [{"model_type": "hyperclovax", **SMALL}],
    "GraniteSWAForCausalLM": [
        {"model_type": "granite_swa", **SMALL, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "granite_swa",
            **SMALL,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "num_key_value_heads": None,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "layer_rope_theta": [0, 10000.0, 500000, 0.0],
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING],
        },
    ],
    "GraniteMoeSWAForCausalLM": [
        {"model_type": "granitemoe_swa", **SMALL, **EXPERTS, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "granitemoe_swa",
            **SMALL,
            **EXPERTS,
            "shared_intermediate_size": 40,
            "sliding_window": 8,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_rope_theta": [10000.0, 0, 0],
            "layer_types": [FULL, SLIDING, FULL],
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/llama/cohere.py`."""

from __future__ import annotations

from .llama import SMALL

FULL, SLIDING = "full_attention", "sliding_attention"
PLAIN = {"rope_type": "default", "rope_theta": 50000.0}
COMPASS = {"model_type": "cohere_compass_text", **SMALL, "sliding_window": 16, "rope_parameters": {FULL: PLAIN}}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16, "head_dim": 8}

SHAPES = {
    "CohereForCausalLM": [
        {"model_type": "cohere", **SMALL, "use_qk_norm": None},
        {"model_type": "cohere", **SMALL, "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
    ],
    "Cohere2ForCausalLM": [
        {"model_type": "cohere2", **SMALL, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "cohere2",
            **SMALL,
            "num_hidden_layers": 5,
            "sliding_window": 16,
            "sliding_window_pattern": 2,
            "attention_bias": True,
        },
        {
            "model_type": "cohere2",
            **SMALL,
            "sliding_window": 16,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        {"model_type": "cohere2", **SMALL, "layer_types": ["full_attention"] * 3},
    ],
    "CohereCompassForCausalLM": [
        COMPASS,
        {
            **COMPASS,
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL, SLIDING],
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {FULL: None, SLIDING: PLAIN},
        },
        {
            **COMPASS,
            "num_key_value_heads": None,
            "layer_types": [FULL, SLIDING, FULL],
            "rope_parameters": {FULL: PLAIN, SLIDING: None},
        },
    ],
    "Cohere2MoeForCausalLM": [
        {
            "model_type": "cohere2_moe",
            **SMALL,
            **EXPERTS,
            "num_hidden_layers": 6,
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 40,
        },
        {
            "model_type": "cohere2_moe",
            **SMALL,
            **EXPERTS,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "tie_word_embeddings": False,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "attention_bias": True,
            "rms_norm_eps": 1e-6,
        },
        {
            "model_type": "cohere2_moe",
            **SMALL,
            **EXPERTS,
            "prefix_dense_sliding_window_pattern": 2,
            "first_k_dense_replace": 2,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 2,
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/gemma/gemma4.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

TEXT = {
    "model_type": "gemma4_text",
    **SMALL,
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": 16,
    "vocab_size_per_layer_input": 96,
}
UNIFIED = {"model_type": "gemma4_unified_text", **SMALL, "head_dim": 8, "global_head_dim": 12, "sliding_window": 16}
EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 20}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "Gemma4ForCausalLM": [
        {**TEXT, "num_hidden_layers": 7, "hidden_size_per_layer_input": 10},
        {
            **TEXT,
            **EXPERTS,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "layer_types": [SLIDING, FULL, SLIDING],
            "use_bidirectional_attention": "vision",
        },
        {
            **TEXT,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 10,
            "layer_types": [SLIDING, FULL] * 3,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        {
            **TEXT,
            **EXPERTS,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 10,
            "layer_types": [SLIDING, FULL] * 2,
            "per_layer_config": {
                "01": {"head_dim": 16, "num_key_value_heads": 4},
                "03": {"head_dim": 16, "num_key_value_heads": 4},
            },
        },
    ],
    "Gemma4UnifiedForCausalLM": [
        {**UNIFIED, "num_hidden_layers": 7},
        {
            **UNIFIED,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "layer_types": [SLIDING, FULL, SLIDING],
            "attention_bias": True,
            "use_bidirectional_attention": None,
        },
        {
            **UNIFIED,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "layer_types": [SLIDING, FULL] * 3,
            "tie_word_embeddings": False,
            "hidden_size_per_layer_input": 10,
            "enable_moe_block": True,
        },
    ],
    "Gemma4UnifiedTextModel": [{**UNIFIED, "use_bidirectional_attention": "all"}],
    "Gemma4TextModel": [
        {**TEXT, "hidden_size_per_layer_input": 10},
        {**TEXT, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "all"},
    ],
}

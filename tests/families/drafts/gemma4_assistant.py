"""Shapes of the families in `sources/huggingface/families/drafts/gemma4_assistant.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
UNIFIED = {
    **{name: value for name, value in TEXT.items() if not name.endswith("per_layer_input")},
    "model_type": "gemma4_unified_text",
}
DRAFT: dict[str, Any] = {"model_type": "gemma4_assistant", "text_config": TEXT, "backbone_hidden_size": 40}
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 3}
ONE_LAYER = {"num_hidden_layers": 1, "num_kv_shared_layers": 1, "layer_types": ["full_attention"]}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Gemma4AssistantForCausalLM": [
        DRAFT,
        {**DRAFT, **CLUSTERS},
        {
            **DRAFT,
            **CLUSTERS,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "attention_bias": True,
                "num_kv_shared_layers": 0,
            },
        },
    ],
    "Gemma4UnifiedAssistantForCausalLM": [
        {**DRAFT, **CLUSTERS, "model_type": "gemma4_unified_assistant", "text_config": UNIFIED},
        {
            **DRAFT,
            "model_type": "gemma4_unified_assistant",
            "text_config": {**UNIFIED, **ONE_LAYER, "use_double_wide_mlp": True, "hidden_size": 24},
        },
    ],
}

from __future__ import annotations

from typing import Any

IQUEST: dict[str, Any] = {
    "model_type": "iquest_q1",
    "vocab_size": 96,
    "hidden_size": 32,
    "dense_intermediate_size": 40,
    "intermediate_size": 12,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rotary_dim": 4,
    "sliding_window": 16,
    "num_hybrid_layers_block": 1,
    "last_layers_types": ["full_attention"],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "IQuestQ1ForCausalLM": [
        IQUEST,
        {**IQUEST, "no_rope_layers": [0, 2], "mlp_only_layers": [1, 5], "num_mtp_layers": 1},
        {
            **IQUEST,
            "num_hidden_layers": 3,
            "use_hybrid_layers": False,
            "enable_sink_attention": False,
            "tie_word_embeddings": True,
        },
        {
            **IQUEST,
            "num_hidden_layers": 8,
            **dict.fromkeys(
                ("first_layers_types", "hybrid_layers_types_block", "last_layers_types", "mlp_only_layers")
            ),
            "rotary_dim": None,
        },
    ]
}

from __future__ import annotations

from typing import Any

SOLAR: dict[str, Any] = {
    "model_type": "solar_open2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "linear_attn_config": {"num_heads": 3, "head_dim": 6, "short_conv_kernel_size": 3, "num_kv_heads": None},
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "SolarOpen2ForCausalLM": [
        SOLAR,
        {
            **SOLAR,
            "gqa_layers": [1, 2],
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
            "kda_use_full_proj": True,
            "attention_bias": True,
            "use_qk_norm": True,
            "use_rope": True,
            "use_gqa_gate_bias": True,
        },
        {
            **SOLAR,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"],
            "use_gqa_gate": False,
            "tie_word_embeddings": True,
        },
    ],
}

"""Shapes of the families in `sources/huggingface/families/experts/inkling2.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "inkling2_text",
    "vocab_size": 96,
    "unpadded_vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 3,
    "swa_head_dim": 6,
    "sliding_window_size": 7,
    "d_rel": 3,
    "rel_extent": 9,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_layers_per_attn_res_block": 3,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

SHAPES = {
    "Inkling2ForCausalLM": [
        SMALL,
        {
            **SMALL,
            "num_hidden_layers": 4,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid"],
            "conv_kernel_size": 3,
            "n_layers_per_attn_res_block": 2,
        },
        {**SMALL, "num_hidden_layers": 5, "layer_types": ["hybrid"] * 5, "n_layers_per_attn_res_block": 1},
    ],
    "Inkling2TextModel": [SMALL],
}

"""Shapes of the families in `sources/huggingface/families/qwen/qwen4.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "hc_count": 3,
    "hc_lowrank": 5,
    "indexer_n_heads": 3,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "eos_token_id": 1,
}

SHAPES = {
    "Qwen4ExpForCausalLM": [
        SMALL,
        {
            **SMALL,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "ple_layer_ids": [1, 3],
            "ple_embed_dim": 24,
            "ple_conv_kernel_size": 3,
            "ngram_size": 3,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 50,
            "make_ngram_vocab_size_divisible_by": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ],
    "Qwen4ExpTextModel": [{**SMALL, "num_hidden_layers": 1, "full_attention_interval": 1}],
}

from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = {**COMMON_GROUPED, "num_hidden_layers": 5}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LISTED = ["conv", "conv", "full_attention", "conv", "full_attention"]
EXPERTS = {"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 2, "layer_types": LISTED}

SHAPES = {
    "Lfm2ForCausalLM": [
        {"model_type": "lfm2", **SMALL, "layer_types": LISTED, "block_multiple_of": 8},
        {
            "model_type": "lfm2",
            **SMALL,
            "full_attn_idxs": [1, 3],
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_embedding": False,
            "block_ff_dim": 60,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.3,
        },
        {"model_type": "lfm2", **SMALL, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
        {"model_type": "lfm2", **SMALL, "block_ffn_dim_multiplier": 2, "full_attn_idxs": [0]},
    ],
    "Lfm2MoeForCausalLM": [
        {"model_type": "lfm2_moe", **SMALL, **EXPERTS},
        {
            "model_type": "lfm2_moe",
            **SMALL,
            **EXPERTS,
            "num_dense_layers": 0,
            "use_expert_bias": False,
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
    ],
    "Lfm3ForCausalLM": [
        {"model_type": "lfm3", **SMALL, **TOKENS, "sliding_window": 20, "head_dim": 12},
        {
            "model_type": "lfm3",
            **SMALL,
            **TOKENS,
            "layer_types": LISTED,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ],
}

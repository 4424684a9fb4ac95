from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "head_dim": 8, "max_position_embeddings": 64, "target_layer_ids": [1, 3, 5]}
WINDOWED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 8,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "attention_mode": "mla", "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
}  # fmt: skip
OWN_EMBEDDING = {"has_embed_tokens": True, "attention_sink_bias": True, "use_swa": True, "swa_window_size": 6}
SELECTOR = {"selector_rank": 6, "selector_top_k": 5}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "DFlashDraftModel": [
        {"model_type": "dflash", **SMALL},
        {"model_type": "dflash", **SMALL, "target_hidden_size": 48},
        {"model_type": "dflash", **SMALL, **WINDOWED, "attention_bias": True, "draft_vocab_size": 40},
        {"model_type": "dflash", **SMALL, **WINDOWED, **LATENT, "q_lora_rank": 10},
    ],
    "DFlash2DraftModel": [
        {"model_type": "dflash2", **SMALL, **SELECTOR, "conv_kernel_size": 2, "conv_group_size": 4},
        {"model_type": "dflash2", **SMALL, **WINDOWED, **SELECTOR, "conv_kernel_size": 3, "conv_group_size": 8},
        {"model_type": "dflash2", **SMALL, **LATENT, **SELECTOR, "conv_kernel_size": 2, "conv_group_size": 4},
    ],
    "DSparkDraftModel": [
        {"model_type": "dspark", **SMALL, "markov_rank": 6, "confidence_head_alpha": 1.0},
        {
            "model_type": "dspark",
            **SMALL,
            "markov_rank": 6,
            "markov_head_type": "gated",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        {"model_type": "dspark", **SMALL, "markov_rank": 6, "markov_head_type": "rnn", "draft_vocab_size": 40},
        {"model_type": "dspark", **SMALL, "markov_rank": 0},
        {"model_type": "dspark", **SMALL, **OWN_EMBEDDING, "dspark_markov_rank": 6, "dspark_fixup_head_type": "markov"},
        {"model_type": "dspark", **SMALL, **EXPERTS, "scoring_func": "sqrtsoftplus"},
        {
            "model_type": "dspark",
            **SMALL,
            **EXPERTS,
            "moe_preset": "qwen3_5_moe",
            "shared_expert_intermediate_size": 24,
        },
    ],
    "DominoDraftModel": [
        {"model_type": "domino", **SMALL, "gru_hidden_dim": 10, "emb_dim": 6},
        {"model_type": "domino", **SMALL, **WINDOWED, "gru_hidden_dim": 6, "emb_dim": 4},
    ],
}

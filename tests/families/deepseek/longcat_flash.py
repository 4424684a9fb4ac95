from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "longcat_flash",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 48,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 6,
    "moe_topk": 3,
    "n_routed_experts": 6,
    "zero_expert_num": 4,
    "expert_ffn_hidden_size": 20,
}

SHAPES = {
    "LongcatFlashForCausalLM": [
        SMALL,
        {
            **SMALL,
            "num_layers": 1,
            "zero_expert_num": 0,
            "moe_topk": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {
            **SMALL,
            "num_layers": 3,
            "zero_expert_num": 9,
            "moe_topk": 6,
            "router_bias": True,
            "expert_ffn_hidden_size": 32,
            "mla_scale_q_lora": True,
            "zero_expert_type": "identity",
            "attention_method": "MLA",
            "num_nextn_predict_layers": 1,
        },
        {
            **{k: v for k, v in SMALL.items() if k != "num_layers"},
            "num_hidden_layers": 4,
            "qk_head_dim": 12,
            "moe_topk": 2,
            "n_routed_experts": 2,
        },
    ],
    "LongcatFlashModel": [{**SMALL, "zero_expert_num": 1, "attention_bias": True}],
}

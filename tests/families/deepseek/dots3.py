"""Shapes of the families in `sources/huggingface/families/deepseek/dots3.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {
    **COMMON_GROUPED,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "shared_experts_intermediate_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "head_dim": 12,
    "index_topk": 5,
    "index_head_dim": 10,
    "index_n_heads": 3,
    "sliding_window_size": 7,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 14,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 14,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 10,
    "pad_token_id": 0,
}

SHAPES = {
    "Dots3NoteForCausalLM": [
        {"model_type": "dots3_note_text", **SMALL},
        {
            "model_type": "dots3_note_text",
            **SMALL,
            "num_hidden_layers": 4,
            "use_dsa": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "moe_layer_freq": [0, 1, 0, 1],
            "n_shared_experts": 2,
            "tie_word_embeddings": True,
        },
    ],
}

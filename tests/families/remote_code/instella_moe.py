from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

INSTELLA: dict[str, Any] = {
    "model_type": "instella_moe",
    **COMMON_SMALL,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "gated_attention": True,
    "farskip": True,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "InstellaMoEForCausalLM": [
        INSTELLA,
        {**INSTELLA, "q_lora_rank": 14, "farskip_start_idx": 2, "first_k_dense_replace": 0},
        {**INSTELLA, "gated_attention": False, "attn_only_farskip": True, "tie_word_embeddings": True},
    ],
}

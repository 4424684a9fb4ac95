from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "draft_vocab_size": 40}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "EagleLlamaForCausalLM": [
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 1},
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 3, "bias": False, "qkv_bias": True},
        {"model_type": "eagle", **SMALL, "num_hidden_layers": 1, "layernorms": True, "fusion_bias": False},
    ],
    "LlamaForCausalLMEagle3": [
        {"model_type": "eagle3", **SMALL, "draft_vocab_size": 40},
        {"model_type": "eagle3", **SMALL, "head_dim": 6, "target_hidden_size": 20, "fc_norm": True},
        {
            "model_type": "eagle3",
            **SMALL,
            "num_hidden_layers": 2,
            "draft_vocab_size": 40,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "attention_bias": True,
            "eagle_aux_hidden_state_layer_ids": [1, 2],
        },
    ],
    "DeepseekV3ForCausalLMEagle3": [
        {"model_type": "eagle3_deepseek", **SMALL, **LATENT, "draft_vocab_size": 40},
        {"model_type": "eagle3_deepseek", **SMALL, **LATENT, "q_lora_rank": None, "num_hidden_layers": 2},
    ],
    "Qwen3MoEForCausalLMEagle3": [
        {"model_type": "eagle3_qwen3_moe", **SMALL, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 16},
        {"model_type": "eagle3_qwen3_moe", **SMALL, **EXPERTS, "num_experts": 6, "target_hidden_size": 20},
    ],
    "GptOssForCausalLMEagle3": [
        {"model_type": "eagle3_gpt_oss", **SMALL, **EXPERTS, "num_local_experts": 4},
        {"model_type": "eagle3_gpt_oss", **SMALL, **EXPERTS, "num_local_experts": 4, "head_dim": 6},
    ],
    "PEagleDraftModel": [
        {"model_type": "peagle", **SMALL, "num_hidden_layers": 4, "draft_vocab_size": 40},
        {"model_type": "peagle", **SMALL, "num_hidden_layers": 1},
    ],
}

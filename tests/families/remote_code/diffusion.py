from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SMALL: dict[str, Any] = {**COMMON_GROUPED, "max_position_embeddings": 64}
LLADA: dict[str, Any] = {
    "model_type": "llada",
    "vocab_size": 96,
    "embedding_size": 104,
    "d_model": 32,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 48,
    "max_sequence_length": 64,
    "activation_type": "silu",
    "block_type": "llama",
}
LLADA_MOE: dict[str, Any] = {
    **{name: size for name, size in SMALL.items() if name != "intermediate_size"},
    "model_type": "llada",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "expert_intermediate_size": 16,
    "dense_intermediate_size": 48,
}
EXPERTS: dict[str, Any] = {
    **SMALL,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "LLaDAModelLM": [
        LLADA,
        {**LLADA, "n_kv_heads": 2, "include_bias": True, "mlp_hidden_size": None, "mlp_ratio": 2},
        {**LLADA, "include_qkv_bias": True, "weight_tying": True},
    ],
    "LLaDAMoEModelLM": [
        LLADA_MOE,
        {**LLADA_MOE, "moe_layer_freq": [0, 1, 1], "shared_expert_intermediate_size": 24, "qk_layernorm": False},
    ],
    "DreamModel": [
        {"model_type": "Dream", **SMALL},
        {"model_type": "Dream", **SMALL, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ],
    "RND1LM": [
        {"model_type": "rnd1", **EXPERTS, "head_dim": 8, "decoder_sparse_step": 1, "num_diffusion_steps": 16},
        {"model_type": "rnd1", **EXPERTS, "head_dim": 16, "mlp_only_layers": [0], "tie_word_embeddings": True},
    ],
    "SDARForCausalLM": [{"model_type": "sdar", **SMALL, "head_dim": 8, "block_size": 4}],
    "SDARMoeForCausalLM": [{"model_type": "sdar_moe", **EXPERTS, "head_dim": 8, "ep_size": 1}],
    "NemotronLabsDiffusionModel": [
        {
            "model_type": "nemotron_labs_diffusion",
            **SMALL,
            "head_dim": 8,
            "block_size": 4,
            "dlm_paradigm": "bidirectional",
        }
    ],
    "Fast_dLLM_QwenForCausalLM": [{"model_type": "Fast_dLLM_Qwen", **SMALL, "bd_size": 32}],
    "LLaDA2MoeModelLM": [
        {
            "model_type": "llada2_moe",
            **EXPERTS,
            "use_qk_norm": True,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_router_enable_expert_bias": True,
        }
    ],
}

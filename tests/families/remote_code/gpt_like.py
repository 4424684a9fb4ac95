from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
NANOGPT: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "block_size": 64}
USUAL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
PROGEN: dict[str, Any] = {
    "model_type": "progen",
    "vocab_size_emb": 96,
    "embed_dim": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
}
PHI: list[dict[str, Any]] = [
    {**SMALL, "rotary_dim": 4, "n_inner": None},
    {**SMALL, "rotary_dim": 8, "n_inner": 48, "activation_function": "gelu_new"},
]
PHIXTRAL: dict[str, Any] = {"num_vocab": 96, "model_dim": 32, "num_layers": 2, "num_heads": 4, "rotary_dim": 4}
FALCON: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}
PART = {"no_op": False, "replace_with_linear": False, "sparsify": None}
NO_OP = {"no_op": True, "replace_with_linear": False, "sparsify": None}
NAS: dict[str, Any] = {"model_type": "nemotron-nas", **USUAL, "num_hidden_layers": 3}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "ProGenForCausalLM": [
        {**PROGEN, "vocab_size_lm_head": 96, "rotary_dim": 4},
        {**PROGEN, "rotary_dim": 8, "n_inner": 48},
    ],
    "CodeShellForCausalLM": [
        {"model_type": "codeshell", **SMALL, "num_query_groups": 2, "position_embedding_type": "rope"},
        {
            "model_type": "codeshell",
            **SMALL,
            "num_query_groups": 1,
            "n_inner": 48,
            "position_embedding_type": "rope",
            "tie_word_embeddings": False,
        },
    ],
    "JAISLMHeadModel": [
        {
            "model_type": "jais",
            **SMALL,
            "n_inner": 48,
            "activation_function": "swiglu",
            "position_embedding_type": "alibi",
        },
        {"model_type": "jais", **SMALL, "activation_function": "gelu_new", "tie_word_embeddings": False},
    ],
    "BTLMLMHeadModel": [
        {
            "model_type": "btlm",
            **SMALL,
            "n_inner": 44,
            "activation_function": "swiglu",
            "position_embedding_type": "alibi",
            "mup_width_scale": 0.1,
        },
        {"model_type": "btlm", **SMALL, "activation_function": "gelu_new", "tie_word_embeddings": False},
    ],
    "GPTForCausalLM": [
        {"model_type": "nanogpt", **NANOGPT},
        {"model_type": "nanogpt", **NANOGPT, "n_embd": 48, "bias": False, "dropout": 0.1},
    ],
    "MixFormerSequentialForCausalLM": [{"model_type": "mixformer-sequential", **shape} for shape in PHI],
    "PhiForCausalLM": [
        *({"model_type": "phi-msft", **shape} for shape in PHI),
        {"model_type": "phi-msft", **PHI[0], "num_local_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "phixtral", **PHIXTRAL, "num_local_experts": 3, "num_experts_per_tok": 1},
        {"model_type": "phixtral", **PHIXTRAL, "num_local_experts": 5, "num_experts_per_tok": 2},
    ],
    "StableLMEpochForCausalLM": [
        {"model_type": "stablelm_epoch", **USUAL, "intermediate_size": 48, "num_key_value_heads": 4},
        {
            "model_type": "stablelm_epoch",
            **USUAL,
            "intermediate_size": 48,
            "num_key_value_heads": 2,
            "rope_pct": 0.5,
            "use_qkv_bias": True,
        },
    ],
    "RWForCausalLM": [
        {"model_type": "RefinedWeb", **FALCON, "n_head_kv": 2, "parallel_attn": True},
        {"model_type": "RefinedWeb", **FALCON, "n_head_kv": 2, "bias": True, "alibi": True},
        {"model_type": "RefinedWebModel", **FALCON, "multi_query": True, "parallel_attn": True},
        {"model_type": "RefinedWebModel", **FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    ],
    "Phi3SmallForCausalLM": [
        {"model_type": "phi3small", **USUAL, "num_key_value_heads": 2, "ff_intermediate_size": 48},
        {"model_type": "phi3small", **USUAL, "ff_dim_multiplier": 2, "dense_attention_every_n_layers": 1},
    ],
    "OpenELMForCausalLM": [
        {
            "model_type": "openelm",
            "vocab_size": 96,
            "model_dim": 32,
            "head_dim": 8,
            "num_transformer_layers": 3,
            "num_query_heads": [4, 6, 8],
            "num_kv_heads": kv_heads,
            "ffn_multipliers": [0.5, 1.03, 4.0],
            "ffn_dim_divisor": 16,
            "max_context_length": 64,
            "normalize_qk_projections": normed,
            "share_input_output_layers": normed,
        }
        for kv_heads, normed in (([1, 2, 2], True), ([4, 6, 8], False))
    ],
    "DeciLMForCausalLM": [
        {
            "model_type": "deci",
            **USUAL,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_key_value_heads_per_layer": [4, 1, 2],
        },
        {
            "model_type": "deci",
            **USUAL,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_key_value_heads_per_layer": [2, 2],
            "tie_word_embeddings": True,
        },
        {
            **NAS,
            "block_configs": [
                {"attention": {**PART, "n_heads_in_group": 2}, "ffn": {**PART, "ffn_mult": 2.0}},
                {"attention": {**NO_OP, "n_heads_in_group": None}, "ffn": {**PART, "ffn_mult": 24.5}},
                {"attention": {**PART, "n_heads_in_group": 4}, "ffn": {**NO_OP, "ffn_mult": None}},
            ],
        },
        {
            **NAS,
            "attention_bias": True,
            "mlp_bias": True,
            "block_configs": [{"attention": {**PART, "n_heads_in_group": 1}, "ffn": {**PART, "ffn_mult": 1.0}}] * 3,
        },
    ],
}

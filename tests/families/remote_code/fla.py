from __future__ import annotations

from typing import Any

FLA: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3}
GATED: dict[str, Any] = {"model_type": "gated_deltanet", **FLA, "num_heads": 3, "head_dim": 8}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "TransformerForCausalLM": [
        {"model_type": "transformer", **FLA, "num_heads": 4, "hidden_ratio": 3, "window_size": 8, "qk_norm": True},
        {
            "model_type": "transformer",
            **FLA,
            "num_heads": 4,
            "num_kv_heads": 2,
            "intermediate_size": 48,
            "qkv_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "GatedDeltaNetForCausalLM": [
        {**GATED, "num_v_heads": 6, "expand_v": 1.5, "conv_size": 3, "allow_neg_eigval": True},
        {**GATED, "intermediate_size": 48, "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2}},
        {
            **GATED,
            "attn": [
                {"layers": [0], "num_heads": 2, "window_size": 8, "rope_theta": 5e5},
                {"layers": [2], "num_heads": 4, "qkv_bias": True},
            ],
        },
    ],
    "DeltaNetForCausalLM": [
        {"model_type": "delta_net", **FLA, "num_heads": 4, "expand_v": 2.0},
        {
            "model_type": "delta_net",
            **FLA,
            "num_heads": 2,
            "expand_k": 0.5,
            "conv_size": 3,
            "use_gate": True,
            "allow_neg_eigval": True,
            "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2},
        },
    ],
    "RetNetForCausalLM": [
        {"model_type": "retnet", **FLA, "num_heads": 4},
        {
            "model_type": "retnet",
            **FLA,
            "num_heads": 4,
            "num_kv_heads": 2,
            "expand_k": 0.5,
            "feature_map": "relu",
            "use_output_gate": False,
            "attn": {"layers": [1], "num_heads": 4},
        },
    ],
    "GLAForCausalLM": [
        {"model_type": "gla", **FLA, "num_heads": 4},
        {
            "model_type": "gla",
            **FLA,
            "num_heads": 4,
            "num_kv_heads": 2,
            "expand_v": 2.0,
            "feature_map": "relu",
            "use_output_gate": False,
            "attn": {"layers": [1], "num_heads": 4},
        },
    ],
    "HGRN2ForCausalLM": [
        {"model_type": "hgrn2", **FLA, "expand_ratio": 8},
        {"model_type": "hgrn2", **FLA, "expand_ratio": 8, "attn": {"layers": [1], "num_heads": 4}},
        {
            "model_type": "hgrn2",
            **FLA,
            "num_heads": 2,
            "expand_ratio": None,
            "use_lower_bound": False,
            "attn": {"layers": [1], "num_heads": 4},
        },
    ],
    "KDAForCausalLM": [
        {"model_type": "kda", **FLA, "num_heads": 3, "head_dim": 8},
        {
            "model_type": "kda",
            **FLA,
            "num_heads": 2,
            "head_dim": 6,
            "conv_size": 3,
            "attn": {"layers": [1], "num_heads": 4},
        },
    ],
    "SambaForCausalLM": [
        {
            "model_type": "samba",
            **FLA,
            "state_size": 6,
            "intermediate_size": 48,
            "attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "window_size": 8},
        },
        {"model_type": "samba", **FLA, "state_size": 6, "time_step_rank": 3, "use_bias": True, "attn": None},
    ],
    "MambaForCausalLM": [
        {"model_type": "fla_mamba", **FLA, "state_size": 6, "dt_rank": 3},
        {"model_type": "fla_mamba", **FLA, "state_size": 6, "time_step_rank": "auto", "use_bias": True},
    ],
    "Mamba2ForCausalLM": [
        {"model_type": "fla_mamba2", **FLA, "num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2},
        {"model_type": "fla_mamba2", **FLA, "head_dim": 16, "use_bias": True, "tie_word_embeddings": True},
    ],
}

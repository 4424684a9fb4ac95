"""Shapes of the families in `sources/huggingface/families/gpt/blt.py`."""

from __future__ import annotations

from typing import Any

LAYERS: dict[str, Any] = {"num_attention_heads": 4, "intermediate_size": 40}
LOCAL: dict[str, Any] = {**LAYERS, "vocab_size": 96, "hidden_size": 16, "hidden_size_global": 32}
BLT: dict[str, Any] = {
    "model_type": "blt",
    "vocab_size": 96,
    "patch_size": 1,
    "patching_threshold": -1.0,
    "local_attention_window_len": 6,
    "encoder_hash_byte_group_vocab": 11,
    "global_config": {**LAYERS, "hidden_size": 32, "num_hidden_layers": 3},
    "encoder_config": {**LOCAL, "num_hidden_layers": 2},
    "decoder_config": {**LOCAL, "num_hidden_layers": 2},
    "patcher_config": {
        **LAYERS,
        "vocab_size": 96,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "sliding_window": 5,
    },
}
"""With this threshold every byte ends a patch, so the number of patches does not depend on the random weights."""

SHAPES = {
    "BltForCausalLM": [
        BLT,
        {
            **BLT,
            "patch_in_forward": False,
            "local_attention_window_len": None,
            "cross_attn_k": 3,
            "encoder_hash_byte_group_size": [2, 3],
            "encoder_hash_byte_group_nb_functions": 2,
            "global_config": {**BLT["global_config"], "num_key_value_heads": 2},
            "encoder_config": {**BLT["encoder_config"], "cross_attn_k": 3, "intermediate_size": None},
            "decoder_config": {
                **BLT["decoder_config"],
                "cross_attn_k": 3,
                "cross_attn_all_layers": False,
                "num_key_value_heads": 2,
            },
        },
        {**BLT, "patching_mode": "byte"},
    ],
    "BltModel": [BLT],
}

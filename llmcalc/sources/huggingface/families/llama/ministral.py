"""Ministral: Mistral with sliding windows in some layers. Mistral 3: a Mistral with a vision encoder.

transformers: models/ministral, models/ministral3, models/mistral3.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family
from ...parts import Table, attention, decoder, glu, rmsnorm, sliding_stack


def _ministral(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    block = {"attention": attention(config), "feed_forward": glu(config), "norm": norm, "norm_placement": "pre"}
    return decoder(config, block, norm, stack=sliding_stack(config, ["sliding"] * config.size("num_hidden_layers")))


COMMON: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "layer_types": None,
}

FAMILIES = {
    "ministral": Family(
        _ministral,
        {
            **COMMON,
            "vocab_size": 32000,
            "num_hidden_layers": 32,
            "head_dim": None,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
    ),
    "ministral3": Family(
        _ministral,
        {
            **COMMON,
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
        },
    ),
    "mistral3": Family(
        None,
        {"tie_word_embeddings": True},
        text="mistral",
        modules={"towers.map_1": "patch_merger.merging_layer", "towers.map_2": "linear_1", "towers.map_3": "linear_2"},
        tower_file="pixtral",
    ),
}

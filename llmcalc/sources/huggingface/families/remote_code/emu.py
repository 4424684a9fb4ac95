"""Emu 3.5: Qwen3's layers, with images as tokens of the vocabulary.

Source: the modeling file in `Family.source`.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, qk_norm_fields, rmsnorm
from ..llama.llama import llama_decoder


def _read_emu3_5(config: Config) -> Table:
    config.require("use_sliding_window", False)
    return llama_decoder(config, attention(config, **qk_norm_fields(rmsnorm(config.number("rms_norm_eps")))))


FAMILIES = {
    "emu3_5": Family(
        _read_emu3_5,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
        frozenset({"attention_bias", "image_area", "max_window_layers", "sliding_window"}),
        source="https://github.com/baaivision/Emu3.5/blob/main/src/emu3p5/modeling_emu3.py",
    )
}

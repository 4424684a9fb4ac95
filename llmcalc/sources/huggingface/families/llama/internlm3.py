"""InternLM3 and IQuest-Coder, which have their own configs but are computed by Llama's class.

transformers: models/internlm3, models/iquestcoder (configurations only), models/llama.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family
from ...parts import QKVO, Table, attention, biases
from .llama import COMMON, llama_like


def _internlm3(config: Config) -> Table:
    """Reads InternLM3: `qkv_bias` and `bias` must be equal, because Llama's class has both or neither."""
    bias = config.flag("attention_bias")
    config.must("mlp_bias", bias)
    return llama_like(config, attention(config, **biases(bias, *QKVO)), bias)


def _iquestcoder(config: Config) -> Table:
    if config.has("use_sliding_window"):
        config.must("use_sliding_window", False)
    if config.has("clip_qkv"):
        config.must("clip_qkv", None)
    return llama_like(
        config, attention(config, **biases(config.flag("attention_bias"), *QKVO)), config.flag("mlp_bias")
    )


DEFAULTS: dict[str, Any] = {**COMMON, "head_dim": 128, "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False}

FAMILIES = {
    "internlm3": Family(
        _internlm3,
        {
            **DEFAULTS,
            "vocab_size": 128512,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
        },
        aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    ),
    "iquestcoder": Family(
        _iquestcoder,
        {
            **DEFAULTS,
            "vocab_size": 76800,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 80,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
        frozenset({"max_window_layers"}),
    ),
}

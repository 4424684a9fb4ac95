"""DiffLlama: Llama with differential attention.

transformers: models/diffllama.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, rope
from .llama import COMMON, llama_like


def _diffllama(config: Config) -> Table:
    heads, eps = config.size("num_attention_heads"), config.number("rms_norm_eps")
    head_dim = config.maybe("head_dim") or config.divided("num_attention_heads", config.size("hidden_size"), heads)
    kv_heads = config.maybe("num_key_value_heads") or heads
    head_fields = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return llama_like(
        config,
        {
            "type": "differential",
            **head_fields,
            "attention_bias": config.flag("attention_bias"),
            "norm_eps": eps,
            "position": rope(config),
        },
    )


FAMILIES = {
    "diffllama": Family(
        _diffllama,
        {
            **COMMON,
            "vocab_size": 32000,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_key_value_heads": None,
            "head_dim": None,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
        },
        frozenset({"lambda_std_dev", "mlp_bias", "patch_size"}),
    ),
}

"""DiffLlama: Llama with differential attention.

transformers: models/diffllama.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, rope
from .llama import llama_decoder


def _read_diffllama(config: Config) -> Table:
    head_count, eps = config.integer("num_attention_heads"), config.number("rms_norm_eps")
    head_dim = config.optional_integer("head_dim") or config.quotient(
        "num_attention_heads", config.integer("hidden_size"), head_count
    )
    kv_head_count = config.optional_integer("num_key_value_heads") or head_count
    head_fields = {"num_attention_heads": head_count, "num_key_value_heads": kv_head_count, "head_dim": head_dim}
    token_mixer = {
        "type": "differential",
        **head_fields,
        "attention_bias": config.flag("attention_bias"),
        "norm_eps": eps,
        "position": rope(config),
    }
    return llama_decoder(config, token_mixer)


FAMILIES = {"diffllama": Family(_read_diffllama, ignored_fields=frozenset({"mlp_bias", "patch_size"}))}

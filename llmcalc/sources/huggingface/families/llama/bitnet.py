"""Layers with squared ReLU and unusual norms: bitnet, nanochat.

transformers: models/bitnet, models/nanochat. BitNet's weights count as parameters, independent of their few stored
    bits.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, decoder, glu, layer_table, qk_norm_fields, rmsnorm
from ..gpt.gpt import non_gated_ffn


def _read_bitnet(config: Config) -> Table:
    """Reads BitNet, with a norm before each sublayer's output projection."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, sub_norm=norm, **attention_biases(config))
    return decoder(config, layer_table(attention_table, {**glu(config), "sub_norm": norm}, norm), norm)


def _read_nanochat(config: Config) -> Table:
    """Reads nanochat: norms have no weights, a norm follows the embeddings, and QK-norm follows RoPE."""
    norm = rmsnorm(config.number("rms_norm_eps"), weight=False)
    attention_table = attention(config, **attention_biases(config), **qk_norm_fields(norm, norm_order="after_rope"))
    block = layer_table(attention_table, non_gated_ffn(config, "intermediate_size", "hidden_act", False), norm)
    return decoder(config, block, norm, stack={"embedding_norm": norm})


FAMILIES = {
    "bitnet": Family(_read_bitnet, modules={"mlp.sub_norm": "ffn_sub_norm", "self_attn.sub_norm": "attn_sub_norm"}),
    "nanochat": Family(
        _read_nanochat,
        ignored_fields=frozenset({"logits_soft_cap", "qkv_bias"}),
        modules={"up_proj": "fc1", "down_proj": "fc2"},
    ),
}

"""Dia: an encoder of a text's bytes, and a decoder of audio-codec tokens with an embedding per channel.

The codec is another model. transformers: models/dia.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, Quirks
from ...parts import Table, attention, fused_glu, head_table, layer_table, rmsnorm


def _read_dia(config: Config) -> Table:
    encoder_config = config.section("encoder_config", ENCODER_DEFAULTS)
    decoder_config = config.section("decoder_config", DECODER_DEFAULTS)
    hidden_size, channel_count = encoder_config.integer("hidden_size"), decoder_config.integer("num_channels")
    channel_delays = config.integers("delay_pattern")
    if len(channel_delays) != channel_count:
        raise config.error(
            "delay_pattern", channel_delays, f"{channel_count} numbers, one for each channel (num_channels)"
        )
    encoder, decoder = _stack(encoder_config), _stack(decoder_config)
    cross_width = decoder_config.integer("cross_hidden_size")
    if cross_width != hidden_size:
        raise decoder_config.error(
            "cross_hidden_size", cross_width, f"{hidden_size}, the width of the encoder (hidden_size)"
        )
    decoder["block"]["cross_attention"] = {
        "num_attention_heads": decoder_config.integer("cross_num_attention_heads"),
        "num_key_value_heads": decoder_config.integer("cross_num_key_value_heads"),
        "head_dim": decoder_config.integer("cross_head_dim"),
    }
    model_fields = {
        "vocab_size": channel_count * decoder_config.integer("vocab_size"),
        "hidden_size": decoder_config.integer("hidden_size"),
        "tie_word_embeddings": False,
        "max_position_embeddings": decoder_config.integer("max_position_embeddings"),
        "encoder": {**encoder, "vocab_size": encoder_config.integer("vocab_size"), "hidden_size": hidden_size},
        "decoder": decoder,
        "head": head_table(config),
    }
    config.notes.append(
        f"num_channels: vocab_size is that of {channel_count} channels; the embeddings of {channel_count} tokens at "
        "each position are not counted in memory before their sum"
    )
    for stack_config in (encoder_config, decoder_config):
        stack_config.finish(frozenset(stack_config.defaults), config)
    return model_fields


def _stack(config: Config) -> Table:
    """Returns encoder layers, or decoder layers without cross-attention: pre-norm, with RoPE and SwiGLU."""
    norm = rmsnorm(config.number("norm_eps"))
    block = layer_table(attention(config), fused_glu(config), norm)
    return {"num_hidden_layers": config.integer("num_hidden_layers"), "block": block, "final_norm": norm}


ENCODER_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 1024,
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "intermediate_size": 4096,
    "norm_eps": 1e-5,
    "vocab_size": 256,
    "hidden_act": "silu",
}
DECODER_DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "max_position_embeddings": 3072,
    "num_hidden_layers": 18,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_key_value_heads": 4,
    "cross_num_attention_heads": 16,
    "cross_head_dim": 128,
    "cross_num_key_value_heads": 16,
    "cross_hidden_size": 1024,
    "vocab_size": 1028,
    "num_channels": 9,
}
"""The defaults of the config sections of Dia's encoder and decoder."""

FAMILIES = {
    "dia": Family(
        _read_dia,
        defaults={"delay_pattern": [0, *range(8, 16)]},
        ignored_fields=frozenset({"norm_eps"}),
        quirks=Quirks(decoder_ids=lambda config, ids: ids[..., None].repeat(1, 1, config.decoder_config.num_channels)),
    )
}

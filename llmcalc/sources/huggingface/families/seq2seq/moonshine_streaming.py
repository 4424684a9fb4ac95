"""Moonshine streaming: an encoder of audio frames with a short look-ahead, and Moonshine's decoder.

The decoder adds learned positions to the encoder's output, and projects it if the two widths differ.
transformers: models/moonshine_streaming.
"""

from __future__ import annotations

from typing import Any

from ...config import Config, is_json_integer
from ...family import Family, module_names
from ...parts import (
    ACTIVATIONS,
    QKV_BIASES,
    Table,
    attention_biases,
    biases,
    head_table,
    layer_table,
    layernorm,
    mlp,
    plain_attention,
    rope,
)

ENCODER_DEFAULTS: dict[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 1280,
    "hidden_act": "gelu",
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "attention_bias": False,
    "sample_rate": 16000,
    "frame_ms": 5.0,
    "head_dim": None,
    "sliding_windows": ((16, 4), (16, 4), (16, 0), (16, 0), (16, 4), (16, 4)),
}
"""Defaults of the encoder's configuration class."""


def _read_moonshine_streaming(config: Config) -> Table:
    config.require("is_encoder_decoder", True)
    if is_json_integer(config.get("pad_head_dim_to_multiple_of")):
        config.notes.append("pad_head_dim_to_multiple_of: the zeros that fill up each head are not counted")
    hidden_size = config.integer("hidden_size")
    head_count = config.integer("num_attention_heads")
    norm = layernorm(1e-5, bias=False)
    kv_head_count, head_dim = config.optional_integer("num_key_value_heads"), config.optional_integer("head_dim")
    if kv_head_count not in (None, head_count):
        raise config.error(
            "num_key_value_heads", kv_head_count, f"{head_count}: the class splits queries into as many heads as keys"
        )
    attention_table: Table = {"num_attention_heads": head_count, **attention_biases(config, QKV_BIASES)}
    if head_dim is None:
        config.quotient("num_attention_heads", hidden_size, head_count)
    else:
        attention_table["head_dim"] = head_dim
    rotary_fraction = 1.0 if config.has("rope_parameters") else 0.8
    ffn = {
        "intermediate_size": config.integer("intermediate_size"),
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
        "gated": True,
        **biases(True, "gate_bias", "up_bias", "down_bias"),
    }
    block = layer_table(
        {**attention_table, "position": rope(config, rotary_fraction)}, ffn, norm, cross_attention=attention_table
    )
    decoder = {"num_hidden_layers": config.integer("num_hidden_layers"), "block": block, "final_norm": norm}
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "encoder": _streaming_encoder(config, hidden_size),
        "decoder": decoder,
        "head": head_table(config),
    }


def _streaming_encoder(config: Config, decoder_width: int) -> Table:
    """Returns the encoder of audio frames, with a position embedding on its output."""
    encoder_fields = {} if config.get("encoder_config") is None else config.table("encoder_config")
    encoder_config = Config(encoder_fields, ENCODER_DEFAULTS, "moonshine_streaming_encoder", location="encoder_config.")
    encoder_config.integer("num_key_value_heads")
    attention_table, hidden_size = plain_attention(encoder_config), encoder_config.integer("hidden_size")
    frame_size = round(encoder_config.integer("sample_rate") * encoder_config.number("frame_ms") / 1000)
    if frame_size < 1:
        raise encoder_config.field_error("frame_ms", "a frame of at least one sample")
    norm = layernorm(1e-5, bias=False, unit_offset=True)
    config.notes.append("encoder_config.sliding_windows: not counted: every position of the encoder attends to all")
    encoder_config.fields_read.add("sliding_windows")
    feed_forward = mlp(encoder_config.integer("intermediate_size"), encoder_config.choice(ACTIVATIONS, "hidden_act"))
    encoder: Table = {
        "num_hidden_layers": encoder_config.integer("num_hidden_layers"),
        "stem": {"type": "frames", "frame_size": frame_size},
        "block": layer_table(attention_table, feed_forward, norm),
        "final_norm": norm,
        "output_positions": {"type": "learned", "max_position_embeddings": config.integer("max_position_embeddings")},
    }
    if hidden_size != decoder_width:
        encoder |= {"hidden_size": hidden_size, "output_size": decoder_width, "output_bias": False}
    encoder_config.finish(frozenset({"max_position_embeddings"}), config)
    return encoder


FAMILIES = {
    "moonshine_streaming": Family(
        _read_moonshine_streaming,
        ignored_fields=frozenset({"max_source_positions"}),
        modules={
            "stem": "embedder",
            "stem.log_gain": "comp",
            "stem.proj": "linear",
            "output_positions": "decoder.pos_emb",
            "output_proj": "decoder.proj",
            **module_names("moonshine"),
            "encoder.norm": "final_norm",
        },
    )
}

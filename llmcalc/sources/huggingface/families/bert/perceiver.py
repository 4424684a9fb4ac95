"""Perceiver IO for language: reads bytes into a fixed number of latents, and decodes one output per position.

Jaegle et al. 2021 (arXiv:2107.14795). The other classes read images, sound or vectors, or score whole texts.
transformers: models/perceiver (`PerceiverForMaskedLM`).
"""

from __future__ import annotations

from ...config import Config
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import (
    ACTIVATIONS,
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    encoder,
    layernorm,
    learned_positions,
    mlp,
)

OUTPUT_HEADS, OUTPUT_QUERY_SIZE = 8, 32
"""The heads of the output queries and the size of a query, which the class states."""


def _read_perceiver(config: Config) -> Table:
    class_name = class_name_of_config(config)
    if class_name and not class_name.endswith("ForMaskedLM"):
        raise config.error("architectures", class_name, "PerceiverForMaskedLM, the class of text")
    latent_size, input_width = config.integer("d_latents"), config.integer("d_model")
    norm, activation = layernorm(), config.choice(ACTIVATIONS, "hidden_act")
    query_channels = config.choice({"kv": input_width, "q": latent_size}, "cross_attention_shape_for_attention")
    output_query_count = config.integer("max_position_embeddings")

    def attention(heads: int, qk_channels: int, v_channels: int, heads_field: str) -> Table:
        channels_by_field = {"head_dim": qk_channels, "v_head_dim": v_channels}
        head_sizes = {
            name: config.quotient(heads_field, channels, heads) for name, channels in channels_by_field.items()
        }
        return {"num_attention_heads": heads, **head_sizes, "float32_softmax": False, **biases(True, *QKVO_BIASES)}

    def network(hidden_size: int, factor_field: str) -> Table:
        return mlp(config.integer(factor_field) * hidden_size, activation)

    qk_channels, v_channels = (config.optional_integer(field_name) for field_name in ("qk_channels", "v_channels"))
    cross_qk_channels, input_qk_channels = qk_channels or query_channels, qk_channels or latent_size
    num_cross_attention_heads = config.integer("num_cross_attention_heads")
    cross_attention = attention(
        num_cross_attention_heads, cross_qk_channels, v_channels or cross_qk_channels, "num_cross_attention_heads"
    )
    num_self_attention_heads = config.integer("num_self_attention_heads")
    attention_table = attention(
        num_self_attention_heads, input_qk_channels, v_channels or input_qk_channels, "num_self_attention_heads"
    )
    if (v_channels or input_qk_channels) != latent_size:
        raise config.error("v_channels", v_channels, f"{latent_size} (d_latents), or null: a residual adds both")
    config.quotient("num_self_attention_heads", latent_size, config.integer("num_self_attention_heads"))
    config.quotient("num_cross_attention_heads", latent_size, config.integer("num_cross_attention_heads"))
    residual_streams = {
        "type": "latents",
        "num_latents": config.integer("num_latents"),
        "latent_size": latent_size,
        "reads": {
            "attention": cross_attention,
            "norm": norm,
            "feed_forward": network(latent_size, "cross_attention_widening_factor"),
            "residual": config.flag("use_query_residual"),
        },
        "num_queries": output_query_count,
        "query_size": input_width,
        "writes": {
            "attention": attention(OUTPUT_HEADS, OUTPUT_HEADS * OUTPUT_QUERY_SIZE, input_width, "d_model"),
            "norm": norm,
            "feed_forward": mlp(input_width, activation),
            "residual": False,
        },
    }
    feed_forward = network(latent_size, "self_attention_widening_factor")
    block = {"attention": attention_table, "feed_forward": feed_forward, "norm": norm, "norm_placement": "pre"}
    embedding_fields = {"embedding_size": input_width} if input_width != latent_size else {}
    stack_fields = {
        **_layers_of_every_block(config),
        "position": learned_positions(config),
        "streams": residual_streams,
        **({"input_size": input_width} if embedding_fields else {}),
    }
    config.fields_read.add("tie_word_embeddings")
    return encoder(config, block, stack_fields, {"bias": True}, tie_word_embeddings=True, **embedding_fields)


def _layers_of_every_block(config: Config) -> Table:
    """Returns the layers of all blocks, which share the parameters of the first block."""
    layer_count, block_repeats = config.integer("num_self_attends_per_block"), config.integer("num_blocks")
    if block_repeats == 1:
        return {"num_hidden_layers": layer_count}
    if layer_count == 1:
        return {"num_hidden_layers": block_repeats, "shared_layers": ["block"]}
    layer_kinds = [f"layer{layer_index}" for layer_index in range(layer_count)]
    return {
        "num_hidden_layers": layer_count * block_repeats,
        "variants": {layer_kind: {} for layer_kind in layer_kinds},
        "pattern": layer_kinds,
        "shared_layers": layer_kinds,
    }


FAMILIES = {
    "perceiver": Family(
        _read_perceiver,
        defaults={"tie_word_embeddings": True},
        aliases={"hidden_size": "d_latents"},
        unread_aliases=frozenset({"hidden_size"}),
        ignored_fields=frozenset({"_label_trainable_num_channels"}),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields={"attention": "attention_probs_dropout_prob"},
    )
}

"""The text models of Kosmos-2 and Kosmos-2.5: pre-norm layers with a norm inside the network (Sub-LN: Wang 2022).

Kosmos-2 has a norm inside attention too. Positions are sinusoidal.

transformers: models/kosmos2, models/kosmos2_5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...config import Config
from ...dropout import BART_DROPOUT
from ...family import Family, module_names
from ...parts import ACTIVATIONS, QKVO_BIASES, Table, biases, decoder, layer_table, layernorm, mlp, token_types


def _kosmos_decoder(config: Config, stack_fields: Table, **attention_fields: Any) -> Table:
    norm, head_count = layernorm(config.number("layer_norm_eps")), config.integer("num_attention_heads")
    config.quotient("attention_heads", config.integer("hidden_size"), head_count)
    ffn = mlp(config.integer("ffn_dim"), config.choice(ACTIVATIONS, "activation_function"))
    attention = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES), **attention_fields}
    block = layer_table(attention, {**ffn, "sub_norm": norm}, norm)
    return decoder(config, block, norm, stack={"position": {"type": "sinusoidal"}, **stack_fields})


def _read_kosmos2(config: Config) -> Table:
    config.require("add_cross_attention", False)
    return _kosmos_decoder(config, {}, sub_norm=layernorm(config.number("layer_norm_eps")))


def _read_kosmos2_5(config: Config) -> Table:
    """Reads Kosmos-2.5, with a segment embedding for text and images."""
    return _kosmos_decoder(config, token_types(2))


IGNORED_FIELDS = frozenset({"no_scale_embedding"})
ALIASES = {"hidden_size": "embed_dim", "num_hidden_layers": "layers", "num_attention_heads": "attention_heads"}
TEXT_MODEL = Family(
    _read_kosmos2,
    ignored_fields=IGNORED_FIELDS,
    aliases=ALIASES,
    modules={**module_names("kosmos"), "": "text_model.model | model", "lm_head": "lm_head | text_model.lm_head"},
    dropout_fields=BART_DROPOUT,
)

IMAGE_MODULES = {
    "towers.image_projection": "image_to_text_projection",
    "towers.image_projection.map_1": "dense",
    "towers.resampler": ".image_to_text_projection - .image_to_text_projection.dense",
    "towers.resampler.query": "latent_query",
    "towers.resampler.attention": "x_attn",
    "towers.o_proj": "out_proj | output",
}
PAGE_MODULES = {
    "towers.patch_embedding": "embeddings.patch_projection",
    "towers.position_embedding": "embeddings.row_embedder + embeddings.column_embedder",
    "towers.self_attn_pre_norm": "pre_attention_layer_norm",
    "towers.mlp_pre_norm": "pre_mlp_layer_norm",
    **{
        f"towers.{letter}_proj": f"{name} | {letter}_proj"
        for letter, name in zip("qkv", ("query", "key", "value"), strict=True)
    },
    "towers.gate_proj": "wi_0",
    "towers.up_proj": "wi_1",
    "towers.down_proj": "wo",
    "towers.norm": "layernorm",
}
"""Node of the encoders of pages of KOSMOS-2.5 and Pix2Struct → module of their classes."""

FAMILIES = {
    "kosmos-2": Family(
        None, text_type="kosmos_2_text_model", tying_source="either", tower_file="kosmos", modules=IMAGE_MODULES
    ),
    "kosmos_2_text_model": TEXT_MODEL,
    "kosmos-2.5": Family(
        None,
        text_type="kosmos_2_5_text_model",
        tying_source="text",
        tower_file="kosmos",
        modules=IMAGE_MODULES | PAGE_MODULES,
    ),
    "kosmos_2_5_text_model": replace(TEXT_MODEL, read_model=_read_kosmos2_5),
}

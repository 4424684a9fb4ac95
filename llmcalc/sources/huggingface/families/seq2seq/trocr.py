"""TrOCR's decoder (BART's with other positions) and Pix2Struct's decoder (T5's with a gated network).

Both attend to an image by cross-attention, which does not run on text alone.

transformers: models/trocr, models/pix2struct.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BART_DROPOUT, T5_DROPOUT
from ...family import Family, module_names
from ...parts import (
    ACTIVATIONS,
    IDLE_CROSS_ATTENTION_NOTE,
    QKVO_BIASES,
    Table,
    biases,
    decoder,
    layer_table,
    layernorm,
    learned_positions,
    mlp,
    rmsnorm,
)
from ..gpt.kosmos import PAGE_MODULES
from .bart import IGNORED_FIELDS


def _read_trocr(config: Config) -> Table:
    head_count, norm = config.integer("num_attention_heads"), layernorm()
    config.quotient("decoder_attention_heads", config.integer("hidden_size"), head_count)
    attention_table = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
    stack_fields: Table = {"position": {"type": "sinusoidal"}}
    if config.flag("use_learned_position_embeddings"):
        stack_fields = {"position": learned_positions(config, 2)}
    if config.flag("layernorm_embedding"):
        stack_fields["embedding_norm"] = norm
    ffn = mlp(config.integer("decoder_ffn_dim"), config.choice(ACTIVATIONS, "activation_function"))
    source_size = config.optional_integer("cross_attention_hidden_size")
    block = {
        "attention": attention_table,
        "cross_attention": attention_table,
        "idle_cross_attention": True,
        **({} if source_size in (None, config.integer("hidden_size")) else {"idle_source_size": source_size}),
        "feed_forward": ffn,
        "norm": norm,
        "norm_placement": "post",
    }
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    return decoder(config, block, None, stack=stack_fields)


def _read_pix2struct_text_model(config: Config) -> Table:
    config.require("is_decoder", True)
    head_count, norm = config.integer("num_attention_heads"), rmsnorm(config.number("layer_norm_epsilon"))
    if config.integer("d_kv") * head_count != config.integer("hidden_size"):
        raise config.error("d_kv", config.integer("d_kv"), "hidden_size / num_heads, for the class divides it so")
    activation = config.choice(ACTIVATIONS, "dense_act_fn")
    ffn = {"intermediate_size": config.integer("d_ff"), "hidden_act": activation, "gated": True}
    relative_bias = {
        "num_attention_heads": head_count,
        **config.integer_fields("relative_attention_num_buckets", "relative_attention_max_distance"),
    }
    attention = {"num_attention_heads": head_count}
    block = layer_table(
        attention, ffn, norm, cross_attention={"num_attention_heads": head_count}, idle_cross_attention=True
    )
    config.notes.append(IDLE_CROSS_ATTENTION_NOTE)
    return decoder(config, block, norm, stack={"relative_bias": relative_bias})


FAMILIES = {
    "trocr": Family(
        _read_trocr,
        ignored_fields=IGNORED_FIELDS,
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "decoder_layers",
            "num_attention_heads": "decoder_attention_heads",
        },
        modules={**module_names("bart"), "lm_head": "output_projection"},
        dropout_fields=BART_DROPOUT,
    ),
    "pix2struct": Family(
        None,
        text_type="pix2struct_text_model",
        tower_file="kosmos",
        modules={"towers.vision_model": "encoder", "towers.o_proj": "output", **PAGE_MODULES},
    ),
    "pix2struct_text_model": Family(
        _read_pix2struct_text_model,
        ignored_fields=frozenset({"feed_forward_proj", "is_gated_act"}),
        dropout_fields=T5_DROPOUT,
    ),
}

"""KOSMOS-2: CLIP and learned queries (Peng 2023, arXiv:2306.14824, §2). KOSMOS-2.5 and Pix2Struct: patches of any page.

Pix2Struct (Lee 2022, arXiv:2210.03347, §2.1); KOSMOS-2.5 (Lv 2023, arXiv:2309.11419, §2.1). transformers:
models/kosmos2, kosmos2_5, pix2struct (`Pix2StructVisionModel`).
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import QKVO_BIASES, Table, biases, glu, layer_table, rmsnorm
from .section import projector, vision_section, vision_transformer
from .siglip import clip_encoder


def _image_to_text(root_config: Config, encoder_width: int, text_hidden_size: int, **projector_fields: object) -> Table:
    """Returns KOSMOS's projectors: a linear layer, and learned queries that attend to its output and each other."""
    text_config = root_config.section("text_config", {"attention_heads": 32})
    head_count = text_config.integer("attention_heads", "num_attention_heads")
    head_dim = text_config.quotient("attention_heads", text_hidden_size, head_count)
    attention = {"num_attention_heads": head_count, "head_dim": head_dim, **biases(True, *QKVO_BIASES)}
    resampler = {
        "queries": root_config.integer("latent_query_num"),
        "hidden_size": text_hidden_size,
        "attention": attention,
        "projected": False,
        "reads_queries": True,
    }
    linear_layer = (text_hidden_size, True, "identity")
    return {
        "image_projection": projector(encoder_width, linear_layer, **projector_fields),
        "image_to_text_projection": projector(text_hidden_size, resampler=resampler, **projector_fields),
    }


def _read_kosmos2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    projectors = _image_to_text(
        root_config, config.integer("hidden_size"), text_hidden_size, reads_class_embedding=True
    )
    return {"vision_model": clip_encoder(config), **projectors}


def _page_encoder(config: Config, ffn_width: int, head_dim: int, positions: int) -> Table:
    """Returns Pix2Struct's encoder: T5's layers without biases; vectors encode a patch's row and column."""
    norm, head_count = rmsnorm(config.number("layer_norm_eps")), config.integer("num_attention_heads")
    attention = {"num_attention_heads": head_count, "head_dim": head_dim}
    ffn = glu(config, ffn_width=ffn_width, activation_field="dense_act_fn")
    return vision_transformer(
        config.with_fields(patch_size=1),
        layer_table(attention, ffn, norm),
        stack={"final_norm": norm},
        patch_fields={"num_channels": config.integer("patch_embed_hidden_size"), "bias": True},
        positions={"rows": positions, "axes": 2},
    )


def _read_kosmos2_5(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    sizes = config.integer_fields("intermediate_size", "head_dim", "max_num_patches")
    return {
        "vision_model": _page_encoder(config, *sizes.values()),
        **_image_to_text(root_config, config.integer("hidden_size"), text_hidden_size),
    }


def _read_pix2struct(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Pix2Struct, whose decoder reads the encoder's output without a projection."""
    config.require("hidden_size", text_hidden_size)
    return {"vision_model": _page_encoder(config, *config.integer_fields("d_ff", "d_kv", "seq_len").values())}


KOSMOS2_5_DEFAULTS: Table = class_defaults("kosmos_2_5_vision_model")
PIX2STRUCT_DEFAULTS: Table = class_defaults("pix2struct_vision_model")
PAGE_FIELDS = field_names("""
    dropout_rate initializer_factor layer_norm_bias relative_attention_max_distance relative_attention_num_buckets
    """)

WRAPPERS = {
    "kosmos-2": vision_section(
        _read_kosmos2,
        {"kosmos_2_vision_model": class_defaults("kosmos_2_vision_model")},
        ignored_fields=frozenset({"initializer_factor"}),
    ),
    "kosmos-2.5": vision_section(
        _read_kosmos2_5,
        {"kosmos_2_5_vision_model": KOSMOS2_5_DEFAULTS},
        ignored_fields=PAGE_FIELDS,
    ),
    "pix2struct": vision_section(
        _read_pix2struct, {"pix2struct_vision_model": PIX2STRUCT_DEFAULTS}, ignored_fields=PAGE_FIELDS
    ),
}

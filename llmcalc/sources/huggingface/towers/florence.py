"""Florence-2's vision encoder: DaViT, positions of its grid, the mean of its outputs, and one linear layer.

Xiao 2023 (arXiv:2311.06242, §4.1). transformers: models/florence2 (`Florence2VisionBackbone`,
`Florence2MultiModalProjector`). The repository's own code (modeling_florence2.py of microsoft/Florence-2-large) has the
same layers under other names of fields.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, layernorm, mlp
from .section import projector, vision_section

IMAGE_SIDE = 768
"""The side of an image in the published processor (preprocessor_config.json of microsoft/Florence-2-large)."""

OWN_CODE_TYPES = ("davit", "florence2_vision")
"""The model types that versions of the repository's own code give the encoder; the published configs have an empty one
(configuration_florence2.py, config.json).
"""


def _has_fields_of_own_code(config: Config) -> bool:
    """Whether a config has the form of the repository's own code, recognized by the field of the stages' widths."""
    if {"embed_dim", "dim_embed"} & config.config_fields.keys():
        return "embed_dim" not in config.config_fields
    return config.model_type in OWN_CODE_TYPES


def _stage_values(config: Config) -> list[dict[str, Any]]:
    """Returns each config field's list of values, one per stage of the encoder."""
    stage_count = len(config.integers("embed_dim"))
    values_by_field: dict[str, list[Any]] = {}
    for field_name in ("embed_dim", "depths", "patch_size", "patch_stride", "patch_padding", "num_heads", "num_groups"):
        values_by_field[field_name] = config.integers(field_name)
        least = 0 if field_name == "patch_padding" else 1
        if len(values_by_field[field_name]) != stage_count or min(values_by_field[field_name], default=-1) < least:
            raise config.field_error(field_name, f"{stage_count or 1} numbers of at least {least}, one per stage")
    pre_norms = config.get("patch_prenorm")
    if not isinstance(pre_norms, list | tuple) or {*map(type, pre_norms)} != {bool} or len(pre_norms) != stage_count:
        raise config.error("patch_prenorm", pre_norms, f"true or false for each of {stage_count} stages")
    values_by_field["patch_prenorm"] = list(pre_norms)
    return [dict(zip(values_by_field, values, strict=True)) for values in zip(*values_by_field.values(), strict=True)]


def _read_florence2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    is_own_code = _has_fields_of_own_code(config)
    if is_own_code:
        config = replace(config, defaults=OWN_CODE_DEFAULTS)
    config.require("projection_dim", text_hidden_size)
    stage_values = _stage_values(config)
    stage_tables: list[Table] = []
    for values in stage_values:
        kernel_size, stride, padding = (values[f"patch_{name}"] for name in ("size", "stride", "padding"))
        if not kernel_size - stride <= 2 * padding < kernel_size:
            raise config.field_error(
                "patch_padding",
                "patch_size − patch_stride ≤ 2 · patch_padding < patch_size in every stage, so that the stride divides "
                "the sides of the grid",
            )
        hidden_size = values["embed_dim"]
        stage_tables.append(
            {
                "hidden_size": hidden_size,
                "kernel": kernel_size,
                "stride": stride,
                "pre_norm": values["patch_prenorm"],
                "num_hidden_layers": values["depths"],
                "num_attention_heads": values["num_heads"],
                "channel_groups": values["num_groups"],
                "feed_forward": mlp(
                    int(hidden_size * config.number("mlp_ratio")), config.choice(ACTIVATIONS, "activation_function")
                ),
            }
        )
    total_stride = prod(values["patch_stride"] for values in stage_values)
    if IMAGE_SIDE % total_stride:
        raise config.field_error("patch_stride", f"strides whose product divides {IMAGE_SIDE}, the side of an image")
    return {
        "vision_tower": {
            "type": "davit",
            "num_channels": config.integer("in_channels"),
            "grid": IMAGE_SIDE // total_stride,
            "stages": stage_tables,
            "window_size": config.integer("window_size"),
            "qkv_bias": config.flag("qkv_bias"),
            "norm": layernorm(),
        },
        "multi_modal_projector": projector(
            stage_tables[-1]["hidden_size"],
            (text_hidden_size, False, "identity"),
            mean_vector=True,
            out_norm=layernorm(),
            **_position_counts(config, is_own_code),
        ),
    }


def _position_counts(config: Config, is_own_code: bool) -> Table:
    """Returns the position counts of the grid and of frames, which the repository's own code states in tables."""
    if not is_own_code:
        return {
            "grid_positions": config.integer("max_position_embeddings"),
            "frame_positions": config.integer("max_temporal_embeddings"),
        }
    sources = config.get("image_feature_source")
    if sources != ["spatial_avg_pool", "temporal_avg_pool"]:
        raise config.error("image_feature_source", sources, "spatial_avg_pool and temporal_avg_pool")
    grid, frames = config.section("image_pos_embed"), config.section("visual_temporal_embedding")
    grid.require("type", "learned_abs_2d")
    frames.require("type", "COSINE")
    return {
        "grid_positions": grid.integer("max_pos_embeddings"),
        "frame_positions": frames.integer("max_temporal_embeddings"),
    }


CLASS_DEFAULTS: Table = class_defaults("florence_vision")
OWN_CODE_DEFAULTS: Table = {
    **CLASS_DEFAULTS,
    "embed_dim": (256, 512, 1024, 2048),
    "num_heads": (8, 16, 32, 64),
    "num_groups": (8, 16, 32, 64),
    "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
}
"""Defaults of configuration_florence2.py, and values that its code always uses, whatever a config states."""

WRAPPERS = {
    "florence2": vision_section(
        _read_florence2,
        dict.fromkeys(("florence_vision", *OWN_CODE_TYPES), CLASS_DEFAULTS),
        ignored_fields=field_names("drop_path_rate enable_checkpoint"),
        aliases={"embed_dim": "dim_embed"},
    )
}

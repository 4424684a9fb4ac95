"""Florence-2's vision encoder: DaViT, positions of its grid, the mean of its outputs, and one linear layer.

Xiao 2023 (arXiv:2311.06242, §4.1). transformers: models/florence2 (`Florence2VisionBackbone`,
`Florence2MultiModalProjector`). The repository's own code (modeling_florence2.py of microsoft/Florence-2-large) has the
same layers under other names of fields.
"""

from __future__ import annotations

from typing import Any

from ....components.base import MOST_LAYERS
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, layernorm, mlp
from .section import projector, vision_section

IMAGE_SIDE = 768
"""The side of an image in the published processor (preprocessor_config.json of microsoft/Florence-2-large)."""

OWN_CODE = "davit"
"""The model type of the encoder in configs of the repository's own code."""

STAGE_FIELDS = (
    *("depths", "patch_size", "patch_stride", "patch_padding", "patch_prenorm"),
    *("num_heads", "num_groups"),
)
"""The fields with one value per stage, beside the stages' widths."""


def _stage_values(config: Config, width_field: str) -> list[dict[str, Any]]:
    """Returns the values of each stage by field. width_field: the field of the stages' widths."""
    widths = config.integers(width_field)
    values_by_field: dict[str, list[Any]] = {width_field: widths}
    for field_name in STAGE_FIELDS:
        values: Any = config.get(field_name)
        value_type = bool if field_name == "patch_prenorm" else int
        if not isinstance(values, list | tuple) or {*map(type, values)} != {value_type} or len(values) != len(widths):
            raise config.error(field_name, values, f"{len(widths)} values, as many as {width_field} has")
        if field_name not in ("patch_prenorm", "patch_padding") and min(values) < 1:
            raise config.error(field_name, values, "positive whole numbers")
        values_by_field[field_name] = list(values)
    if max(values_by_field["depths"]) > MOST_LAYERS:
        raise config.error("depths", values_by_field["depths"], f"at most {MOST_LAYERS:,} layers")
    return [dict(zip(values_by_field, values, strict=True)) for values in zip(*values_by_field.values(), strict=True)]


def _read_florence2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    is_own_code = config.model_type == OWN_CODE
    width_field = "dim_embed" if is_own_code else "embed_dim"
    config.require("projection_dim", text_hidden_size)
    stage_tables: list[Table] = []
    total_stride = 1
    for values in _stage_values(config, width_field):
        kernel_size, stride, padding = (values[f"patch_{name}"] for name in ("size", "stride", "padding"))
        if not kernel_size - stride <= 2 * padding < kernel_size:
            raise config.field_error("patch_padding", "what leaves a stride's part of each side of the grid")
        total_stride *= stride
        hidden_size = values[width_field]
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
    """Returns the numbers of positions of the grid and of frames, which the repository's own code states in tables."""
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


COMMON_DEFAULTS: Table = {
    "in_channels": 3,
    "depths": (1, 1, 9, 1),
    "patch_size": (7, 3, 3, 3),
    "patch_stride": (4, 2, 2, 2),
    "patch_padding": (3, 1, 1, 1),
    "patch_prenorm": (False, True, True, True),
    "window_size": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "activation_function": "gelu",
    "projection_dim": 1024,
}
CLASS_DEFAULTS: Table = {
    **COMMON_DEFAULTS,
    "embed_dim": (128, 256, 512, 1024),
    "num_heads": (4, 8, 16, 32),
    "num_groups": (4, 8, 16, 32),
    "max_position_embeddings": 50,
    "max_temporal_embeddings": 100,
}
WRAPPERS = {
    "florence2": vision_section(
        _read_florence2,
        {"florence_vision": CLASS_DEFAULTS, OWN_CODE: COMMON_DEFAULTS},
        ignored_fields=field_names("""
            dim_embed drop_path_rate enable_checkpoint image_feature_source image_pos_embed max_pos_embeddings
            visual_temporal_embedding
            """),
    )
}

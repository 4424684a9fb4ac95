"""Vision encoders that merge square blocks of patches at their output: Qwen's, Kimi's, ERNIE's and MiniMax's.

Cohere Compass, Cosmos 3, EXAONE 4.5 and HyperCLOVA X Vision 2 have Qwen's.

transformers: models/qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, qwen4_exp, exaone4_5,
    cosmos3_omni, hyperclovax_vision_v2, kimi_k25, ernie4_5_vl_moe, minimax_m3_vl.
"""

from __future__ import annotations

from typing import Any

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, glu, layer_pattern, layernorm, mlp, rmsnorm
from .section import ROTARY_POSITION, biased_layer, projector, two_linear_layers, vision_section, vision_transformer

PIXELS_BY_PATCH_SIZE = {14: (56 * 56, 3584 * 3584), 16: (256 * 256, 4096 * 4096)}
"""Patch size → the least and the most pixels of an image in the published `preprocessor_config.json`.

14: Qwen2-VL and Qwen2.5-VL (`min_pixels`, `max_pixels`). 16: Qwen3-VL and Qwen3.5 (`size`).
"""


def _resizing_rule(config: Config) -> Table:
    """Returns Qwen's rule for resizing images: both sides become multiples of a merged block's side in pixels."""
    least_pixels, most_pixels = PIXELS_BY_PATCH_SIZE.get(config.integer("patch_size"), PIXELS_BY_PATCH_SIZE[14])
    merge = config.integer("spatial_merge_size")
    return {"type": "smart_resize", "merge": merge, "min_pixels": least_pixels, "max_pixels": most_pixels}


def _patch_fields(config: Config, **patch_fields: Any) -> Table:
    num_channels = config.integer("in_channels")
    return {"num_channels": num_channels, "temporal_patch_size": config.integer("temporal_patch_size"), **patch_fields}


def _patch_merger(config: Config, input_width: int, output_width: int, norm: Table, **projector_fields: Any) -> Table:
    """Returns a merger: concatenated square blocks of patches through two linear layers."""
    merge_size = config.integer("spatial_merge_size")
    linear_layers = two_linear_layers(output_width, inner_width=input_width * merge_size * merge_size)
    return projector(input_width, *linear_layers, merge=merge_size, norm=norm, **projector_fields)


def _merging_encoder(
    config: Config, block: Table, merger_norm: Table, output_width: int, **encoder_fields: Any
) -> Table:
    """Returns an encoder of `depth` layers, with a merger of patches to the width `output_width`.

    Without learned positions the class has no vectors besides those of the layers; else it holds the positions.
    """
    image_resizing, frees_first_input = _resizing_rule(config), "positions" not in encoder_fields
    visual = vision_transformer(
        config, block, depth_field="depth", image=image_resizing, frees_first_input=frees_first_input, **encoder_fields
    )
    visual_merger = _patch_merger(config, config.integer("hidden_size"), output_width, merger_norm)
    return {"visual": visual, "visual_merger": visual_merger}


def _read_qwen2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen2-VL: patches of several frames; `hidden_size` is the merger's output width."""
    norm, embed_dim = layernorm(1e-6), config.integer("embed_dim")
    encoder_config = config.with_fields(hidden_size=embed_dim)
    ffn = mlp(embed_dim * config.integer("mlp_ratio"), config.choice(ACTIVATIONS, "hidden_act"))
    block = biased_layer(encoder_config, norm, heads_field="num_heads", ffn=ffn, **ROTARY_POSITION)
    output_width = config.integer("hidden_size")
    return _merging_encoder(encoder_config, block, norm, output_width, patch_fields=_patch_fields(config))


def read_qwen2_5(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen2.5-VL: RMSNorm, gated layers, and attention within squares of patches in most layers."""
    norm = rmsnorm(1e-6)
    block = biased_layer(config, norm, heads_field="num_heads", ffn=glu(config, bias=True), **ROTARY_POSITION)
    output_width = config.integer("out_hidden_size")
    return _merging_encoder(
        config, block, norm, output_width, stack=_window_stack(config), patch_fields=_patch_fields(config)
    )


def _window_stack(config: Config) -> Table:
    """Returns stack fields for layers that attend within squares of patches, except a few with full attention."""
    merge_size, patch_size, window = config.integer_fields("spatial_merge_size", "patch_size", "window_size").values()
    window_side = window // merge_size // patch_size * merge_size
    if window_side == 0:
        raise config.error("window_size", window, f"{merge_size * patch_size} or more, the side of merged patches")
    full_blocks, depth = config.get("fullatt_block_indexes"), config.integer("depth")
    if not isinstance(full_blocks, list | tuple) or any(type(layer_index) is not int for layer_index in full_blocks):
        raise config.error("fullatt_block_indexes", full_blocks, "a list of layers")
    layer_kinds = ["block" if layer_index in full_blocks else "windowed" for layer_index in range(depth)]
    if "windowed" not in layer_kinds:
        return {}
    return {"variants": {"windowed": {"attention": {"grid_window": window_side}}}, **layer_pattern(layer_kinds)}


def _read_exaone(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads EXAONE 4.5: like Qwen2.5-VL, with fewer heads of keys and values than of queries."""
    towers = read_qwen2_5(root_config, config, text_hidden_size)
    head_count, kv_head_count = config.integer("num_heads"), config.integer("num_key_value_heads")
    config.quotient("num_key_value_heads", head_count, kv_head_count)
    attention = towers["visual"]["stack"]["block"]["attention"]
    attention["num_key_value_heads"] = kv_head_count
    return towers


def _read_hyperclovax(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads HyperCLOVA X Vision 2: Qwen2.5-VL's encoder, and one linear layer on the merger's output."""
    towers = read_qwen2_5(root_config, config, text_hidden_size)
    return {
        "vision_model": towers["visual"],
        "vision_merger": towers["visual_merger"],
        "projector": projector(config.integer("out_hidden_size"), (text_hidden_size, True, "identity")),
    }


def _read_qwen3_5(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen3.5: a learned position embedding and RoPE."""
    norm, position_table = layernorm(1e-6), {"rows": config.integer("num_position_embeddings")}
    block = biased_layer(config, norm, heads_field="num_heads", **ROTARY_POSITION)
    output_width = config.integer("out_hidden_size")
    patch_fields = _patch_fields(config, bias=True)
    return _merging_encoder(config, block, norm, output_width, patch_fields=patch_fields, positions=position_table)


def read_qwen3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen3-VL: like Qwen3.5, with additional mergers for the outputs of lower layers (DeepStack).

    Meng 2024 (arXiv:2406.04334).
    """
    layer_indices = config.get("deepstack_visual_indexes")
    if not isinstance(layer_indices, list | tuple) or len(layer_indices) > 90:
        raise config.error("deepstack_visual_indexes", layer_indices, "a list of layers")
    depth = config.integer("depth")
    deepstack_merger = _patch_merger(
        config, config.integer("hidden_size"), config.integer("out_hidden_size"), layernorm(1e-6), norm_of="merged"
    )
    return {
        **_read_qwen3_5(root_config, config, text_hidden_size),
        **{
            f"visual_deepstack_{merger_index}": deepstack_merger
            | ({"lower_layer": layer_index} if _is_layer_index(layer_index, depth) else {})
            for merger_index, layer_index in enumerate(layer_indices)
        },
    }


def _is_layer_index(layer_index: Any, depth: int) -> bool:
    """Whether a value is the index of one of `depth` layers; the class ignores other values."""
    return type(layer_index) is int and 0 <= layer_index < depth


def _read_kimi(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Kimi's MoonViT: a position embedding of rows by columns, and RoPE."""
    for field_name, published_name in KIMI_NAMES.items():
        stated_value = config.config_fields.get(field_name)
        is_stated_twice = stated_value is not None and published_name in config.config_fields
        if is_stated_twice and config.config_fields[published_name] != stated_value:
            raise config.error(
                published_name, config.config_fields[published_name], f"{stated_value}, as {field_name} says, or none"
            )
    config.require_if_present("mm_projector_type", "patchmerger")
    root_config.require("projection_hidden_size", config.integer("hidden_size"))
    position_rows = config.integer("pos_emb_height") * config.integer("pos_emb_width")
    tower, merger = moonvit(config, position_rows, text_hidden_size)
    image_resizing = {"type": "padded", "merge": merger["merge"], "max_patches": KIMI_PATCHES, "max_side": KIMI_SIDE}
    return {"vision_tower": {**tower, "image": image_resizing}, "mm_projector": merger}


KIMI_PATCHES, KIMI_SIDE = 16384, 512
"""The most patches of an image, and along one side, in the processor of Kimi K2.5; Kimi K3 has the same side."""


def moonvit(config: Config, position_rows: int, text_hidden_size: int, **layer_fields: Any) -> tuple[Table, Table]:
    """Returns MoonViT, and the projector that merges square patch blocks.

    position_rows: those of the position embedding. layer_fields: further arguments of `biased_layer`.
    """
    merge_kernel_size = config.get("merge_kernel_size")
    if (
        not isinstance(merge_kernel_size, list | tuple)
        or [*map(type, merge_kernel_size)] != [int, int]
        or not merge_kernel_size[0] == merge_kernel_size[1] > 0
    ):
        raise config.error("merge_kernel_size", merge_kernel_size, "two equal positive numbers")
    norm, merge_size, hidden_size = layernorm(1e-5), merge_kernel_size[0], config.integer("hidden_size")
    block = biased_layer(config, norm, **ROTARY_POSITION, **layer_fields)
    tower = vision_transformer(
        config, block, stack={"final_norm": norm}, patch_fields={"bias": True}, positions={"rows": position_rows}
    )
    inner_width = hidden_size * merge_size * merge_size
    return tower, projector(
        hidden_size, *two_linear_layers(text_hidden_size, inner_width=inner_width), merge=merge_size, norm=norm
    )


KIMI_NAMES = {
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "num_attention_heads": "vt_num_attention_heads",
    "num_hidden_layers": "vt_num_hidden_layers",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
}
"""Field of Kimi K2.5's vision encoder in transformers → its name in the code of the model's repository."""


def _read_ernie(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads ERNIE 4.5 VL: merges square blocks of patches, then pairs of frames.

    Each merger has two linear layers of four patches' width and a norm.
    """
    norm, merge_size = layernorm(config.number("rms_norm_eps")), config.integer("spatial_merge_size")
    tower = vision_transformer(
        config,
        biased_layer(config, layernorm(1e-6), heads_field="num_heads", **ROTARY_POSITION),
        depth_field="depth",
        stack={"final_norm": layernorm(1e-6)},
        patch_fields={"num_channels": config.integer("in_channels")},
    )
    merged_width = config.integer("hidden_size") * merge_size * merge_size
    linear_layers = two_linear_layers(merged_width)
    pixel_limits = {"min_pixels": 56 * 56, "max_pixels": ERNIE_PIXELS}
    image_resizing = {"type": "smart_resize", "merge": merge_size, **pixel_limits, "repeats_frames": True}
    frames = config.integer("temporal_merge_size")
    return {
        "vision_tower": {**tower, "image": image_resizing},
        "resampler_spatial": projector(config.integer("hidden_size"), *linear_layers, merge=merge_size, out_norm=norm),
        "resampler_temporal": projector(merged_width, *linear_layers, frames=frames, out_norm=norm),
        "resampler_out": projector(merged_width, (text_hidden_size, True, "identity"), out_norm=rmsnorm(1e-5)),
    }


def _read_minimax(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MiniMax-M3: two linear layers on each patch, then two linear layers on square blocks of patches.

    Published configs state both merge sizes in the table `img_token_compression_config`.
    """
    norm, projector_width = layernorm(config.number("layer_norm_eps")), root_config.integer("projector_hidden_size")
    compression_config = config.section("img_token_compression_config")
    temporal_patch_size, merge_size = (
        compression_config.integer(field_name) if compression_config.has(field_name) else config.integer(field_name)
        for field_name in ("temporal_patch_size", "spatial_merge_size")
    )
    patch_fields = {"num_channels": config.integer("num_channels"), "temporal_patch_size": temporal_patch_size}
    image_resizing = {
        "type": "smart_resize",
        "merge": merge_size,
        "min_pixels": 4 * 28**2,
        "max_pixels": MINIMAX_PIXELS,
        "marks": 2,
    }
    layer = biased_layer(config, norm, **ROTARY_POSITION)
    stack_fields = {"embedding_norm": norm}
    tower = vision_transformer(config, layer, stack=stack_fields, patch_fields=patch_fields, image=image_resizing)
    linear_layers = two_linear_layers(text_hidden_size, inner_width=projector_width)
    return {
        "vision_tower": tower,
        "multi_modal_projector": projector(config.integer("hidden_size"), *linear_layers),
        "multi_modal_merger": projector(text_hidden_size, *linear_layers, merge=merge_size),
    }


MINIMAX_PIXELS, ERNIE_PIXELS = 451_584, 28 * 28 * 6177
"""The most pixels of an image in the processors of MiniMax-M3 and ERNIE 4.5 VL."""


QWEN2_DEFAULTS: Table = class_defaults("qwen2_vl_vision")

QWEN2_5_DEFAULTS: Table = class_defaults("qwen2_5_omni_vision_encoder")

QWEN3_5_DEFAULTS: Table = class_defaults("qwen3_5_vision")

QWEN3_DEFAULTS: Table = {**QWEN3_5_DEFAULTS, "deepstack_visual_indexes": (8, 16, 24)}

IGNORED_FIELDS = frozenset(
    {"fullatt_block_indexes", "in_chans", "spatial_patch_size", "tokens_per_second", "window_size"}
)

INTERN_S2 = ("intern_s2_preview_vision", "intern_s2_preview", "qwen3_5_moe_vision", "qwen3_5_moe")

KIMI_FIELDS = field_names("""
    init_pos_emb_time merge_type mm_hidden_size mm_projector_type pos_emb_type projector_ln_eps text_hidden_size
    video_attn_type
    """)
"""Fields of Kimi K2.5's encoder that change no count."""

KIMI_DEFAULTS: Table = class_defaults("kimi_k25_vision")

ERNIE_DEFAULTS: Table = class_defaults("ernie4_5_vl_moe_vision")

MINIMAX_DEFAULTS: Table = class_defaults("minimax_m3_vl_vision")

MINIMAX_FIELDS = field_names("position_embedding_type rope_mode rope_theta vision_segment_max_frames")
"""Fields of MiniMax-M3's published encoder that change no count; its class has rotary positions in three dimensions."""

QWEN2_5_TYPES = {"qwen2_5_vl_vision": QWEN2_5_DEFAULTS, "qwen2_5_vl": QWEN2_5_DEFAULTS}
QWEN3_TYPES = {"qwen3_vl_vision": QWEN3_DEFAULTS, "qwen3_vl": QWEN3_DEFAULTS}
EXAONE_DEFAULTS: Table = {**QWEN2_5_DEFAULTS, "num_key_value_heads": 8}

WRAPPERS = {
    "qwen2_vl": vision_section(
        _read_qwen2, {"qwen2_vl_vision": QWEN2_DEFAULTS, "qwen2_vl": QWEN2_DEFAULTS}, ignored_fields=IGNORED_FIELDS
    ),
    "qwen2_5_vl": vision_section(read_qwen2_5, QWEN2_5_TYPES, ignored_fields=IGNORED_FIELDS),
    "exaone4_5": vision_section(_read_exaone, {"exaone4_5_vision": EXAONE_DEFAULTS}, ignored_fields=IGNORED_FIELDS),
    "hyperclovax_vision_v2": vision_section(_read_hyperclovax, QWEN2_5_TYPES, ignored_fields=IGNORED_FIELDS),
    "cosmos3_omni": vision_section(read_qwen3, QWEN3_TYPES),
    "qwen3_vl": vision_section(read_qwen3, QWEN3_TYPES),
    "qwen3_vl_moe": vision_section(read_qwen3, {"qwen3_vl_moe_vision": QWEN3_DEFAULTS, "qwen3_vl_moe": QWEN3_DEFAULTS}),
    "cohere_compass": vision_section(
        read_qwen3, {"cohere_compass_vision": QWEN3_DEFAULTS, "cohere_compass": QWEN3_DEFAULTS}
    ),
    "qwen3_5": vision_section(_read_qwen3_5, {"qwen3_5_vision": QWEN3_5_DEFAULTS, "qwen3_5": QWEN3_5_DEFAULTS}),
    "qwen3_5_moe": vision_section(
        _read_qwen3_5, {"qwen3_5_moe_vision": QWEN3_5_DEFAULTS, "qwen3_5_moe": QWEN3_5_DEFAULTS}
    ),
    "interns1_pro": vision_section(
        _read_qwen3_5, {"interns1_pro_vision": QWEN3_5_DEFAULTS, "interns1_pro": QWEN3_5_DEFAULTS}
    ),
    "intern_s2_preview": vision_section(_read_qwen3_5, dict.fromkeys(INTERN_S2, QWEN3_5_DEFAULTS)),
    "qwen4_exp": vision_section(_read_qwen3_5, {"qwen4_exp_vision": QWEN3_5_DEFAULTS, "qwen4_exp": QWEN3_5_DEFAULTS}),
    "kimi_k25": vision_section(
        _read_kimi,
        {"kimi_k25_vision": KIMI_DEFAULTS},
        ignored_fields=KIMI_FIELDS,
        aliases=KIMI_NAMES,
    ),
    "ernie4_5_vl_moe": vision_section(_read_ernie, {"ernie4_5_vl_moe_vision": ERNIE_DEFAULTS}),
    "minimax_m3_vl": vision_section(
        _read_minimax,
        {"minimax_m3_vl_vision": MINIMAX_DEFAULTS, "clip_vision_model": MINIMAX_DEFAULTS},
        ignored_fields=MINIMAX_FIELDS,
    ),
}

"""Vision encoders with RoPE (Mistral 3 and Large 4, LightOnOCR, Llama 4, LFM3-VL), and HunyuanOCR's vision encoder.

Pixtral (Agrawal 2024, arXiv:2410.07073). transformers: models/pixtral with models/mistral3, mistral_large4,
lighton_ocr; models/llama4, lfm3_vl, hunyuan_vl.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import (
    ACTIVATIONS,
    Table,
    glu,
    layer_pattern,
    layer_table,
    layernorm,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
)
from .section import (
    ROTARY_POSITION,
    biased_layer,
    merged_square_side,
    patches_per_side,
    projector,
    require_one_layer,
    self_attention,
    two_layer_projector,
    two_linear_layers,
    vision_section,
    vision_transformer,
)


def pixtral_encoder(config: Config) -> Table:
    """Returns Pixtral's encoder: an initial norm and gated layers without biases."""
    norm = rmsnorm(1e-5)
    block = layer_table(self_attention(config, **ROTARY_POSITION), glu(config), norm)
    stack_fields = {"embedding_norm": norm}
    return vision_transformer(
        config, block, stack=stack_fields, patch_fields={"num_channels": config.integer("num_channels")}
    )


def _read_mistral3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Mistral 3: square blocks of patches merged to the width of one patch, then two linear layers."""
    require_one_layer(root_config)
    merge_size, hidden_size = root_config.integer("spatial_merge_size"), config.integer("hidden_size")
    merger = two_layer_projector(root_config, hidden_size, text_hidden_size, merge=merge_size, norm=rmsnorm(1e-5))
    image_resizing = {"type": "longest_edge", "size": config.integer("image_size"), "merge": merge_size}
    return {
        "vision_tower": {**pixtral_encoder(config), "image": image_resizing},
        "multi_modal_projector": {**merger, "maps": [{"size": hidden_size}, *merger["maps"]]},
    }


def _read_lighton(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LightOnOCR: Mistral 3 without biases in the projector."""
    merge_size, hidden_size = root_config.integer("spatial_merge_size"), config.integer("hidden_size")
    linear_layers = ((hidden_size, False, "identity"), *two_linear_layers(text_hidden_size, bias=False))
    image_size = config.integer("image_size")
    image_resizing = {"type": "longest_edge", "size": image_size, "merge": merge_size, "line_marks": False}
    return {
        "vision_encoder": {**pixtral_encoder(config), "image": image_resizing},
        "vision_projection": projector(hidden_size, *linear_layers, merge=merge_size, norm=rmsnorm(1e-6)),
    }


LLAMA4_TILES = 16
"""The most tiles of an image in the published processors of Llama 4."""


def _image_tile_rule(config: Config, merge_size: int) -> Table:
    """Returns Llama 4's rule for cutting an image into tiles."""
    image_tokens = max(patches_per_side(config) ** 2 // merge_size**2, 1)
    return {"type": "canvas", "size": config.integer("image_size"), "max_tiles": LLAMA4_TILES, "tokens": image_tokens}


def _read_llama4(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Llama 4: a class vector, norms before and after the layers, and a pixel shuffle before the adapter.

    The adapter has two linear layers.
    """
    hidden_size, adapter_width, output_width = config.integer_fields(
        "hidden_size", "projector_input_dim", "projector_output_dim"
    ).values()
    merge_size = merged_square_side(config, "pixel_shuffle_ratio")
    config.require("intermediate_size", hidden_size * merge_size * merge_size)
    config.require("projector_input_dim", output_width)
    config.require("vision_output_dim", output_width)
    norm = layernorm(config.number("norm_eps"))
    tower = vision_transformer(
        config,
        biased_layer(config, norm, **ROTARY_POSITION),
        stack={"embedding_norm": norm, "final_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels")},
        positions={"rows": patches_per_side(config) ** 2 + 1},
        class_embedding=True,
        image=_image_tile_rule(config, merge_size),
    )
    return {
        "vision_model": tower,
        "vision_adapter": projector(
            hidden_size, (adapter_width, False, "gelu"), (output_width, False, "gelu"), merge=merge_size
        ),
        "multi_modal_projector": projector(output_width, (text_hidden_size, False, "identity")),
    }


def _read_lfm3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LFM3-VL: gated convolutions over the grid of patches, and some attention layers."""
    norm, kv_head_count = rmsnorm(config.number("norm_eps")), config.integer("num_key_value_heads")
    config.quotient("num_key_value_heads", config.integer("num_attention_heads"), kv_head_count)
    attention = self_attention(config, num_key_value_heads=kv_head_count, **ROTARY_POSITION, **qk_norm_fields(norm))
    kernel_size = config.integer("conv_kernel_size")
    if kernel_size % 2 == 0:
        raise config.error("conv_kernel_size", kernel_size, "an odd number")
    conv = {"type": "short_conv", "conv_L_cache": kernel_size, "grid": True}
    mixers: Table = {"conv": conv, "full": {"type": "attention", **attention}}
    default_layer_kinds = [
        "conv" if layer_index < 2 or layer_index % 2 else "full"
        for layer_index in range(config.integer("num_hidden_layers"))
    ]
    layer_kinds = listed_kinds(config, "layer_types", {"conv": "conv", "full_attention": "full"}, default_layer_kinds)
    ffn = {"intermediate_size": config.integer("intermediate_size"), "hidden_act": "silu", "gated": True}
    block = layer_table(mixers[layer_kinds[0]], ffn, norm)
    layer_changes = {layer_kind: {"attention": mixers[layer_kind]} for layer_kind in dict.fromkeys(layer_kinds)}
    stack_fields: Table = {"variants": layer_changes, **layer_pattern(layer_kinds)} if len(layer_changes) > 1 else {}
    num_channels = config.integer("in_channels")
    patch_fields = {"num_channels": num_channels, "temporal_patch_size": config.integer("temporal_patch_size")}
    tower = vision_transformer(config, block, stack={"embedding_norm": norm, **stack_fields}, patch_fields=patch_fields)
    has_bias, activation = root_config.flag("projector_bias"), root_config.choice(ACTIVATIONS, "projector_hidden_act")
    inner_width = root_config.integer("projector_hidden_size")
    linear_layers = two_linear_layers(text_hidden_size, activation, has_bias, inner_width)
    merge_size = config.integer("spatial_merge_size")
    merger = projector(config.integer("hidden_size"), *linear_layers, merge=merge_size, norm=layernorm(1e-6))
    return {"vision_tower": tower, "multi_modal_projector": merger}


def _read_hunyuan(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads HunyuanOCR: a position embedding, and a merger of patches that is four times the encoder's width.

    Vectors mark the ends of lines and of images.
    """
    eps, hidden_size = config.number("rms_norm_eps"), config.integer("hidden_size")
    position_rows = (config.integer("max_image_size") // config.integer("patch_size")) ** 2 + 1
    patch_fields = {"num_channels": config.integer("num_channels"), "bias": True}
    merge_size = config.integer("spatial_merge_size")
    image_resizing = {"type": "smart_resize", "merge": merge_size, **HUNYUAN_PIXELS, "line_marks": True, "marks": 2}
    block = biased_layer(config, layernorm(eps))
    tower = vision_transformer(
        config, block, patch_fields=patch_fields, positions={"rows": position_rows}, image=image_resizing
    )
    activation = config.choice(ACTIVATIONS, "hidden_act")
    linear_layers = two_linear_layers(4 * hidden_size, activation, inner_width=2 * hidden_size)
    merger = projector(hidden_size, *linear_layers, merge=merge_size, norm=rmsnorm(eps))
    marker_fields: Table = {"input_marks": 1, "output_marks": 3, "out_norm": rmsnorm(eps)}
    marker_projector = projector(4 * hidden_size, (text_hidden_size, True, "identity"), **marker_fields)
    return {"vision_tower": tower, "vision_merger": merger, "vision_projector": marker_projector}


HUNYUAN_PIXELS = {"min_pixels": 512 * 512, "max_pixels": 2048 * 2048}
"""The least and the most pixels of an image in the processor of HunyuanOCR."""

PIXTRAL_DEFAULTS: Table = class_defaults("pixtral")

LLAMA4_DEFAULTS: Table = class_defaults("llama4_vision_model")
LFM3_DEFAULTS: Table = class_defaults("lfm3_vl_vision")
HUNYUAN_DEFAULTS: Table = class_defaults("hunyuan_vl_vision")
HUNYUAN_FIELDS = field_names("""
    add_patchemb_bias anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views cat_extra_token
    hidden_size_text img_max_token_num interpolate_mode max_vit_seq_len min_image_size num_key_value_heads
    out_hidden_size remove_prenorm resize_resolution temporal_patch_size text_hidden_size
    video_max_image_size video_min_image_size
    """)
"""Fields of HunyuanOCR's encoder that change no count."""

WRAPPERS = {
    "mistral3": vision_section(
        _read_mistral3, {"pixtral": PIXTRAL_DEFAULTS}, default_section={"patch_size": 14, "image_size": 1540}
    ),
    "mistral_large4": vision_section(
        _read_mistral3,
        {"pixtral": PIXTRAL_DEFAULTS},
        default_section={
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 30,
            "patch_size": 14,
            "image_size": 1540,
            "hidden_act": "silu",
        },
    ),
    "lighton_ocr": vision_section(
        _read_lighton,
        {"pixtral": PIXTRAL_DEFAULTS},
        default_section={"patch_size": 14, "image_size": 1540, "hidden_act": "silu"},
    ),
    "llama4": vision_section(_read_llama4, {"llama4_vision_model": LLAMA4_DEFAULTS}),
    "lfm3_vl": vision_section(
        _read_lfm3,
        {"lfm3_vl_vision": LFM3_DEFAULTS},
    ),
    "hunyuan_vl": vision_section(_read_hunyuan, {"hunyuan_vl_vision": HUNYUAN_DEFAULTS}, ignored_fields=HUNYUAN_FIELDS),
}

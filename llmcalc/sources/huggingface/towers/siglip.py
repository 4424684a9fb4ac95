"""SigLIP (Zhai 2023, arXiv:2303.15343) and CLIP (Radford 2021, arXiv:2103.00020) as encoders for a text model.

transformers: models/siglip, siglip2 and clip, in models/git, gemma3, shieldgemma2, paligemma, aya_vision,
    cohere2_vision, lfm2_vl, t5gemma2, video_llama_3, minicpmv4_6, cosmos3_edge.
"""

from __future__ import annotations

from typing import Any

from ....errors import short_repr
from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, layernorm, rmsnorm
from .section import (
    ROTARY_POSITION,
    TowerSection,
    biased_layer,
    patches_per_side,
    projector,
    two_linear_layers,
    vision_section,
    vision_transformer,
)

GEMMA3_MARKS = 4
"""The tokens that Gemma 3's processor writes around an image: line ends, the start and the end of the image."""

AYA_TILES = 12
"""The most tiles of an image in the published processors of Aya Vision and Command A Vision."""


def siglip_encoder(config: Config) -> Table:
    """Returns SigLIP's encoder: a position embedding for the patches of an image, and an optional pooling head."""
    return siglip_with_positions(config, patches_per_side(config) ** 2, config.flag("vision_use_head"))


def siglip2_encoder(config: Config) -> Table:
    """Returns SigLIP 2's encoder, whose position embedding has a number of rows and fits images of any shape."""
    return siglip_with_positions(config, config.integer("num_patches"), config.flag("vision_use_head"))


def siglip_with_positions(
    config: Config, position_rows: int, has_pooling: bool = False, **attention_fields: Any
) -> Table:
    """Returns an encoder with SigLIP's layers. position_rows: rows of the position embedding; 0 for none.

    attention_fields: further fields of its attention.
    """
    norm = layernorm(config.number("layer_norm_eps"))
    block = biased_layer(config, norm, **attention_fields)
    encoder_fields: Table = {"positions": {"rows": position_rows}} if position_rows else {}
    if has_pooling:
        encoder_fields["pooling"] = {
            "attention": block["attention"],
            "feed_forward": block["feed_forward"],
            "norm": norm,
        }
    patch_fields = {"num_channels": config.integer("num_channels"), "bias": True}
    return vision_transformer(config, block, stack={"final_norm": norm}, patch_fields=patch_fields, **encoder_fields)


def _read_video_llama(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads VideoLLaMA 3: SigLIP with RoPE instead of a position embedding, and two linear layers."""
    image_resizing = {"type": "smart_resize", "merge": 1, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    tower = {**siglip_with_positions(config, position_rows=0, **ROTARY_POSITION), "image": image_resizing}
    input_width = config.integer("hidden_size")
    return {"vision_model": tower, "projector": projector(input_width, *two_linear_layers(text_hidden_size))}


def _read_paddleocr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads PaddleOCR-VL: SigLIP with a position embedding and RoPE; two linear layers over merged patches."""
    hidden_size, merge_size = config.integer("hidden_size"), config.integer("spatial_merge_size")
    linear_layers = two_linear_layers(text_hidden_size, inner_width=hidden_size * merge_size**2)
    visual = siglip_with_positions(config, patches_per_side(config) ** 2, **ROTARY_POSITION)
    return {"visual": visual, "projector": projector(hidden_size, *linear_layers, merge=merge_size, norm=layernorm())}


def _read_cosmos3_edge(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Cosmos 3 Edge: SigLIP 2, and two linear layers over merged square blocks of patches."""
    linear_layers = two_linear_layers(text_hidden_size, inner_width=root_config.integer("projector_hidden_size"))
    merge_fields: Table = {"merge": config.integer("spatial_merge_size"), "norm": layernorm(1e-6)}
    return {
        "visual": siglip_with_positions(config, config.integer("num_patches")),
        "projector": projector(config.integer("hidden_size"), *linear_layers, **merge_fields),
    }


def _read_modernvbert(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads ModernVBERT and UltraVBERT: SigLIP, a linear layer over merged patches, in UltraVBERT also a norm."""
    out_norm = {"out_norm": rmsnorm()} if root_config.model_type == "ultravbert" else {}
    linear_layer = (text_hidden_size, False, "identity")
    merge_size = root_config.integer("pixel_shuffle_factor")
    connector = projector(config.integer("hidden_size"), linear_layer, merge=merge_size, **out_norm)
    return {"vision_model": siglip_encoder(config), "connector": connector}


def _read_minicpm(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MiniCPM-V 4.6: SigLIP, patch mergers between its layers, and networks over blocks of four patches.

    The merger runs unless `downsample_mode` is `4x`.
    """
    window_side, hidden_size = _side_of_square(config, "window_kernel_size"), config.integer("hidden_size")
    if _side_of_square(root_config, "merge_kernel_size") != 2:
        raise root_config.field_error("merge_kernel_size", "[2, 2]")
    tower = siglip_with_positions(config, patches_per_side(config) ** 2)
    depth, lower_layer_count = config.integer("num_hidden_layers"), root_config.count("insert_layer_id") + 1
    if lower_layer_count >= depth:
        raise root_config.error(
            "insert_layer_id", lower_layer_count - 1, f"at most {depth - 2}, with a layer after the merger"
        )
    attention = {**tower["stack"]["block"]["attention"], "grid_window": window_side}
    intermediate_size = config.integer("intermediate_size") * window_side * window_side
    norm = layernorm(config.number("layer_norm_eps"))
    merger = {"side": window_side, "attention": attention, "intermediate_size": intermediate_size, "norm": norm}
    upper_stack = {**tower["stack"], "num_hidden_layers": depth - lower_layer_count}
    lower_stack = {"num_hidden_layers": lower_layer_count, "block": tower["stack"]["block"]}
    mergers: Table = {}
    merger_count = root_config.integer("merger_times")
    for merger_index in range(merger_count):
        output_width = text_hidden_size if merger_index == merger_count - 1 else hidden_size
        linear_layers = two_linear_layers(output_width, inner_width=4 * hidden_size)
        merge_fields: Table = {"merge": 2, "norm": layernorm(1e-6), "norm_of": "merged"}
        mergers[f"vision_merger_{merger_index}"] = projector(hidden_size, *linear_layers, **merge_fields)
    return {"vision_tower": {**tower, "stack": lower_stack, "merger": merger, "upper_stack": upper_stack}, **mergers}


def _side_of_square(config: Config, field_name: str) -> int:
    """Returns the side of a square image or patch from a config's list of two equal sides."""
    side_lengths = config.get(field_name)
    if (
        not isinstance(side_lengths, list | tuple)
        or len(side_lengths) != 2
        or side_lengths[0] != side_lengths[1]
        or type(side_lengths[0]) is not int
    ):
        raise config.error(field_name, side_lengths, "two equal whole numbers")
    return side_lengths[0]


def clip_encoder(config: Config) -> Table:
    """Returns CLIP's encoder: a class vector, a norm before and after the layers."""
    norm = layernorm(config.number("layer_norm_eps"))
    return vision_transformer(
        config,
        biased_layer(config, norm),
        stack={"embedding_norm": norm, "final_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels")},
        positions={"rows": patches_per_side(config) ** 2 + 1},
        class_embedding=True,
    )


def _read_clip(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads CLIP: its image encoder, and a linear layer from the class vector to the width of text embeddings."""
    linear_layer = (root_config.integer("projection_dim"), False, "identity")
    visual_projection = projector(config.integer("hidden_size"), linear_layer)
    return {"vision_model": clip_encoder(config), "visual_projection": visual_projection}


def _read_git(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GIT: CLIP's encoder, and a linear layer and a norm over all of its vectors."""
    image_count = root_config.get("num_image_with_embedding")
    if image_count is not None:
        config.notes.append(f"num_image_with_embedding: vectors of {short_repr(image_count)} images are not counted")
    out_norm = layernorm(config.number("layer_norm_eps"))
    linear_layer = (text_hidden_size, True, "identity")
    input_width = config.integer("hidden_size")
    visual_projection = projector(input_width, linear_layer, out_norm=out_norm, reads_class_embedding=True)
    return {"image_encoder": clip_encoder(config), "visual_projection": visual_projection}


def _read_gemma3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Gemma 3: SigLIP, and the average of each square block of patches."""
    tokens_per_side, grid_side = int(root_config.integer("mm_tokens_per_image") ** 0.5), patches_per_side(config)
    if grid_side < tokens_per_side:
        raise root_config.error(
            "mm_tokens_per_image", tokens_per_side * tokens_per_side, f"at most {grid_side**2}, the patches of an image"
        )
    merge = grid_side // tokens_per_side
    pooling_table = {"merge": merge, "merged": "mean", "norm": rmsnorm(config.number("layer_norm_eps"))}
    projector_table = projector(config.integer("hidden_size"), (text_hidden_size, False, "identity"), **pooling_table)
    tokens = tokens_per_side * tokens_per_side
    image_resizing = {"type": "fixed", "size": config.integer("image_size"), "tokens": tokens, "marks": GEMMA3_MARKS}
    vision_tower = {**siglip_encoder(config), "image": image_resizing}
    return {"vision_tower": vision_tower, "multi_modal_projector": projector_table}


def _read_t5gemma2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads T5Gemma 2: as Gemma 3, with a learned vector after each image.

    Encoder and decoder share the vector if their embeddings are tied.
    """
    towers = _read_gemma3(root_config, config, text_hidden_size)
    towers["vision_tower"].pop("image")
    towers["multi_modal_projector"]["output_marks"] = 1 if root_config.flag("tie_word_embeddings") else 2
    return towers


def _read_paligemma(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads PaliGemma: SigLIP and one linear layer."""
    image_resizing = {"type": "fixed", "size": config.integer("image_size"), "tokens": patches_per_side(config) ** 2}
    linear_layer = (root_config.integer("projection_dim"), True, "identity")
    return {
        "vision_tower": {**siglip_encoder(config), "image": image_resizing},
        "multi_modal_projector": projector(config.integer("hidden_size"), linear_layer),
    }


def _gated_projector(
    root_config: Config, config: Config, text_hidden_size: int, gated_width: int, **projector_fields: object
) -> Table:
    """Returns a gated projection of concatenated square blocks of patches."""
    linear_layers = [
        {"size": gated_width, "bias": True, "hidden_act": "silu", "gated": True},
        {"size": text_hidden_size, "bias": True},
    ]
    merge = root_config.integer("downsample_factor")
    return {**projector(config.integer("hidden_size"), merge=merge, **projector_fields), "maps": linear_layers}


def _image_tile_rule(root_config: Config, config: Config) -> Table:
    """Returns Aya Vision's rule for cutting an image into tiles: a marker token per tile, and two per image."""
    merge_size = root_config.integer("downsample_factor")
    image_tokens = max((patches_per_side(config) // merge_size) ** 2, 1)
    image_size = config.integer("image_size")
    return {
        "type": "tiles",
        "size": image_size,
        "max_tiles": AYA_TILES,
        "tokens": image_tokens,
        "tile_marks": 1,
        "marks": 2,
    }


def _read_aya(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    gated_width = text_hidden_size
    if root_config.has("alignment_intermediate_size"):
        gated_width = root_config.integer("alignment_intermediate_size")
    norm = layernorm(root_config.number("adapter_layer_norm_eps"))
    return {
        "vision_tower": {**siglip_encoder(config), "image": _image_tile_rule(root_config, config)},
        "multi_modal_projector": _gated_projector(
            root_config, config, text_hidden_size, gated_width, norm=norm, norm_of="merged"
        ),
    }


def _read_cohere2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    vision_tower = {**siglip_encoder(config), "image": {**_image_tile_rule(root_config, config), "least_scaling": True}}
    gated_width = root_config.integer("alignment_intermediate_size")
    multi_modal_projector = _gated_projector(root_config, config, text_hidden_size, gated_width)
    return {"vision_tower": vision_tower, "multi_modal_projector": multi_modal_projector}


LFM2_LIMITS: Table = {
    "size": 512,
    "min_tiles": 2,
    "max_tiles": 10,
    "min_tokens": 64,
    "tokens": 256,
    "tile_marks": 1,
    "marks": 2,
}
"""Limits of LFM2-VL's processor: tiles in pixels, their number, tokens of a whole image, tokens around them."""


def _read_lfm2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LFM2-VL: concatenated square blocks of patches, a norm, and two linear layers."""
    bias, activation = root_config.flag("projector_bias"), root_config.choice(ACTIVATIONS, "projector_hidden_act")
    projector_use_layernorm = root_config.flag("projector_use_layernorm")
    norm_fields: Table = {"norm": layernorm(), "norm_of": "merged"} if projector_use_layernorm else {}
    linear_layers = two_linear_layers(text_hidden_size, activation, bias, root_config.integer("projector_hidden_size"))
    merge_size = root_config.integer("downsample_factor")
    image_resizing = {"type": "native_tiles", "merge": merge_size, **LFM2_LIMITS}
    vision_tower = {**siglip2_encoder(config), "image": image_resizing}
    multi_modal_projector = projector(config.integer("hidden_size"), *linear_layers, merge=merge_size, **norm_fields)
    return {"vision_tower": vision_tower, "multi_modal_projector": multi_modal_projector}


VIT_B: Table = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
}
"""Sizes of the base vision transformer, which are CLIP's and SigLIP's defaults."""
VIT_L: Table = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
"""Sizes of CLIP's large vision transformer for images of 336 pixels."""
COMMON_DEFAULTS: Table = {
    **VIT_B,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}
SIGLIP_DEFAULTS: Table = {**COMMON_DEFAULTS, "image_size": 224}
SIGLIP2_DEFAULTS: Table = {**COMMON_DEFAULTS, "num_patches": 256}
CLIP_DEFAULTS: Table = class_defaults("clip_vision_model")
CLIP_LARGE_DEFAULTS: Table = {**CLIP_DEFAULTS, **VIT_L, "image_size": 224}

ONLY_SIGLIP = {"siglip_vision_model": SIGLIP_DEFAULTS}
SO400M: Table = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "num_attention_heads": 16,
    "vision_use_head": False,
}
"""The encoder that several classes build if their config describes none."""

VIDEO_LLAMA_DEFAULTS: Table = {
    field_name: size for field_name, size in COMMON_DEFAULTS.items() if field_name != "vision_use_head"
}
PADDLEOCR_DEFAULTS: Table = class_defaults("paddleocr_vl_vision")
COSMOS3_EDGE_DEFAULTS: Table = class_defaults("cosmos3_edge_vision")

MINICPM: Table = {**{name: size for name, size in SIGLIP_DEFAULTS.items() if name != "vision_use_head"}}
MINICPM["window_kernel_size"] = (2, 2)
MINICPM_FIELDS = frozenset({"attention_dropout", "insert_layer_id"})

WRAPPERS = {
    "gemma3": vision_section(_read_gemma3, ONLY_SIGLIP),
    "t5gemma2": vision_section(_read_t5gemma2, ONLY_SIGLIP, {"mm_tokens_per_image": 256, "tie_word_embeddings": True}),
    "shieldgemma2": vision_section(_read_gemma3, ONLY_SIGLIP),
    "paligemma": vision_section(
        _read_paligemma,
        ONLY_SIGLIP,
        default_section={**SO400M, "intermediate_size": 4096, "image_size": 224, "num_hidden_layers": 27},
    ),
    "aya_vision": vision_section(
        _read_aya,
        ONLY_SIGLIP,
        default_section={**SO400M, "image_size": 384, "num_hidden_layers": 26, "num_attention_heads": 14},
    ),
    "cohere2_vision": vision_section(
        _read_cohere2,
        ONLY_SIGLIP,
        default_section={"hidden_size": 1152, "image_size": 512, "num_hidden_layers": 27},
    ),
    **{
        kind: vision_section(_read_minicpm, {f"{kind}_vision": MINICPM}, ignored_fields=MINICPM_FIELDS)
        for kind in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
    },
    "video_llama_3": vision_section(
        _read_video_llama, {"video_llama_3_vision": VIDEO_LLAMA_DEFAULTS}, ignored_fields=frozenset({"rope_parameters"})
    ),
    "videollama3_qwen2": {
        "vision_encoder_config": TowerSection(
            _read_video_llama, {"videollama3_vision_encoder": VIDEO_LLAMA_DEFAULTS}, default_section=None
        )
    },
    "paddleocr_vl": vision_section(
        _read_paddleocr,
        dict.fromkeys(("paddleocr_vl_vision", "paddleocr_vl"), PADDLEOCR_DEFAULTS),  # the second in published configs
        ignored_fields=field_names("rope_parameters temporal_patch_size tokens_per_second"),
    ),
    **{kind: vision_section(_read_clip, {f"{kind}_vision_model": CLIP_DEFAULTS}) for kind in ("clip", "metaclip_2")},
    "git": vision_section(_read_git, {"git_vision_model": class_defaults("git_vision_model")}),
    "siglip": vision_section(lambda _, config, width: {"vision_model": siglip_encoder(config)}, ONLY_SIGLIP),
    "siglip2": vision_section(
        lambda _, config, width: {"vision_model": siglip2_encoder(config)}, {"siglip2_vision_model": SIGLIP2_DEFAULTS}
    ),
    "cosmos3_edge": vision_section(_read_cosmos3_edge, {"cosmos3_edge_vision": COSMOS3_EDGE_DEFAULTS}),
    "modernvbert": vision_section(_read_modernvbert, ONLY_SIGLIP),
    "ultravbert": vision_section(_read_modernvbert, ONLY_SIGLIP, default_section={"vision_use_head": False}),
    "lfm2_vl": vision_section(
        _read_lfm2,
        {"siglip2_vision_model": SIGLIP2_DEFAULTS},
    ),
}

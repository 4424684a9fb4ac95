"""A vision encoder with any text model: LLaVA models, DeepSeek-VL, Aria, Idefics, SmolVLM, InternVL, Qianfan-OCR.

LLaVA (Liu 2023, arXiv:2304.08485; 2310.03744, §3.3), Video-LLaVA (Lin 2023, arXiv:2311.10122), ViP-LLaVA (Cai 2023,
arXiv:2312.00784), DeepSeek-VL (Lu 2024, arXiv:2403.05525), Aria (Li 2024, arXiv:2410.05993). transformers:
models/llava, llava_next, llava_next_video, llava_onevision, video_llava, vipllava, deepseek_vl, aria, idefics2,
idefics3, smolvlm, internvl, qianfan_ocr.
"""

from __future__ import annotations

from ....components.base import LARGEST_SIZE
from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import (
    ACTIVATIONS,
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    biases,
    layer_table,
    layernorm,
    mlp,
    qk_norm_fields,
    rmsnorm,
)
from .pixtral import PIXTRAL_DEFAULTS, pixtral_encoder
from .section import (
    layers_of_features,
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
from .siglip import CLIP_DEFAULTS, SIGLIP_DEFAULTS, SO400M, VIT_L, clip_encoder, siglip_encoder, siglip_with_positions

LONGEST_TILES = 4
"""The tiles along the longer side of an image in the published processors of Idefics 3 and SmolVLM."""

INTERNVL_TILES = 12
"""The most tiles of an image in the published processors of InternVL."""

ARIA_QUERIES = {1225: 128, 4900: 256}
"""The patches of an image → the queries of Aria's projector that read them."""

ENCODER_BUILDERS = {
    "clip_vision_model": clip_encoder,
    "siglip_vision_model": siglip_encoder,
    "pixtral": pixtral_encoder,
}


def _read_llava(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LLaVA: one of several supported image encoders, and two linear layers."""
    layer_count = layers_of_features(root_config)
    feature_width = layer_count * config.integer("hidden_size")
    return {
        "vision_tower": ENCODER_BUILDERS[config.model_type](config) | _image_rule(root_config, config),
        "multi_modal_projector": two_layer_projector(
            root_config, feature_width, text_hidden_size, encoder_layers=layer_count
        ),
    }


def _image_rule(root_config: Config, config: Config) -> Table:
    """Returns LLaVA's rule for images: resized to one square, or for Pixtral's encoder shrunk to a largest size.

    Nothing where the vector that the class leaves out (`default`) is a patch, or a class vector becomes a token.
    """
    has_class_vector = config.model_type == "clip_vision_model"
    if (root_config.get("vision_feature_select_strategy") == "default") != has_class_vector:
        return {}
    image_size = config.integer("image_size")
    if config.model_type == "pixtral":
        return {"image": {"type": "longest_edge", "size": image_size}}
    return {"image": _fixed_image_rule(config)}


def _fixed_image_rule(config: Config) -> Table:
    """Returns the rule for an image that is resized to one square, each of whose patches is a token."""
    return {"type": "fixed", "size": config.integer("image_size"), "tokens": patches_per_side(config) ** 2}


def _tiles_of_grid(root_config: Config, config: Config) -> Table:
    """Returns LLaVA-NeXT's rule for cutting an image into tiles; empty if the config does not state it."""
    tile_resolutions = root_config.get("image_grid_pinpoints")
    if config.model_type == "pixtral" or "image" not in _image_rule(root_config, config) or not tile_resolutions:
        return {}
    return {"image": {"type": "pinpoints", "size": config.integer("image_size"), "resolutions": tile_resolutions}}


def _read_onevision(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LLaVA-OneVision: like LLaVA-NeXT, with a limited number of tokens per image."""
    towers = _read_llava_next(root_config, config, text_hidden_size)
    aspect_ratio = root_config.get("vision_aspect_ratio")
    tile_limit = aspect_ratio.removeprefix("anyres_max_") if isinstance(aspect_ratio, str) else ""
    if "image" in towers["vision_tower"] and tile_limit.isdecimal() and int(tile_limit) > 0:
        towers["vision_tower"]["image"] |= {"most_tiles": int(tile_limit), "several_whole": True}
    else:
        towers["vision_tower"].pop("image", None)
    return towers


def _read_llava_next(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads LLaVA-NeXT: LLaVA with a learned vector at the end of each row of tokens."""
    towers = _read_llava(root_config, config, text_hidden_size)
    towers["vision_tower"].pop("image", None)
    return {
        "vision_tower": towers["vision_tower"] | _tiles_of_grid(root_config, config),
        "multi_modal_projector": {**towers["multi_modal_projector"], "output_marks": 1},
    }


def _read_minimax_vl(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads MiniMax-VL-01: LLaVA-NeXT, whose checkpoint lacks the norm after CLIP's layers."""
    towers = _read_llava_next(root_config, config, text_hidden_size)
    del towers["vision_tower"]["stack"]["final_norm"]
    return towers


def _read_video_llava(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Video-LLaVA: an image encoder and a video encoder of equal sizes, with one projector."""
    towers = _read_llava(root_config, config, text_hidden_size)
    towers["vision_tower"].pop("image", None)
    return {
        "image_tower": towers["vision_tower"],
        "video_tower": towers["vision_tower"],
        "multi_modal_projector": towers["multi_modal_projector"],
    }


def _read_vipllava(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads ViP-LLaVA: a norm and two linear layers over the outputs of several layers of the encoder."""
    layer_count = layers_of_features(root_config)
    linear_layers = two_linear_layers(text_hidden_size, root_config.choice(ACTIVATIONS, "projector_hidden_act"))
    norm = layernorm(root_config.number("projector_layernorm_eps"))
    image_resizing = {"image": _fixed_image_rule(config)} if config.model_type == "clip_vision_model" else {}
    input_width = layer_count * config.integer("hidden_size")
    return {
        "vision_tower": ENCODER_BUILDERS[config.model_type](config) | image_resizing,
        "multi_modal_projector": projector(input_width, *linear_layers, norm=norm, encoder_layers=layer_count),
    }


def _read_deepseek_vl(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-VL: SigLIP and two linear layers."""
    aligner = projector(config.integer("hidden_size"), *two_linear_layers(text_hidden_size))
    return {"vision_model": {**siglip_encoder(config), "image": _fixed_image_rule(config)}, "aligner": aligner}


def _read_idefics3(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Idefics 3: SigLIP, and one linear layer over concatenated square patch blocks."""
    merge_size, image_size = root_config.integer("scale_factor"), config.integer("image_size")
    connector_table = projector(config.integer("hidden_size"), (text_hidden_size, False, "identity"), merge=merge_size)
    token_count = patches_per_side(config) ** 2 // merge_size**2
    longest_edge = LONGEST_TILES * image_size
    image_resizing = {"type": "split", "size": image_size, "longest_edge": longest_edge, "tokens": max(token_count, 1)}
    tower = siglip_with_positions(config, patches_per_side(config) ** 2)
    return {"vision_model": {**tower, "image": image_resizing}, "connector": connector_table}


def _read_granite_docling(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Granite-Docling: SigLIP, and connectors whose norms and last layer a coarse and a fine path share.

    Each path merges patches by a layer of its own, of the encoder's output and of outputs of lower layers (DeepStack).
    """
    config.require("out_hidden_size", text_hidden_size)
    hidden_size, merge_size = config.integer("hidden_size"), config.integer("scale_factor")
    norm, linear_layer = layernorm(), (text_hidden_size, False, "identity")
    towers = {
        "vision_model": siglip_with_positions(config, patches_per_side(config) ** 2),
        "coarse_connector": projector(
            hidden_size, linear_layer, merge=merge_size, norm=norm, out_norm=norm, out_act="gelu"
        ),
        "connector_output": projector(text_hidden_size, linear_layer, out_norm=norm),
    }
    path_merges = {"coarse": merge_size}
    if config.flag("use_fine_route"):
        path_merges["fine"] = config.quotient("scale_factor", merge_size, 2)
        towers["fine_connector"] = projector(hidden_size, linear_layer, merge=path_merges["fine"])
    for path_name, path_merge in path_merges.items():
        for merger_index, layer_index in enumerate(config.integers("deepstack_visual_indexes")):
            towers[f"{path_name}_vision_merger_{merger_index}"] = projector(
                hidden_size,
                *two_linear_layers(text_hidden_size),
                merge=path_merge,
                norm=norm,
                norm_of="merged",
                lower_layer=layer_index,
            )
    if root_config.has("density_router_hidden_size"):
        inner_width = root_config.integer("density_router_hidden_size")
        towers["image_density_weights"] = projector(hidden_size, (1, True, "identity"))
        towers["image_density_router"] = projector(
            hidden_size, (inner_width, True, "gelu"), (1, True, "identity"), norm=norm
        )
    return towers


def _read_idefics2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Idefics 2: SigLIP, a gated network to the text model's width, and a Perceiver that reads its output."""
    text_config = root_config.section("text_config", {"intermediate_size": 14336, "hidden_act": "silu"})
    perceiver_config = root_config.section("perceiver_config", PERCEIVER_DEFAULTS)
    ffn_width = text_config.integer("intermediate_size")
    gated_layer = {"size": 2 * ffn_width, "hidden_act": text_config.choice(ACTIVATIONS, "hidden_act"), "gated": True}
    head_count, kv_head_count = (
        perceiver_config.integer("resampler_n_heads"),
        perceiver_config.integer("num_key_value_heads"),
    )
    perceiver_config.quotient("num_key_value_heads", head_count, kv_head_count)
    attention: Table = {"num_attention_heads": head_count, "head_dim": perceiver_config.integer("resampler_head_dim")}
    hidden_act = perceiver_config.choice(ACTIVATIONS, "hidden_act")
    resampler = {
        "type": "perceiver",
        "queries": perceiver_config.integer("resampler_n_latents"),
        "hidden_size": text_hidden_size,
        "num_hidden_layers": perceiver_config.integer("resampler_depth"),
        "attention": {**attention, **({} if kv_head_count == head_count else {"num_key_value_heads": kv_head_count})},
        "feed_forward": {"intermediate_size": 4 * text_hidden_size, "hidden_act": hidden_act, "gated": True},
        "norm": rmsnorm(perceiver_config.number("rms_norm_eps")),
    }
    perceiver_config.finish(frozenset({"attention_dropout", "hidden_size", "initializer_range", "model_type"}), config)
    input_width = config.integer("hidden_size")
    return {
        "vision_model": siglip_with_positions(config, patches_per_side(config) ** 2),
        "connector_projection": {**projector(input_width), "maps": [gated_layer, {"size": text_hidden_size}]},
        "connector": projector(text_hidden_size, resampler=resampler),
    }


def _read_aria(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Aria: SigLIP, learned queries that read its patches, a norm and two linear layers."""
    require_one_layer(root_config)
    queries_by_patch_count = _read_query_counts(root_config)
    hidden_size, patch_count, norm = config.integer("hidden_size"), patches_per_side(config) ** 2, layernorm(1e-5)
    rows_field, largest_query_count = "max_value_projector_patch_to_query_dict", max(queries_by_patch_count.values())
    query_rows = root_config.integer(rows_field) if root_config.has(rows_field) else largest_query_count
    tower = siglip_with_positions(config, patch_count)
    if queries_by_patch_count.get(patch_count) == query_rows:  # else fewer of the learned queries read the patches
        tower["image"] = {"type": "fixed", "size": config.integer("image_size"), "tokens": query_rows}
    resampler = {
        "queries": query_rows,
        "hidden_size": hidden_size,
        "attention": self_attention(config, **biases(True, *QKVO_BIASES)),
        "norm": norm,
        "projected": False,
        "double_projections": True,
    }
    linear_layers = two_linear_layers(text_hidden_size, "gelu_tanh", bias=False)
    multi_modal_projector = projector(hidden_size, *linear_layers, norm=norm, resampler=resampler)
    return {"vision_tower": tower, "multi_modal_projector": multi_modal_projector}


def _read_query_counts(root_config: Config) -> dict[int, int]:
    """Reads the number of queries for each number of patches."""
    stated_counts = root_config.get("projector_patch_to_query_dict")
    query_counts = ARIA_QUERIES if stated_counts is None else stated_counts
    try:
        queries_by_patch_count = {int(patch_text): int(query_count) for patch_text, query_count in query_counts.items()}
    except (AttributeError, TypeError, ValueError):
        queries_by_patch_count = {}
    if not queries_by_patch_count or not all(
        0 < query_count <= LARGEST_SIZE for query_count in queries_by_patch_count.values()
    ):
        raise root_config.error(
            "projector_patch_to_query_dict", stated_counts, "a positive number of queries for each number of patches"
        )
    return queries_by_patch_count


def read_internvl(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads InternVL: a class vector, layers with scaled sublayer outputs, and a norm on concatenated patches."""
    config.require("use_mask_token", False)
    require_one_layer(root_config)
    merge_size = merged_square_side(root_config, "downsample_ratio")
    square_config = config.with_fields(**{name: _square_size(config, name) for name in ("image_size", "patch_size")})
    patch_count = patches_per_side(square_config) ** 2
    image_size = square_config.integer("image_size")
    tokens = max(patch_count // merge_size**2, 1)
    image_resizing = {"type": "tiles", "size": image_size, "max_tiles": INTERNVL_TILES, "tokens": tokens, "marks": 2}
    use_absolute_position_embeddings = config.flag("use_absolute_position_embeddings")
    position_table: Table = {"positions": {"rows": patch_count + 1}} if use_absolute_position_embeddings else {}
    final_norm = {} if config.flag("use_mean_pooling") else {"final_norm": layernorm(config.number("layer_norm_eps"))}
    tower = vision_transformer(
        square_config,
        internvit_layer(config, config.flag("attention_bias"), config.flag("use_qk_norm")),
        stack=final_norm,
        patch_fields={"num_channels": config.integer("num_channels"), "bias": True},
        class_embedding=True,
        image=image_resizing,
        **position_table,
    )
    linear_layers = two_linear_layers(text_hidden_size, root_config.choice(ACTIVATIONS, "projector_hidden_act"))
    input_width = config.integer("hidden_size")
    merger = projector(input_width, *linear_layers, merge=merge_size, norm=layernorm(), norm_of="merged")
    return {"vision_tower": tower, "multi_modal_projector": merger}


def internvit_layer(config: Config, bias: bool, has_qk_norm: bool, dummy_heads: int = 0) -> Table:
    """Returns a layer of InternViT, whose sublayer outputs are scaled per element.

    bias: whether queries, keys and values have biases. dummy_heads: heads beside those of the config.
    """
    eps = config.number("layer_norm_eps")
    attention = self_attention(config, o_bias=True, **biases(bias, *QKV_BIASES))
    attention["num_attention_heads"] += dummy_heads
    attention |= qk_norm_fields(rmsnorm(eps), "projection") if has_qk_norm else {}
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    norm = config.choice({"layer_norm": layernorm(eps), "rms_norm": rmsnorm(eps)}, "norm_type")
    return layer_table(attention, ffn, norm, residual_scale="output")


def _square_size(config: Config, field_name: str) -> int:
    """Reads an image or patch size that the config states as one number, or as two equal numbers."""
    image_size = config.get(field_name)
    if (
        isinstance(image_size, list | tuple)
        and len(image_size) == 2
        and image_size[0] == image_size[1]
        and type(image_size[0]) is int
        and image_size[0] > 0
    ):
        return image_size[0]
    return config.integer(field_name)


IDEFICS3_DEFAULTS: Table = class_defaults("idefics3_vision")

GRANITE_DOCLING_DEFAULTS: Table = {**class_defaults("granite_docling_vision"), "deepstack_visual_indexes": [3, 7, 10]}
IDEFICS2_DEFAULTS: Table = {**IDEFICS3_DEFAULTS, "hidden_size": 768, "num_attention_heads": 12}
PERCEIVER_DEFAULTS: Table = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "resampler_n_latents": 64,
    "resampler_depth": 3,
    "resampler_n_heads": 16,
    "resampler_head_dim": 96,
    "num_key_value_heads": 4,
}

LLAVA_DEFAULTS: Table = {
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -2,
    "multimodal_projector_bias": True,
    "vision_feature_select_strategy": "default",
}
LLAVA_NEXT_DEFAULTS: Table = {
    **LLAVA_DEFAULTS,
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}
MINIMAX_VL_DEFAULTS: Table = {
    **LLAVA_DEFAULTS,
    "vision_feature_layer": -1,
    "image_grid_pinpoints": [
        [336 * down, 336 * across]
        for down, most_across in enumerate((6, 6, 6, 4, 3, 3), 1)
        for across in range(1, most_across + 1)
    ],
}
"""transformers: models/minimax_vl_01/modular_minimax_vl_01.py (`MiniMaxVL01Config`), after 5.23."""
ONEVISION_DEFAULTS: Table = {
    **LLAVA_DEFAULTS,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_grid_pinpoints": [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)],
    "vision_aspect_ratio": "anyres_max_9",
}
INTERNVL_DEFAULTS: Table = class_defaults("internvl_vision")
INTERNVL_PROJECTOR_DEFAULTS: Table = {
    "projector_hidden_act": "gelu",
    "downsample_ratio": 0.5,
    "vision_feature_layer": -1,
}
BEIT_FIELDS = field_names("""
    dropout drop_path_rate initializer_factor layer_scale_init_value projection_dropout qk_normalization qkv_bias
    shared_relative_position_bias use_relative_position_bias
    """)
"""Fields of InternVL's vision encoder that change no count; some are BEiT's, which its class does not read."""
DEFAULTS_BY_TYPE = {
    "clip_vision_model": CLIP_DEFAULTS,
    "siglip_vision_model": SIGLIP_DEFAULTS,
    "pixtral": PIXTRAL_DEFAULTS,
}

WRAPPERS = {
    "llava": vision_section(_read_llava, DEFAULTS_BY_TYPE, default_section=VIT_L),
    "llava_next": vision_section(_read_llava_next, DEFAULTS_BY_TYPE, LLAVA_NEXT_DEFAULTS, VIT_L),
    "minimax_vl_01": vision_section(_read_minimax_vl, {"clip_vision_model": CLIP_DEFAULTS}, MINIMAX_VL_DEFAULTS, VIT_L),
    "llava_next_video": vision_section(_read_llava_next, DEFAULTS_BY_TYPE, LLAVA_NEXT_DEFAULTS, VIT_L),
    "video_llava": vision_section(_read_video_llava, DEFAULTS_BY_TYPE, default_section={**VIT_L, "image_size": 224}),
    "vipllava": vision_section(
        _read_vipllava,
        DEFAULTS_BY_TYPE,
        default_section=VIT_L,
    ),
    "deepseek_vl": vision_section(_read_deepseek_vl, {"siglip_vision_model": SIGLIP_DEFAULTS}),
    "llava_onevision": vision_section(
        _read_onevision,
        {"siglip_vision_model": SIGLIP_DEFAULTS, "clip_vision_model": CLIP_DEFAULTS},
        ONEVISION_DEFAULTS,
        {**SO400M, "image_size": 384, "num_hidden_layers": 26},
    ),
    "idefics2": vision_section(_read_idefics2, {"idefics2_vision": IDEFICS2_DEFAULTS, "idefics2": IDEFICS2_DEFAULTS}),
    "idefics3": vision_section(_read_idefics3, {"idefics3_vision": IDEFICS3_DEFAULTS, "idefics3": IDEFICS3_DEFAULTS}),
    "aria": vision_section(
        _read_aria,
        {"idefics3_vision": IDEFICS3_DEFAULTS},
        {"projector_patch_to_query_dict": ARIA_QUERIES, "vision_feature_layer": -1},
        ignored_fields=frozenset({"attention_heads"}),
    ),
    "granite_docling": vision_section(
        _read_granite_docling,
        {"granite_docling_vision": GRANITE_DOCLING_DEFAULTS},
    ),
    "smolvlm": vision_section(_read_idefics3, {"smolvlm_vision": IDEFICS3_DEFAULTS, "smolvlm": IDEFICS3_DEFAULTS}),
    "internvl": vision_section(read_internvl, {"internvl_vision": INTERNVL_DEFAULTS}, ignored_fields=BEIT_FIELDS),
    "qianfan_ocr": vision_section(
        read_internvl,
        {"qianfan_ocr_vision": {**INTERNVL_DEFAULTS, "attention_bias": True}},
        ignored_fields=BEIT_FIELDS,
    ),
}

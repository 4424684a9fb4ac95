"""SAM's vision encoder with a text model: GOT-OCR 2, PP-Chart2Table, PP-FormulaNet, DeepSeek-VL and DeepSeek-OCR.

Kirillov 2023 (arXiv:2304.02643); Wei 2024 (arXiv:2409.01704); Lu 2024 (arXiv:2403.05525, §2.1); Wei 2025
(arXiv:2510.18234, §3.2). transformers: models/got_ocr2, pp_chart2table, pp_formulanet, deepseek_vl_hybrid,
deepseek_ocr2, unlimited_ocr, sam. Published code: deepencoder.py of deepseek-ai/DeepSeek-OCR, deepencoderv2.py of
deepseek-ai/DeepSeek-OCR-2.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, QKV_BIASES, Table, biases, glu, layer_table, layernorm, mlp, rmsnorm
from .section import ROTARY_POSITION, biased_layer, patches_per_side, projector, self_attention, vision_section
from .siglip import CLIP_LARGE_DEFAULTS, SIGLIP_DEFAULTS, siglip_encoder

GOT_TOKENS = 256
"""The tokens of an image in the processor of GOT-OCR 2."""


def _sam_encoder(config: Config, halving_channels: list[int], ffn_width: int) -> Table:
    """Returns SAM's encoder. halving_channels: output channels of the convolutions that halve the patch grid."""
    grid_side = patches_per_side(config)
    depth = config.integer("num_hidden_layers")
    hidden_size = config.integer("hidden_size")
    head_count = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", hidden_size, head_count)
    return {
        "type": "sam",
        "hidden_size": hidden_size,
        "patches": {**config.integer_fields("patch_size", "num_channels"), "bias": True},
        "grid": grid_side,
        "num_hidden_layers": depth,
        "num_attention_heads": head_count,
        "qkv_bias": config.flag("qkv_bias"),
        "window_size": config.integer("window_size"),
        "global_layers": [layer_index for layer_index in config.integers("global_attn_indexes") if layer_index < depth],
        "relative_positions": config.flag("use_rel_pos"),
        **({"positions": {"rows": grid_side * grid_side}} if config.flag("use_abs_pos") else {}),
        "feed_forward": mlp(ffn_width, config.choice(ACTIVATIONS, "hidden_act")),
        "norm": layernorm(config.number("layer_norm_eps")),
        "output_channels": config.integer("output_channels"),
        "halvings": halving_channels,
    }


def _inner_width(sam_config: Config) -> int:
    """Returns the FFN width of a SAM config, which states the width or its ratio to the hidden size."""
    ratio = sam_config.number("mlp_ratio")
    return sam_config.optional_integer("mlp_dim") or int(sam_config.integer("hidden_size") * ratio)


def _read_got(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GOT-OCR 2: SAM, two convolutions that each halve the patch grid, and a linear layer."""
    tower = _sam_encoder(config, [2 * config.integer("output_channels"), text_hidden_size], config.integer("mlp_dim"))
    if tower["grid"] ** 2 == 16 * GOT_TOKENS:
        tower["image"] = {"type": "fixed", "size": config.integer("image_size"), "tokens": GOT_TOKENS, "marks": 2}
    multi_modal_projector = projector(text_hidden_size, (text_hidden_size, True, "identity"))
    return {"vision_tower": tower, "multi_modal_projector": multi_modal_projector}


def _read_formula_net(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads PP-FormulaNet: SAM, two convolutions that each halve the patch grid, and two linear layers."""
    config.require("post_conv_in_channels", config.integer("output_channels"))
    config.require("decoder_hidden_size", text_hidden_size)
    width = config.integer("post_conv_out_channels")
    channel_counts = [config.integer("post_conv_mid_channels"), width]
    linear_layers = (width, True, "identity"), (text_hidden_size, True, "identity")
    return {
        "vision_tower": _sam_encoder(config, channel_counts, config.integer("mlp_dim")),
        "multi_modal_projector": projector(width, *linear_layers),
    }


def _read_ocr(config: Config, reader_config: Config, reader: Table, text_hidden_size: int) -> Table:
    """Returns DeepSeek-OCR's encoder: SAM, further layers that read SAM's output, and a linear layer.

    Learned vectors separate the views of an image and, of the first version, its rows of patches.

    config, reader_config: the section with both encoders, and that of the layers.
    """
    output_parts, channels_by_default = (1, [512, 896]) if reader.get("queries") else (2, [512, 1024])
    sam_config = config.section("sam_config", {**SAM_DEFAULTS, "downsample_channels": channels_by_default})
    channel_counts = sam_config.integers("downsample_channels")
    if len(channel_counts) != 2 or channel_counts[1] != reader_config.integer("hidden_size"):
        raise sam_config.error(
            "downsample_channels", channel_counts, f"two widths, the second {reader_config.integer('hidden_size')}"
        )
    tower = _sam_encoder(sam_config, channel_counts, _inner_width(sam_config))
    for section_config in (sam_config, reader_config):
        section_config.finish(IGNORED_FIELDS | OCR_FIELDS, config)
    linear_layer = (text_hidden_size, True, "identity")
    return {
        "vision_tower": {**tower, "reader": {"hidden_size": channel_counts[1], **reader}},
        "multi_modal_projector": projector(output_parts * channel_counts[1], linear_layer, output_marks=output_parts),
    }


def _read_deepseek_ocr2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-OCR 2: Qwen2's layers over SAM's output and learned queries, for images of 1024 and 768 pixels."""
    reader_config = config.section("encoder_config", OCR_QUERIES)
    norm = rmsnorm(reader_config.number("rms_norm_eps"))
    kv_head_count = reader_config.optional_integer("num_key_value_heads")
    kv_field: Table = {} if kv_head_count is None else {"num_key_value_heads": kv_head_count}
    attention = self_attention(reader_config, **ROTARY_POSITION, **biases(True, *QKV_BIASES), **kv_field)
    block = layer_table(attention, glu(reader_config), norm)
    stack_fields = {"num_hidden_layers": reader_config.integer("num_hidden_layers"), "block": block, "final_norm": norm}
    queries, other_queries = OCR_QUERY_COUNTS
    reader = {"stack": stack_fields, "queries": queries, "other_queries": other_queries}
    return _read_ocr(config, reader_config, reader, text_hidden_size)


def _read_unlimited_ocr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Unlimited-OCR, whose projector reads SAM's output and the output of CLIP's layers over it.

    The published config has the widths of DeepSeek-OCR's own code.
    """
    if config.has("width"):
        return read_published_ocr(root_config, config, text_hidden_size)
    reader_config = config.section("encoder_config", CLIP_LARGE_DEFAULTS)
    norm = layernorm(reader_config.number("layer_norm_eps"))
    stack_fields = {
        "num_hidden_layers": reader_config.integer("num_hidden_layers"),
        "block": biased_layer(reader_config, norm),
        "embedding_norm": norm,
    }
    reader = {"stack": stack_fields, "positions": patches_per_side(reader_config) ** 2 + 1}
    return _read_ocr(config, reader_config, reader, text_hidden_size)


def read_published_ocr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads the vision encoders of DeepSeek-OCR's repository code, whose configs state most of the sizes.

    The code of DeepSeek-OCR has CLIP's projection of pixels, too, which it does not run.
    """
    config.require_fields(image_size=1024, mlp_ratio=3.7362)
    sizes = config.section("width")
    sizes.require("sam_vit_b", SAM_OF_CODE)
    is_second = sizes.has("qwen2-0-5b")
    name, expected_sizes = ("qwen2-0-5b", {"dim": 896}) if is_second else ("clip-l-14-224", CLIP_OF_CODE)
    sizes.require(name, expected_sizes)
    sizes.finish(frozenset(), config)
    if not is_second:
        towers = _read_unlimited_ocr(root_config, Config({}, {}, config.model_type), text_hidden_size)
        towers["vision_tower"]["reader"]["unused_patch_values"] = (
            CLIP_LARGE_DEFAULTS["num_channels"] * CLIP_LARGE_DEFAULTS["patch_size"] ** 2
        )
        return towers
    code_sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    head_fields = {"num_attention_heads": 14, "num_key_value_heads": 2}
    return _read_deepseek_ocr2(
        root_config,
        config.with_fields(encoder_config={**code_sizes, **head_fields}),
        text_hidden_size,
    )


def _read_hybrid(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-VL with two encoders: SigLIP, SAM with a second output convolution, and joining linear layers."""
    sam_config = root_config.section("high_res_vision_config", SAM_DEFAULTS)
    sam_config.require("model_type", "sam_vision_model")
    channel_count = sam_config.integer("output_channels")
    encoder = _sam_encoder(sam_config, [2 * channel_count, 4 * channel_count], _inner_width(sam_config))
    high_resolution_encoder = {**encoder, "second_neck": True}
    sam_config.finish(IGNORED_FIELDS, config)
    half_width_layer = (text_hidden_size // 2, True, "gelu")
    return {
        "vision_model": siglip_encoder(config),
        "vision_aligner": projector(config.integer("hidden_size"), half_width_layer),
        "high_res_vision_model": high_resolution_encoder,
        "high_res_vision_aligner": projector(4 * channel_count, half_width_layer),
        "aligner": projector(2 * (text_hidden_size // 2), (text_hidden_size, True, "identity"), encoders=2),
    }


GOT_DEFAULTS: Table = class_defaults("got_ocr2_vision")
SAM_DEFAULTS: Table = {**GOT_DEFAULTS, "model_type": "sam_vision_model", "mlp_ratio": 4.0, "mlp_dim": None}
OCR_QUERIES: Table = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
OCR_QUERY_COUNTS = 256, 144
"""The queries for 16 · 16 and 12 · 12 patches, which the class of DeepSeek-OCR 2 states."""
OCR_FIELDS = field_names("""
    initializer_factor layer_types max_window_layers num_channels scale sliding_window use_sliding_window vocab_size
    max_position_embeddings
    """)
SAM_OF_CODE: Table = {
    "downsample_channels": [512, 1024],
    "global_attn_indexes": [2, 5, 8, 11],
    "heads": 12,
    "layers": 12,
    "width": 768,
}
CLIP_OF_CODE: Table = {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024}
IGNORED_FIELDS = frozenset({"attention_dropout", "initializer_range", "num_pos_feats"})

WRAPPERS = {
    "got_ocr2": vision_section(_read_got, {"got_ocr2_vision": GOT_DEFAULTS}),
    "pp_chart2table": vision_section(_read_got, {"pp_chart2table_vision": GOT_DEFAULTS}),
    "pp_formulanet": vision_section(
        _read_formula_net,
        {
            "pp_formulanet_vision": {
                **GOT_DEFAULTS,
                "image_size": 512,
                "post_conv_in_channels": 256,
                "post_conv_mid_channels": 512,
                "post_conv_out_channels": 1024,
                "decoder_hidden_size": 512,
            }
        },
    ),
    "deepseek_ocr2": vision_section(_read_deepseek_ocr2, {"deepseek_ocr2_vision": {}}),
    "unlimited_ocr": vision_section(
        _read_unlimited_ocr, {"unlimited_ocr_vision": {}, "vision": {}}, ignored_fields=frozenset({"model_name"})
    ),
    "deepseek_vl_hybrid": vision_section(_read_hybrid, {"siglip_vision_model": SIGLIP_DEFAULTS}),
}

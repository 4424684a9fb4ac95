"""SAM's vision encoder with a text model: GOT-OCR 2, PP-Chart2Table and DeepSeek-VL with two encoders.

Kirillov 2023 (arXiv:2304.02643); Wei 2024 (arXiv:2409.01704); Lu 2024 (arXiv:2403.05525, §2.1). transformers:
models/got_ocr2, pp_chart2table, deepseek_vl_hybrid, sam.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, Table, layernorm, mlp
from .section import patches_per_side, projector, vision_section
from .siglip import SIGLIP_DEFAULTS, siglip_encoder

GOT_TOKENS = 256
"""The tokens of an image in the processor of GOT-OCR 2."""


def _sam_encoder(config: Config, halving_channels: list[int], ffn_width: int) -> Table:
    """Returns SAM's encoder. halving_channels: the channels of the convolutions that halve the sides of its grid."""
    grid_side = patches_per_side(config)
    depth = config.integer("num_hidden_layers")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    config.quotient("num_attention_heads", hidden_size, heads)
    return {
        "type": "sam",
        "hidden_size": hidden_size,
        "patches": {**config.integer_fields("patch_size", "num_channels"), "bias": True},
        "grid": grid_side,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
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


def _read_got(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GOT-OCR 2: two convolutions that halve the grid, the second to the text's width, and a linear layer."""
    tower = _sam_encoder(config, [2 * config.integer("output_channels"), text_hidden_size], config.integer("mlp_dim"))
    if tower["grid"] ** 2 == 16 * GOT_TOKENS:
        tower["image"] = {"type": "fixed", "size": config.integer("image_size"), "tokens": GOT_TOKENS, "marks": 2}
    multi_modal_projector = projector(text_hidden_size, (text_hidden_size, True, "identity"))
    return {"vision_tower": tower, "multi_modal_projector": multi_modal_projector}


def _read_hybrid(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads DeepSeek-VL with two encoders: SigLIP, SAM with a second neck, and linear layers that join them."""
    sam_config = root_config.section("high_res_vision_config", SAM_DEFAULTS)
    sam_config.require("model_type", "sam_vision_model")
    channels = sam_config.integer("output_channels")
    mlp_dim = sam_config.optional_integer("mlp_dim")
    inner_width = mlp_dim or int(sam_config.integer("hidden_size") * sam_config.number("mlp_ratio"))
    halving_channels = [2 * channels, 4 * channels]
    high_resolution_encoder = {**_sam_encoder(sam_config, halving_channels, inner_width), "second_neck": True}
    sam_config.finish(IGNORED_FIELDS, config)
    half_width_layer = (text_hidden_size // 2, True, "gelu")
    return {
        "vision_model": siglip_encoder(config),
        "vision_aligner": projector(config.integer("hidden_size"), half_width_layer),
        "high_res_vision_model": high_resolution_encoder,
        "high_res_vision_aligner": projector(4 * channels, half_width_layer),
        "aligner": projector(2 * (text_hidden_size // 2), (text_hidden_size, True, "identity"), encoders=2),
    }


GOT_DEFAULTS: Table = {
    "hidden_size": 768,
    "output_channels": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "use_abs_pos": True,
    "use_rel_pos": True,
    "window_size": 14,
    "global_attn_indexes": (2, 5, 8, 11),
    "mlp_dim": 3072,
}
SAM_DEFAULTS: Table = {**GOT_DEFAULTS, "model_type": "sam_vision_model", "mlp_ratio": 4.0, "mlp_dim": None}
IGNORED_FIELDS = frozenset({"attention_dropout", "initializer_range", "num_pos_feats"})

WRAPPERS = {
    "got_ocr2": vision_section(_read_got, {"got_ocr2_vision": GOT_DEFAULTS}),
    "pp_chart2table": vision_section(_read_got, {"pp_chart2table_vision": GOT_DEFAULTS}),
    "deepseek_vl_hybrid": vision_section(_read_hybrid, {"siglip_vision_model": SIGLIP_DEFAULTS}),
}

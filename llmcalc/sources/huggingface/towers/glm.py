"""Vision encoders of GLM-V. transformers: models/glm4v, glm4v_moe, glm46v, glmga, glm_ocr, glm5_next."""

from __future__ import annotations

from typing import Any

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import (
    ACTIVATIONS,
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    attention_biases,
    biases,
    clamped_swiglu,
    glu,
    layer_table,
    layernorm,
    qk_norm_fields,
    rmsnorm,
)
from .section import ROTARY_POSITION, patches_per_side, projector, self_attention, vision_section, vision_transformer

LEAST_FRAME_PIXELS, MAX_FRAME_PIXELS = 112 * 112, 9_633_792
"""Limits of the pixels of all frames in the published `preprocessor_config.json` of GLM-4.5V and GLM-OCR (`size`)."""


def _read_glm4v(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GLM-V's vision encoder: gated layers, a merger of square blocks of patches, and a gated FFN.

    The layers' FFN width is the text's width. The merger is a linear layer with a norm.
    """
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention = self_attention(config, "num_heads", **ROTARY_POSITION, **attention_biases(config, QKV_BIASES))
    block = layer_table(attention, glu(config, ffn_width=config.integer("out_hidden_size")), norm)
    stack_fields = {"embedding_norm": norm, "final_norm": norm}
    merger_width = config.integer("intermediate_size")
    return _encoder_with_merger(
        config, block, stack_fields, merger_width, positions={"rows": patches_per_side(config) ** 2}
    )


def _read_glm_ocr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GLM-OCR's vision encoder, whose merger width is the text model's times the number of image channels."""
    return _encoder_with_qk_norm(config, config.integer("out_hidden_size") * config.integer("in_channels"))


def _read_glm5_next(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GLM-5.3's vision encoder, with a stated merger width and clamped gates.

    The gate of its merger is clamped, too, which a projector does not describe.
    """
    config.require("hidden_act", "silu")
    return _encoder_with_qk_norm(config, config.integer("projection_intermediate_size"), has_clamped_gate=True)


def _encoder_with_qk_norm(config: Config, merger_width: int, has_clamped_gate: bool = False) -> Table:
    """Returns an encoder with QK-norm, and the merger of its outputs."""
    norm, has_bias = rmsnorm(config.number("rms_norm_eps")), config.flag("attention_bias")
    attention = self_attention(
        config, "num_heads", **ROTARY_POSITION, **biases(has_bias, *QKVO_BIASES), **qk_norm_fields(norm)
    )
    ffn = clamped_swiglu(glu(config, has_bias)) if has_clamped_gate else glu(config, has_bias)
    return _encoder_with_merger(config, layer_table(attention, ffn, norm), {"final_norm": norm}, merger_width)


def _encoder_with_merger(
    config: Config, block: Table, stack_fields: Table, merger_width: int, **encoder_fields: Any
) -> Table:
    """Returns the encoder, the linear layer that merges square patch blocks, and a gated FFN."""
    hidden_size = config.integer("hidden_size")
    output_width = config.integer("out_hidden_size")
    activation = config.choice(ACTIVATIONS, "hidden_act")
    patch_fields = {
        "num_channels": config.integer("in_channels"),
        "temporal_patch_size": config.integer("temporal_patch_size"),
        "bias": True,
    }
    image_resizing = {
        "type": "smart_resize",
        "merge": config.integer("spatial_merge_size"),
        "min_pixels": LEAST_FRAME_PIXELS,
        "max_pixels": MAX_FRAME_PIXELS,
        "frames": config.integer("temporal_patch_size"),
        "enlarge": True,
    }
    tower = vision_transformer(
        config,
        block,
        depth_field="depth",
        stack=stack_fields,
        patch_fields=patch_fields,
        image=image_resizing,
        **encoder_fields,
    )
    gated_layers = [{"size": 2 * merger_width, "hidden_act": activation, "gated": True}, {"size": output_width}]
    merge = config.integer("spatial_merge_size")
    visual_merger = projector(output_width, (output_width, False, "identity"), out_norm=layernorm(), out_act="gelu")
    return {
        "visual": tower,
        "visual_downsample": projector(hidden_size, (output_width, True, "identity"), merge=merge),
        "visual_merger": visual_merger,
        "visual_network": {**projector(output_width), "maps": gated_layers},
    }


GLM4V_DEFAULTS: Table = class_defaults("glm4v_vision")

GLM_OCR_DEFAULTS: Table = class_defaults("glm_ocr_vision")

WRAPPERS = {
    "glm_ocr": vision_section(_read_glm_ocr, {"glm_ocr_vision": GLM_OCR_DEFAULTS}),
    "glm5_next": vision_section(
        _read_glm5_next,
        {"glm5_next_vision": {**GLM_OCR_DEFAULTS, "projection_intermediate_size": 10240}},
        ignored_fields=frozenset({"swiglu_limit"}),
    ),
    "glm4v": vision_section(_read_glm4v, {"glm4v_vision": GLM4V_DEFAULTS, "glm4v": GLM4V_DEFAULTS}),
    "glm46v": vision_section(_read_glm4v, {"glm4v_vision": GLM4V_DEFAULTS}),
    "glmga": vision_section(_read_glm4v, {"glm4v_vision": GLM4V_DEFAULTS}),
    "glm4v_moe": vision_section(_read_glm4v, {"glm4v_moe_vision": GLM4V_DEFAULTS, "glm4v_moe": GLM4V_DEFAULTS}),
}

"""GLM-V's vision encoder. transformers: models/glm4v, glm4v_moe, glm46v, glmga."""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, QKV, Table, biases, layernorm, rmsnorm
from .section import Section, projector, side, vit

LEAST_PIXELS, MOST_PIXELS = 112 * 112, 9_633_792
"""Limits of the pixels of all frames in the published `preprocessor_config.json` of GLM-4.5V and GLM-OCR (`size`)."""


def _glm4v(wrapper: Config, config: Config, width: int) -> Table:
    """Reads GLM-V's vision encoder: gated layers, a merger of square blocks of patches, and a gated FFN.

    The layers' FFN width is the text's width. The merger is a linear layer with a norm.
    """
    norm, h, heads, out = (
        rmsnorm(config.number("rms_norm_eps")),
        config.size("hidden_size"),
        config.size("num_heads"),
        config.size("out_hidden_size"),
    )
    act = config.choice(ACTIVATIONS, "hidden_act")
    mixer = {
        "num_attention_heads": heads,
        "head_dim": config.divided("num_heads", h, heads),
        "position": {"type": "rope"},
        **biases(config.flag("attention_bias"), *QKV),
    }
    network = {"intermediate_size": out, "hidden_act": act, "gated": True}
    block = {"attention": mixer, "feed_forward": network, "norm": norm, "norm_placement": "pre"}
    patches = {
        "num_channels": config.size("in_channels"),
        "temporal_patch_size": config.size("temporal_patch_size"),
        "bias": True,
    }
    image = {
        "type": "smart_resize",
        "merge": config.size("spatial_merge_size"),
        "min_pixels": LEAST_PIXELS,
        "max_pixels": MOST_PIXELS,
        "frames": config.size("temporal_patch_size"),
        "enlarge": True,
    }
    tower = vit(
        config,
        block,
        depth="depth",
        stack={"embedding_norm": norm, "final_norm": norm},
        patches=patches,
        positions={"rows": side(config) ** 2},
        image=image,
    )
    gated = [{"size": 2 * config.size("intermediate_size"), "hidden_act": act, "gated": True}, {"size": out}]
    return {
        "visual": tower,
        "visual_downsample": projector(h, (out, True, "identity"), merge=config.size("spatial_merge_size")),
        "visual_merger": projector(out, (out, False, "identity"), out_norm=layernorm(), out_act="gelu"),
        "visual_network": {**projector(out), "maps": gated},
    }


GLM4V: Table = {
    "depth": 24,
    "hidden_size": 1536,
    "hidden_act": "silu",
    "attention_bias": False,
    "num_heads": 12,
    "in_channels": 3,
    "image_size": 336,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "intermediate_size": 13696,
}

WRAPPERS = {
    "glm4v": {"vision_config": Section(_glm4v, {"glm4v_vision": GLM4V, "glm4v": GLM4V})},
    "glm46v": {"vision_config": Section(_glm4v, {"glm4v_vision": GLM4V})},
    "glmga": {"vision_config": Section(_glm4v, {"glm4v_vision": GLM4V})},
    "glm4v_moe": {"vision_config": Section(_glm4v, {"glm4v_moe_vision": GLM4V, "glm4v_moe": GLM4V})},
}

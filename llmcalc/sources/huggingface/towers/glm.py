"""GLM-V's vision encoder. transformers: models/glm4v, models/glm4v_moe."""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, QKV, Table, biases, layernorm, rmsnorm
from .section import Section, projector, side, vit


def _glm4v(wrapper: Config, c: Config, width: int) -> Table:
    """Reads GLM-V's vision encoder: gated layers, a merger of square blocks of patches, and a gated FFN.

    The layers' FFN width is the text's width. The merger is a linear layer with a norm.
    """
    norm, h, heads, out = (
        rmsnorm(c.number("rms_norm_eps")),
        c.size("hidden_size"),
        c.size("num_heads"),
        c.size("out_hidden_size"),
    )
    act = c.choice(ACTIVATIONS, "hidden_act")
    mixer = {
        "num_attention_heads": heads,
        "head_dim": c.divided("num_heads", h, heads),
        "position": {"type": "rope"},
        **biases(c.flag("attention_bias"), *QKV),
    }
    network = {"intermediate_size": out, "hidden_act": act, "gated": True}
    block = {"attention": mixer, "feed_forward": network, "norm": norm, "norm_placement": "pre"}
    patches = {
        "num_channels": c.size("in_channels"),
        "temporal_patch_size": c.size("temporal_patch_size"),
        "bias": True,
    }
    tower = vit(
        c,
        block,
        depth="depth",
        stack={"embedding_norm": norm, "final_norm": norm},
        patches=patches,
        positions={"rows": side(c) ** 2},
    )
    gated = [{"size": 2 * c.size("intermediate_size"), "hidden_act": act, "gated": True}, {"size": out}]
    return {
        "visual": tower,
        "visual_downsample": projector(h, (out, True, "identity"), merge=c.size("spatial_merge_size")),
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
    "glm4v_moe": {"vision_config": Section(_glm4v, {"glm4v_moe_vision": GLM4V, "glm4v_moe": GLM4V})},
}

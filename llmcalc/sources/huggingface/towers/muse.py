"""The vision encoder of Muse Glimmer and Muse Spark: attention within squares of patches in most layers, and RoPE.

transformers: models/muse_glimmer, muse_spark.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, Table, layernorm, listed_kinds, stack_of_variants
from .section import ROTARY_POSITION, biased_layer, projector, vision_section, vision_transformer


def _read_muse(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Muse's encoder: layers between two norms, two linear layers over merged patches, and a third one."""
    hidden_size, merge_size, depth = config.integer_fields("hidden_size", "merge_size", "num_hidden_layers").values()
    window_side, norm = config.integer("pos_emb_height"), layernorm(config.number("layer_norm_eps"))
    default_kinds = [
        "window" if (layer_index + 1) % 4 and layer_index != depth - 1 else "full" for layer_index in range(depth)
    ]
    layer_kinds = listed_kinds(config, "layer_types", LAYER_TYPES, default_kinds)
    window_changes: Table = {"full": {}, "window": {"attention": {"grid_window": window_side}}}
    tower = vision_transformer(
        config,
        biased_layer(config, layernorm(1e-5), **ROTARY_POSITION),
        stack={**stack_of_variants(window_changes, layer_kinds), "embedding_norm": norm, "final_norm": norm},
        patch_fields={"temporal_patch_size": config.integer("patch_temporal")},
        positions={"rows": window_side * config.integer("pos_emb_width")},
    )
    root_config.require("out_hidden_size", hidden_size * merge_size**2)
    inner_width = root_config.integer("projector_hidden_size")
    activation = root_config.choice(ACTIVATIONS, "projector_hidden_act")
    linear_layer = (inner_width, False, activation)
    out_norm = {"type": "rmsnorm", "weight": False}
    return {
        "vision_tower": tower,
        "vision_adapter": projector(hidden_size, linear_layer, linear_layer, merge=merge_size),
        "vision_projection": projector(inner_width, (text_hidden_size, False, "identity"), out_norm=out_norm),
    }


LAYER_TYPES = {"full_attention": "full", "window_attention": "window"}

VISION_DEFAULTS: Table = class_defaults("muse_glimmer_vision")

WRAPPERS = {
    kind: vision_section(
        _read_muse,
        {f"{kind}_vision": VISION_DEFAULTS},
        ignored_fields=frozenset({"rope_parameters"}),
    )
    for kind in ("muse_glimmer", "muse_spark")
}

"""The vision encoder of Llama 3.2 Vision: tiles of an image, layers, and gated layers above them.

Grattafiori 2024 (arXiv:2407.21783), §7.1. transformers: models/mllama.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, Table, layer_table, layernorm, mlp
from .section import patches_per_side, projector, self_attention, vision_section, vision_transformer

MAX_ASPECT_RATIOS = 1000
"""The most aspect ratios of a config that are read."""


def _read_mllama(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Llama 3.2 Vision: one linear layer reads the last output and the outputs of some lower layers."""
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    block = layer_table(self_attention(config), ffn, layernorm(config.number("norm_eps")))
    num_hidden_layers = config.integer("num_global_layers")
    tower = vision_transformer(
        config,
        block,
        stack={"embedding_norm": layernorm(), "final_norm": layernorm()},
        patch_fields={"num_channels": config.integer("num_channels")},
        positions={"rows": patches_per_side(config) ** 2 + 1},
        class_embedding=True,
        tiles={"max_tiles": config.integer("max_num_tiles"), "image_kinds": _aspect_ratio_count(config) + 1},
        upper_stack={"num_hidden_layers": num_hidden_layers, "block": {**block, "residual_scale": "gate"}},
    )
    feature_count = 1 + len(config.integers("intermediate_layers_indices"))
    output_width = feature_count * config.integer("hidden_size")
    config.require("vision_output_dim", output_width)
    multi_modal_projector = projector(output_width, (text_hidden_size, True, "identity"), encoder_layers=feature_count)
    return {"vision_model": tower, "multi_modal_projector": multi_modal_projector}


def _aspect_ratio_count(config: Config) -> int:
    """Returns the number of image aspect ratios that have learned vectors."""
    aspect_ratios = config.get("supported_aspect_ratios")
    if not isinstance(aspect_ratios, list | tuple) or len(aspect_ratios) > MAX_ASPECT_RATIOS:
        raise config.error("supported_aspect_ratios", aspect_ratios, f"a list of at most {MAX_ASPECT_RATIOS} pairs")
    return len(aspect_ratios)


VISION_DEFAULTS: Table = {
    **class_defaults("mllama_vision_model"),
    "num_attention_heads": 16,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
    "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
}

WRAPPERS = {"mllama": vision_section(_read_mllama, {"mllama_vision_model": VISION_DEFAULTS})}

"""Ovis's vision encoders, which map patches to probabilities of visual words; these have embeddings.

Lu 2024 (arXiv:2405.20797, §3), Fini 2024 (AIMv2, arXiv:2411.14402). transformers: models/ovis2.

Sources of Ovis 1.6, 2 and 2.5 in their own code: vllm/model_executor/models/ovis.py, ovis2_5.py and siglip2navit.py,
and vllm/transformers_utils/processors/ovis2_5.py of vllm-project/vllm at v0.19.0.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import QKVO_BIASES, Table, biases, glu, layer_table, layernorm, rmsnorm
from .section import (
    IGNORED_FIELDS,
    ROTARY_POSITION,
    TowerSection,
    patches_per_side,
    projector,
    self_attention,
    vision_section,
    vision_transformer,
)
from .siglip import SIGLIP_DEFAULTS, siglip_encoder, siglip_with_positions


def _read_ovis2(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Ovis 2: AIMv2's gated layers, a head over visual words, and the visual embedding table.

    The class adds the positions after the norm of the patches, which changes no count.
    """
    indicator_count, embedding_width = config.integer("num_visual_indicator_tokens"), root_config.integer("hidden_size")
    tower = _with_image_rule(_aimv2_encoder(config), config, config)
    encoder_width = config.integer("hidden_size")
    return {"vision_tower": tower, **_visual_vocabulary(config, encoder_width, embedding_width, indicator_count)}


def _with_image_rule(tower: Table, encoder_config: Config, config: Config) -> Table:
    """Returns the encoder with its rule for cutting images into tiles. config: the section with `hidden_stride`."""
    merge_size = config.integer("hidden_stride")
    image_size = encoder_config.integer("image_size")
    image_resizing = {"type": "covering", "size": image_size, "max_tiles": OVIS_TILES, "merge": merge_size}
    return {**tower, "image": image_resizing}


OVIS_TILES = 9
"""The most tiles of an image in the code of Ovis 1.6 and 2."""


def _aimv2_encoder(config: Config) -> Table:
    """Returns AIMv2's encoder."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    attention = self_attention(config, **biases(config.flag("qkv_bias"), *QKVO_BIASES))
    return vision_transformer(
        config,
        layer_table(attention, glu(config, config.flag("mlp_bias")), norm),
        stack={"embedding_norm": norm, "final_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels"), "bias": True},
        positions={"rows": patches_per_side(config) ** 2},
    )


def _read_ovis(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Ovis 1.6 and 2 in their own code: the encoder of `backbone_config`, then a head over visual words."""
    config.require_fields(drop_cls_token=False, depths=None)
    backbone_fields = config.table("backbone_config")
    types_by_tokenizer = {"siglip_visual_tokenizer": "siglip_vision_model", "aimv2_visual_tokenizer": "aimv2"}
    backbone_model_type = backbone_fields.get("model_type", types_by_tokenizer[config.model_type])
    prefix = f"{config.location}backbone_config."
    if backbone_model_type == "siglip_vision_model":
        backbone_config = Config(backbone_fields, SIGLIP_DEFAULTS, backbone_model_type, location=prefix)
        tower = siglip_encoder(backbone_config)
    elif backbone_model_type == "aimv2":
        aliases = {"mlp_bias": "use_bias"}
        backbone_config = Config(backbone_fields, AIMV2_DEFAULTS, backbone_model_type, location=prefix, aliases=aliases)
        tower = _aimv2_encoder(backbone_config)
    else:
        raise config.error("backbone_config.model_type", backbone_model_type, "siglip_vision_model or aimv2")
    tower = _with_image_rule(tower, backbone_config, config)
    backbone_config.finish(IGNORED_FIELDS | BACKBONE_FIELDS)
    config.unknown_fields += backbone_config.unknown_fields
    return {
        "vision_tower": tower,
        **_visual_vocabulary(config, tower["hidden_size"], text_hidden_size, OVIS_INDICATORS),
    }


def _read_ovis2_5(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Ovis 2.5: SigLIP 2 with RoPE, and a position embedding that is interpolated to the image's size."""
    config.require_fields(temporal_patch_size=1, fullatt_block_indexes=None)
    patch_count = config.get("num_patches")
    position_rows = patch_count if type(patch_count) is int and patch_count > 0 else patches_per_side(config) ** 2
    rope_fields: Table = ROTARY_POSITION if config.flag("use_rope") else {}
    tower = siglip_with_positions(config, position_rows if config.flag("preserve_original_pe") else 0, **rope_fields)
    pixel_limits = {"min_pixels": OVIS2_5_SIDES[0] ** 2, "max_pixels": OVIS2_5_SIDES[1] ** 2}
    merge = config.integer("hidden_stride")
    image_resizing = {"type": "smart_resize", "merge": merge, **pixel_limits, "enlarge": True, "marks": 2}
    vocab_size = root_config.integer("visual_vocab_size")
    return {
        "vision_tower": {**tower, "image": image_resizing},
        **_visual_vocabulary(config, tower["hidden_size"], text_hidden_size, OVIS2_5_INDICATORS, vocab_size),
    }


OVIS2_5_SIDES = 448, 1792
"""The side lengths of the squares with the fewest and the most pixels of an image in the code of Ovis 2.5."""


def _visual_vocabulary(
    config: Config, encoder_width: int, text_hidden_size: int, indicator_count: int, vocab_size: int | None = None
) -> Table:
    """Returns a head over visual words, and the embedding table of these words, whose last rows mark images.

    indicator_count: the number of these rows. vocab_size: that of all rows, by default the section's `vocab_size`.
    """
    vocab_size = vocab_size or config.integer("vocab_size")
    visual_token_count = vocab_size - indicator_count
    if visual_token_count < 1:
        raise config.error("vocab_size", vocab_size, f"more than the {indicator_count} that mark images")
    merge = config.integer("hidden_stride")
    head = projector(encoder_width, (visual_token_count, False, "identity"), merge=merge, out_norm=layernorm())
    visual_embeddings_table = projector(
        visual_token_count, (text_hidden_size, False, "identity"), output_marks=indicator_count
    )
    return {"visual_head": head, "visual_embeddings_table": visual_embeddings_table}


AIMV2_DEFAULTS: Table = class_defaults("ovis2_vision")
OVIS_DEFAULTS: Table = {
    "vocab_size": 16384,
    "hidden_stride": 1,
    "drop_cls_token": False,
    "depths": None,
    "backbone_config": {},
}
NAVIT_DEFAULTS: Table = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_patches": -1,
    "image_size": 512,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "hidden_stride": 2,
    "fullatt_block_indexes": None,
    "temporal_patch_size": 1,
    "preserve_original_pe": True,
    "use_rope": True,
}
OVIS_INDICATORS, OVIS2_5_INDICATORS = 5, 4
"""Rows of the table of visual words that mark images, which the classes of Ovis 1.6 and 2, and of 2.5, state."""
BACKBONE_FIELDS = frozenset({"attention_dropout", "projection_dropout", "use_bias"})
TOKENIZER_FIELDS = frozenset({"backbone_kwargs", "sepsilon", "tau", "tokenize_function", "use_indicators"})

WRAPPERS = {
    "ovis": {
        "visual_tokenizer_config": TowerSection(
            _read_ovis,
            {"siglip_visual_tokenizer": OVIS_DEFAULTS, "aimv2_visual_tokenizer": OVIS_DEFAULTS},
            default_section=None,
            ignored_fields=TOKENIZER_FIELDS,
        )
    },
    "ovis2_5": {
        "vit_config": TowerSection(
            _read_ovis2_5,
            {"siglip2_navit": NAVIT_DEFAULTS},
            {"visual_vocab_size": 65536},
            default_section=None,
            ignored_fields=frozenset({"attention_dropout", "window_size"}),
        )
    },
    "ovis2": vision_section(
        _read_ovis2,
        {"ovis2_vision": AIMV2_DEFAULTS},
        ignored_fields=frozenset({"attention_dropout", "tokenize_function"}),
    ),
}

"""Nemotron Omni's encoders: C-RADIO for images and a FastConformer for sound, with Nemotron-H as the text model.

Heinrich 2024 (arXiv:2412.07679); Rekesh 2023 (arXiv:2305.05084). transformers: models/radio, models/nemotron_h_omni.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..families.seq2seq.fast_conformer import IGNORED_FIELDS, PARAKEET_DEFAULTS, PARAKEET_FIELDS, parakeet_encoder
from ..family import field_names
from ..parts import ACTIVATIONS, QKVO_BIASES, Table, biases, layer_table, layernorm, mlp, rmsnorm
from .section import TowerSection, merged_square_side, projector, self_attention, vision_transformer

LEAST_PATCHES, MAX_PATCHES = 1024, 13312
"""The least and the most patches of an image in the processor of Nemotron Omni."""


def _read_nemotron(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Nemotron Omni's vision encoder: C-RADIO, and a norm and two linear layers over merged patches.

    A norm after the encoder's layers is there if the text model has layers of multi-token prediction.
    """
    hidden_size = config.integer("hidden_size")
    root_config.require("vision_hidden_size", hidden_size)
    config.require("video_temporal_patch_size", root_config.integer("video_temporal_patch_size"))
    merge_size = merged_square_side(root_config, "downsample_ratio")
    tower = _radio_encoder(config)
    if root_config.section("text_config", {"num_nextn_predict_layers": 0}).count("num_nextn_predict_layers"):
        tower["stack"]["final_norm"] = layernorm(config.number("layer_norm_eps"))
    merger = {"merge": merge_size, "norm": rmsnorm(1e-5), "norm_of": "merged"}
    projector_hidden_size = root_config.integer("projector_hidden_size")
    linear_layers = ((projector_hidden_size, False, "relu2"), (text_hidden_size, False, "identity"))
    image_resizing = {
        "type": "patch_grid",
        "merge": merge_size,
        "min_patches": LEAST_PATCHES,
        "max_patches": MAX_PATCHES,
    }
    vision_model = {**tower, "image": {**image_resizing, "marks": 2}}
    return {"vision_model": vision_model, "multi_modal_projector": projector(hidden_size, *linear_layers, **merger)}


def _radio_encoder(config: Config) -> Table:
    """Returns C-RADIO: class vectors and registers before the patches, and layers with scaled sublayer outputs."""
    config.require("use_swiglu_ffn", False)
    hidden_size, patch_size = config.integer("hidden_size"), config.integer("patch_size")
    position_rows = config.integer("max_img_size") // patch_size
    if not position_rows:
        raise config.field_error("max_img_size", f"{patch_size} or more, which is patch_size")
    attention = self_attention(config, o_bias=True, **biases(config.flag("qkv_bias"), *QKVO_BIASES[:3]))
    ffn = mlp(int(hidden_size * config.number("mlp_ratio")), config.choice(ACTIVATIONS, "hidden_act"))
    summary_indices = config.get("summary_idxs")
    return vision_transformer(
        config,
        layer_table(attention, ffn, layernorm(config.number("layer_norm_eps")), residual_scale="output"),
        patch_fields={"num_channels": config.integer("num_channels")},
        positions={"rows": position_rows * position_rows},
        registers=config.integer("num_cls_tokens") + config.count("num_registers"),
        video_frames=config.optional_integer("video_temporal_patch_size"),
        summary_vectors=len(summary_indices) if isinstance(summary_indices, list | tuple) else 2,
    )


def _read_nemotron_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Nemotron Omni's audio encoder: a FastConformer, and a norm and two linear layers.

    Its attention has no biases unless the config states them.
    """
    stack = parakeet_encoder(config if config.has("attention_bias") else config.with_fields(attention_bias=False))
    hidden_size, has_bias = stack.pop("hidden_size"), config.flag("projection_bias")
    projection_hidden_size = config.integer("projection_hidden_size")
    linear_layers = ((projection_hidden_size, has_bias, "relu2"), (text_hidden_size, has_bias, "identity"))
    audio_framing = {"type": "recording", "window": 160, "lead": 160, "marks": 2}
    audio = {**audio_framing, "frames_per_token": config.integer("subsampling_factor")}
    audio_tower = {"type": "audio", "hidden_size": hidden_size, "stack": stack, "audio": audio}
    return {"audio_tower": audio_tower, "embed_audio": projector(hidden_size, *linear_layers, norm=rmsnorm(1e-5))}


RADIO_DEFAULTS: Table = class_defaults("radio")
RADIO_IGNORED_FIELDS = field_names("""
    attention_probs_dropout_prob drop_path_rate hidden_dropout_prob layerscale_value norm_mean norm_std patch_dim
    video_patch_dim
    """)
"""Fields of C-RADIO's config that change no count."""

WRAPPERS = {
    "nemotron_h_omni": {
        "vision_config": TowerSection(
            _read_nemotron,
            {"radio": RADIO_DEFAULTS},
            default_section={"video_temporal_patch_size": 2},
            ignored_fields=RADIO_IGNORED_FIELDS,
        ),
        "audio_config": TowerSection(
            _read_nemotron_audio,
            {"parakeet_encoder": PARAKEET_DEFAULTS, "parakeet": PARAKEET_DEFAULTS},
            default_section=None,
            ignored_fields=IGNORED_FIELDS | PARAKEET_FIELDS | {"attention_dropout"},
        ),
    }
}

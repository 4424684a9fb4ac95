"""The vision and audio encoders of Gemma 4 and Gemma 3n.

transformers: models/gemma4, embedding_gemma2, gemma4_unified, gemma3n.

The unified Gemma 4 has no encoders: patches of pixels and raw frames of audio are each projected to the text's width.

Gemma 3n's vision encoder is a model of timm, whose layers no config describes: its name alone says them.
"""

from __future__ import annotations

from typing import Any

from ....components.base import LARGEST_SIZE
from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, attention, glu, layernorm, mlp, qk_norm_fields, rmsnorm
from .mobilenet import GEMMA3N_IMAGE, OUTPUT_WIDTH, mobilenet_v5
from .section import TowerSection, projector, vision_section, vision_transformer

GEMMA4_BUDGET: Table = {"type": "budget", "max_tokens": 280, "marks": 2}
"""The image rule of Gemma 4's published processors: the most tokens of an image, and mark tokens around them."""

GEMMA4_FRAMES: Table = {
    "window": 321,
    "lead": 160,
    "multiple": 128,
    "frames_per_token": 4,
    "max_seconds": 30,
    "marks": 2,
}
GEMMA3N_FRAMES: Table = {"window": 513, "multiple": 128, "tokens": 188, "max_seconds": 30, "marks": 4}
"""The audio rules of Gemma 4's and Gemma 3n's published processors: frames, and the tokens of a recording."""


def _read_gemma4_vision(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Gemma 4's vision encoder: two position embeddings, and gated layers with four norms.

    The input and output of linear layers may be clamped (four bounds each).
    """
    eps = config.number("rms_norm_eps")
    norm, unweighted_norm = rmsnorm(eps), rmsnorm(eps, weight=False)
    block = {
        "attention": attention(config, v_norm=unweighted_norm, **qk_norm_fields(norm)),
        "feed_forward": glu(config, activation_field="hidden_activation"),
        "norm": norm,
        "norm_placement": "sandwich",
    }
    position_table = {"rows": config.integer("position_embedding_size"), "axes": 2}
    clamp_count, merge_size = 4 * 7 if config.flag("use_clipped_linears") else 0, config.integer("pooling_kernel_size")
    image_resizing = {**GEMMA4_BUDGET, "merge": merge_size}
    is_standardized = config.flag("standardize")
    tower = vision_transformer(
        config, block, positions=position_table, standardize=is_standardized, clamps=clamp_count, image=image_resizing
    )
    pooling_table: Table = {"merge": merge_size, "merged": "mean", "norm": unweighted_norm}
    embed_vision = projector(config.integer("hidden_size"), (text_hidden_size, False, "identity"), **pooling_table)
    return {"vision_tower": tower, "embed_vision": embed_vision}


def _conformer_encoder(
    config: Config, field_prefix: str, activation: str, subsampling_table: Table, **encoder_fields: Any
) -> Table:
    """Returns the layers of the Universal Speech Model. field_prefix: common prefix of the config fields."""
    hidden_size, norm = config.integer("hidden_size"), rmsnorm(config.number("rms_norm_eps"))
    heads_field = f"{field_prefix}num_attention_heads"
    config.quotient(heads_field, hidden_size, config.integer(heads_field))
    attention_table = {
        "num_attention_heads": config.integer(heads_field),
        "relative_keys": True,
        "chunk_size": config.integer(f"{field_prefix}attention_chunk_size"),
        "context_left": max(1, config.count(f"{field_prefix}attention_context_left")),
        "context_right": config.count(f"{field_prefix}attention_context_right"),
    }
    kernel_size = config.integer(f"{field_prefix}conv_kernel_size")
    return {
        "type": "conformer",
        "hidden_size": hidden_size,
        "subsampling": subsampling_table,
        "num_hidden_layers": config.integer(f"{field_prefix}num_hidden_layers"),
        "attention": attention_table,
        "convolution": {"kernel_size": kernel_size, "hidden_act": activation, "norm": norm},
        "feed_forward": mlp(4 * hidden_size, activation, bias=False),
        "norm": norm,
        "norm_placement": "sandwich",
        **encoder_fields,
    }


def _read_pair(config: Config, field_name: str) -> list[int]:
    """Reads a config field that has two positive integers."""
    size_pair = config.get(field_name)
    if (
        not isinstance(size_pair, list | tuple)
        or len(size_pair) != 2
        or any(type(pair_size) is not int or not 0 < pair_size <= LARGEST_SIZE for pair_size in size_pair)
    ):
        raise config.error(field_name, size_pair, "two positive whole numbers")
    return list(size_pair)


def _read_gemma4_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Gemma 4's audio encoder. Its class requires as many mel bins as channels in the first convolution."""
    first_channels, second_channels = _read_pair(config, "subsampling_conv_channels")
    if first_channels < 4:
        raise config.error("subsampling_conv_channels", first_channels, "4 channels or more")
    norm = layernorm(config.number("rms_norm_eps"), bias=False)
    convolutions = [{"channels": first_channels}, {"channels": second_channels}]
    subsampling_table = {"num_mel_bins": first_channels // 4 * 4, "convolutions": convolutions, "norm": norm}
    output_width, activation = config.integer("output_proj_dims"), config.choice(ACTIVATIONS, "hidden_act")
    clamp_count = 4 * 10 if config.flag("use_clipped_linears") else 0
    audio_framing = {"type": "recording", **GEMMA4_FRAMES}
    tower = _conformer_encoder(
        config, "", activation, subsampling_table, output_size=output_width, clamps=clamp_count, audio=audio_framing
    )
    unweighted_norm = rmsnorm(config.number("rms_norm_eps"), weight=False)
    embed_audio = projector(output_width, (text_hidden_size, False, "identity"), norm=unweighted_norm)
    return {"audio_tower": tower, "embed_audio": embed_audio}


def _read_unified_vision(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads unified Gemma 4's vision, whose patch is a block of pooling_kernel_size × pooling_kernel_size patches."""
    embedding_width = config.integer("mm_embed_dim")
    unweighted_norm = rmsnorm(config.number("rms_norm_eps"), weight=False)
    patch_fields = {"patch_size": config.integer("patch_size") * config.integer("pooling_kernel_size"), "bias": True}
    position_table = {"rows": config.integer("mm_posemb_size"), "axes": 2}
    embedder_table = {
        "type": "patches",
        "hidden_size": embedding_width,
        "patches": patch_fields,
        "positions": position_table,
        "norm": layernorm(1e-5),
        "image": {**GEMMA4_BUDGET, "merge": 1, "projects_padding": True},
    }
    input_width = config.integer("output_proj_dims")
    embed_vision = projector(input_width, (text_hidden_size, False, "identity"), norm=unweighted_norm)
    return {"vision_embedder": embedder_table, "embed_vision": embed_vision}


def _read_unified_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    frame_size = config.integer("audio_embed_dim", "hidden_size", "output_proj_dims", "audio_samples_per_token")
    norm = rmsnorm(config.number("rms_norm_eps"), weight=False)
    audio = {"type": "recording", "window": 1, "hop": frame_size, "marks": 2}
    embed_audio = projector(frame_size, (text_hidden_size, False, "identity"), norm=norm, raw=True, audio=audio)
    return {"embed_audio": embed_audio}


def _gemma3n_embedder(config: Config, text_hidden_size: int) -> Table:
    """Returns Gemma 3n's embedder of an encoder's outputs, with an embedding table of image or audio tokens."""
    norm, unweighted_norm = rmsnorm(config.number("rms_norm_eps")), rmsnorm(config.number("rms_norm_eps"), weight=False)
    return projector(
        config.integer("hidden_size"),
        (text_hidden_size, False, "identity"),
        norm=norm,
        out_norm=unweighted_norm,
        vocab_size=config.integer("vocab_size"),
    )


def _read_gemma3n_vision(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Gemma 3n's vision encoder, whose outputs form a fixed number of embeddings, and its embedder."""
    image_tokens, architecture = root_config.integer("vision_soft_tokens_per_image"), config.text("architecture")
    if image_tokens != GEMMA3N_IMAGE["tokens"]:
        raise root_config.error(
            "vision_soft_tokens_per_image", image_tokens, f"{GEMMA3N_IMAGE['tokens']}, as the encoder gives"
        )
    if config.integer("hidden_size") != OUTPUT_WIDTH:
        raise config.error("hidden_size", config.integer("hidden_size"), f"{OUTPUT_WIDTH}, the width of {architecture}")
    if architecture != "mobilenetv5_300m_enc":
        raise config.error("architecture", architecture, "mobilenetv5_300m_enc")
    if config.get("model_args"):
        raise config.field_error("model_args", "none, because they change the architecture")
    return {"vision_tower": mobilenet_v5(), "embed_vision": _gemma3n_embedder(config, text_hidden_size)}


def _read_gemma3n_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    channel_counts = _read_pair(config, "sscp_conv_channel_size")
    kernel_sizes, strides = (_read_pairs(config, name) for name in ("sscp_conv_kernel_size", "sscp_conv_stride_size"))
    convolution_tables = [
        {"channels": channel_count, "kernel": kernel_size, "stride": stride}
        for channel_count, kernel_size, stride in zip(channel_counts, kernel_sizes, strides, strict=True)
    ]
    norm = layernorm(config.number("sscp_conv_group_norm_eps"), bias=False)
    num_mel_bins = config.integer("input_feat_size")
    subsampling_table = {"num_mel_bins": num_mel_bins, "convolutions": convolution_tables, "norm": norm}
    audio_framing = {"type": "recording", **GEMMA3N_FRAMES}
    reduction = config.integer("conf_reduction_factor")
    tower = _conformer_encoder(config, "conf_", "silu", subsampling_table, reduction=reduction, audio=audio_framing)
    return {"audio_tower": tower, "embed_audio": _gemma3n_embedder(config, text_hidden_size)}


def _read_pairs(config: Config, field_name: str) -> list[list[int]]:
    """Reads a config field with two (time, frequency) pairs of sizes."""
    size_pairs = config.get(field_name)
    if not isinstance(size_pairs, list | tuple) or len(size_pairs) != 2:
        raise config.error(field_name, size_pairs, "two pairs of positive whole numbers")
    return [
        _read_pair(Config({field_name: size_pair}, {}, config.model_type, location=config.location), field_name)
        for size_pair in size_pairs
    ]


GEMMA4_VISION_DEFAULTS: Table = class_defaults("gemma4_vision")

GEMMA4_AUDIO_DEFAULTS: Table = class_defaults("gemma4_audio")

UNIFIED_VISION_DEFAULTS: Table = class_defaults("gemma4_unified_vision")

GEMMA3N_AUDIO_DEFAULTS: Table = {
    **class_defaults("gemma3n_audio"),
    "sscp_conv_kernel_size": ((3, 3), (3, 3)),
    "sscp_conv_stride_size": ((2, 2), (2, 2)),
}

AUDIO_FIELDS = field_names("""
    attention_invalid_logits_value attention_logit_cap conf_attention_logit_cap conf_residual_weight gradient_clipping
    residual_weight sscp_conv_eps vocab_offset
    """)
IMAGE_FIELDS = frozenset({"do_pooling", "label_names", "num_classes", "vocab_offset"})

GEMMA4_SECTIONS = {
    "vision_config": TowerSection(_read_gemma4_vision, {"gemma4_vision": GEMMA4_VISION_DEFAULTS}, default_section=None),
    "audio_config": TowerSection(
        _read_gemma4_audio, {"gemma4_audio": GEMMA4_AUDIO_DEFAULTS}, default_section=None, ignored_fields=AUDIO_FIELDS
    ),
}

WRAPPERS = {
    "gemma4": GEMMA4_SECTIONS,
    "diffusion_gemma": vision_section(_read_gemma4_vision, {"gemma4_vision": GEMMA4_VISION_DEFAULTS}),
    "embedding_gemma2": GEMMA4_SECTIONS,
    "gemma4_unified": {
        "vision_config": TowerSection(
            _read_unified_vision,
            {"gemma4_unified_vision": UNIFIED_VISION_DEFAULTS},
            default_section=None,
            ignored_fields=frozenset({"model_patch_size"}),
        ),
        "audio_config": TowerSection(
            _read_unified_audio,
            {"gemma4_unified_audio": {"audio_embed_dim": 640, "rms_norm_eps": 1e-6}},
            default_section=None,
        ),
    },
    "gemma3n": {
        "vision_config": TowerSection(
            _read_gemma3n_vision,
            {
                "gemma3n_vision": {
                    "architecture": "mobilenetv5_300m_enc",
                    "hidden_size": 2048,
                    "vocab_size": 128,
                    "rms_norm_eps": 1e-6,
                    "model_args": None,
                }
            },
            ignored_fields=IMAGE_FIELDS,
        ),
        "audio_config": TowerSection(
            _read_gemma3n_audio, {"gemma3n_audio": GEMMA3N_AUDIO_DEFAULTS}, ignored_fields=AUDIO_FIELDS
        ),
    },
}

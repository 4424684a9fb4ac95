"""Whisper's encoder with a text model, and the vision and audio encoders of Phi-4-multimodal.

transformers: models/qwen2_audio, voxtral, audioflamingo3, musicflamingo, moss_transcribe_diarize, glmasr,
phi4_multimodal.
Ultravox: ultravox/model/ultravox_model.py of fixie-ai/ultravox.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, biases, glu, layer_table, layernorm, mlp, rmsnorm, rope
from .section import TowerSection, patches_per_side, projector, self_attention, two_linear_layers
from .siglip import siglip_with_positions


def _whisper_encoder(
    config: Config, width_field: str, depth_field: str, heads_field: str, ffn_width_field: str
) -> Table:
    """Returns Whisper's encoder: two convolutions, a position embedding, and layers whose keys have no bias."""
    norm, position_rows = layernorm(), config.integer("max_source_positions")
    attention = self_attention(config, heads_field, width_field, **biases(True, "q_bias", "v_bias", "o_bias"))
    ffn = mlp(config.integer(ffn_width_field), config.choice(ACTIVATIONS, "activation_function"))
    stack_fields = {
        "num_hidden_layers": config.integer(depth_field),
        "block": layer_table(attention, ffn, norm),
        "stem": {"num_mel_bins": config.integer("num_mel_bins"), "max_source_positions": position_rows},
        "position": {"type": "learned", "max_position_embeddings": position_rows},
        "final_norm": norm,
    }
    return {"type": "audio", "hidden_size": config.integer(width_field), "stack": stack_fields}


def _read_qwen2_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen2-Audio, which averages pairs of positions before one linear layer."""
    tower = _whisper_encoder(config, *WHISPER_NAMES.values())
    tower["audio"] = _audio_clip_rule(config, 2)
    linear_layers = projector(config.integer("d_model"), (text_hidden_size, True, "identity"), frames=2, merged="mean")
    return {"audio_tower": tower, "multi_modal_projector": linear_layers}


def _audio_clip_rule(config: Config, merge_size: int, **rule_fields: int | bool) -> Table:
    """Returns the rule by which Whisper's processor cuts audio into clips. merge_size: encoder positions per token."""
    return {"type": "clips", "frames": 2 * config.integer("max_source_positions"), "merge": merge_size, **rule_fields}


def _read_voxtral(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Voxtral: consecutive positions are concatenated up to the width of the encoder's FFN."""
    tower = _whisper_encoder(config, *WHISPER_NAMES)
    hidden_size, activation = config.integer("hidden_size"), root_config.choice(ACTIVATIONS, "projector_hidden_act")
    merged_frames = config.quotient("hidden_size", config.integer("intermediate_size"), hidden_size)
    tower["audio"] = _audio_clip_rule(config, merged_frames, padded=True, several=True)
    linear_layers = two_linear_layers(text_hidden_size, activation, bias=False)
    return {"audio_tower": tower, "multi_modal_projector": projector(hidden_size, *linear_layers, frames=merged_frames)}


def _read_audio_flamingo(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Audio Flamingo 3, with at most ten minutes of audio; the projector averages pairs of positions."""
    towers = _read_moss(root_config, config, text_hidden_size, frames=2, merged="mean")
    towers["audio_tower"]["audio"] = _audio_clip_rule(config, 2, several=True, max_clips=20)
    return towers


def _read_music_flamingo(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Music Flamingo, with at most twenty minutes of audio, and a mark before and after its tokens."""
    towers = _read_audio_flamingo(root_config, config, text_hidden_size)
    towers["audio_tower"]["audio"] |= {"max_clips": 40, "marks": 2}
    return towers


def _read_moss(root_config: Config, config: Config, text_hidden_size: int, **merge_fields: Any) -> Table:
    """Reads MOSS-Transcribe-Diarize: concatenated positions, linear layers and a final norm.

    merge_fields: how another projector of two linear layers merges positions.
    """
    has_bias, activation = root_config.flag("projector_bias"), root_config.choice(ACTIVATIONS, "projector_hidden_act")
    merge_fields = merge_fields or {"frames": root_config.integer("audio_merge_size"), "out_norm": layernorm()}
    input_width = config.integer("hidden_size")
    linear_layers = projector(input_width, *two_linear_layers(text_hidden_size, activation, has_bias), **merge_fields)
    return {"audio_tower": _whisper_encoder(config, *WHISPER_NAMES), "multi_modal_projector": linear_layers}


def _read_glmasr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads GLM-ASR: Whisper's encoder with RoPE instead of its positions, and an inner width of twice the text's."""
    hidden_size, head_count, norm = config.integer("hidden_size"), config.integer("num_attention_heads"), layernorm()
    kv_head_count = config.optional_integer("num_key_value_heads") or head_count
    config.quotient("num_key_value_heads", head_count, kv_head_count)
    attention = self_attention(
        config,
        num_key_value_heads=kv_head_count,
        position=rope(config, 0.5),
        **biases(True, "q_bias", "v_bias", "o_bias"),
    )
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    clip_rule = {"type": "clips", "frames": WHISPER_FRAMES, "several": True, "max_clips": GLM_CLIPS}
    block = layer_table(attention, ffn, norm)
    stem = {"num_mel_bins": config.integer("num_mel_bins"), "max_source_positions": WHISPER_FRAMES // 2}
    stack_fields = {
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "block": block,
        "stem": stem,
        "final_norm": norm,
    }
    merged_frames = config.quotient("hidden_size", config.integer("intermediate_size"), hidden_size)
    activation = root_config.choice(ACTIVATIONS, "projector_hidden_act")
    linear_layers = two_linear_layers(text_hidden_size, activation, inner_width=2 * text_hidden_size)
    tower = {
        "type": "audio",
        "hidden_size": hidden_size,
        "stack": stack_fields,
        "audio": {**clip_rule, "merge": GLM_MERGE},
    }
    return {"audio_tower": tower, "multi_modal_projector": projector(hidden_size, *linear_layers, frames=merged_frames)}


def _read_voxtral_realtime(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Voxtral Realtime: causal layers with RoPE, RMSNorm and gated networks, and concatenated positions.

    A recording arrives in parts, so that no rule for its frames is stated.
    """
    hidden_size, norm = config.integer("hidden_size"), rmsnorm(config.number("rms_norm_eps"))
    attention = {
        "num_attention_heads": config.integer("num_attention_heads"),
        "head_dim": config.integer("head_dim"),
        "position": rope(config),
        **biases(True, "q_bias", "v_bias", "o_bias"),
    }
    stack_fields = {
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "block": layer_table(attention, {**glu(config), "down_bias": True}, norm),
        "stem": {
            "num_mel_bins": config.integer("num_mel_bins"),
            "max_source_positions": config.integer("max_position_embeddings"),
        },
        "final_norm": norm,
    }
    activation = root_config.choice(ACTIVATIONS, "projector_hidden_act")
    linear_layers = two_linear_layers(text_hidden_size, activation, bias=False)
    merged_frames = root_config.integer("downsample_factor")
    return {
        "audio_tower": {"type": "audio", "hidden_size": hidden_size, "stack": stack_fields},
        "multi_modal_projector": projector(hidden_size, *linear_layers, frames=merged_frames),
    }


def _read_ultravox(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Ultravox: concatenated positions, a norm, a gated and a plain linear layer to the text model's width.

    A norm follows the gated layer (`projector_ln_mid`, from version 0.5 on) or the last one. An encoder that
    `audio_model_id` names is loaded from there, whatever `audio_config` says.
    """
    if root_config.has("audio_model_id"):
        raise root_config.field_error("audio_model_id", "null and the encoder's audio_config")
    root_config.require("projector_act", "swiglu")
    inner_width, norm = root_config.integer("hidden_size"), rmsnorm(1e-6)
    if inner_width % 2:
        raise root_config.error("hidden_size", inner_width, "an even number: one half gates the other")
    inner_norm, last_norm = (norm, None) if root_config.flag("projector_ln_mid") else (None, norm)
    frames = root_config.integer("stack_factor")
    frame_stacking = {"frames": frames, "norm": norm, "norm_of": "merged", "out_norm": inner_norm}
    gated_layer = {"size": inner_width, "hidden_act": "silu", "gated": True}
    tower = _whisper_encoder(config, *WHISPER_NAMES.values())
    tower["audio"] = _audio_clip_rule(config, root_config.integer("stack_factor"), several=True, fits=True)
    tower["stack"]["stem"]["chunk"] = tower["audio"]["frames"]
    return {
        "audio_tower": tower,
        "audio_projector": {**projector(config.integer("d_model"), **frame_stacking), "maps": [gated_layer]},
        "multi_modal_projector": projector(inner_width // 2, (text_hidden_size, False, "identity"), out_norm=last_norm),
    }


def _read_phi4_vision(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Phi-4-multimodal's vision encoder: SigLIP with its head, and average pooling of patch blocks.

    Vectors mark ends of lines and separate images; the projector has two linear layers.
    """
    pooling_table: Table = {"merge": 2, "merged": "mean", "input_marks": 2}
    image_resizing = {"type": "dynamic_hd", "size": config.integer("image_size"), "max_tiles": PHI4_TILES, "merge": 2}
    image_processor = {
        **siglip_with_positions(config, patches_per_side(config) ** 2, has_pooling=True),
        "image": image_resizing,
    }
    image_projector = projector(config.integer("hidden_size"), *two_linear_layers(text_hidden_size), **pooling_table)
    return {"image_processor": image_processor, "image_projector": image_projector}


def _read_phi4_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Phi-4-multimodal's audio encoder: a conformer with a relative position bias.

    It has two linear layers for audio alone and two for audio with images.
    """
    if config.has("head_dim"):
        raise config.field_error("head_dim", "none: hidden_size / num_attention_heads is what is counted")
    hidden_size, head_count, time_reduction = config.integer_fields(
        "hidden_size", "num_attention_heads", "time_reduction"
    ).values()
    config.quotient("num_attention_heads", hidden_size, head_count)
    config.require("ext_pw_out_channel", hidden_size)
    config.require("depthwise_separable_out_channel", hidden_size)
    if time_reduction % 2:
        raise config.error("time_reduction", time_reduction, "an even number")
    mel_bin_count = config.integer("input_size")
    for _ in range(time_reduction.bit_length() - 1):
        mel_bin_count = (mel_bin_count - 1) // 2 + 1
    config.require_if_present("nemo_final_size", mel_bin_count)
    first_conv = {"channels": config.integer("nemo_conv_channels"), "bias": True}
    halving_convolutions = [
        first_conv,
        *({**first_conv, "separable": True} for _ in range(time_reduction.bit_length() - 2)),
    ]
    subsampling_table = {
        "num_mel_bins": config.integer("input_size"),
        "convolutions": halving_convolutions,
        "bias": True,
        "standardize": True,
    }
    convolution = {
        "kernel_size": config.integer("kernel_size"),
        "hidden_act": config.choice(ACTIVATIONS, "conv_activation"),
        "gate_act": config.choice(ACTIVATIONS, "conv_glu_type"),
        "gate_bias": True,
        "bias": True,
        "multiplier": config.integer("depthwise_multiplier"),
        "separable": True,
    }
    audio = {"type": "recording", "window": 400, "frames_per_token": time_reduction * config.integer("downsample_rate")}
    tower = {
        "type": "conformer",
        "hidden_size": hidden_size,
        "subsampling": subsampling_table,
        "num_hidden_layers": config.integer("num_blocks"),
        "attention": {"num_attention_heads": head_count, "bias": True},
        "convolution": convolution,
        "feed_forward": glu(config, bias=True, activation_field="activation"),
        "norm": layernorm(),
        "segment": PHI4_POSITIONS,
        "audio": audio,
        "relative_buckets": config.integer("bias_max_distance") * (1 if config.flag("bias_symmetric") else 2),
    }
    frames = config.integer("downsample_rate")
    audio_projector = projector(hidden_size, *two_linear_layers(text_hidden_size), frames=frames)
    return {
        "audio_encoder": tower,
        "audio_projector": {**audio_projector, "with_images": False},
        "audio_vision_projector": {**audio_projector, "with_images": True},
    }


WHISPER_FRAMES, GLM_CLIPS, GLM_MERGE = 3000, 21, 4
"""The frames of a clip of Whisper's processor, and the most clips and the positions per token of GLM-ASR's."""

PHI4_TILES = 36
"""The most tiles of an image in Phi-4-multimodal's processor (`dynamic_hd`)."""

PHI4_POSITIONS = 500
"""The most positions that the layers of Phi-4-multimodal's audio encoder read at once."""

QWEN2_AUDIO_DEFAULTS: Table = class_defaults("qwen2_audio_encoder")

VOXTRAL_DEFAULTS: Table = class_defaults("voxtral_encoder")

GLMASR_DEFAULTS: Table = class_defaults("glmasr_encoder")

VOXTRAL_REALTIME_DEFAULTS: Table = class_defaults("voxtral_realtime_encoder")

PHI4_VISION_DEFAULTS: Table = class_defaults("phi4_multimodal_vision")

PHI4_AUDIO_DEFAULTS: Table = class_defaults("phi4_multimodal_audio")

AUDIO_FIELDS = field_names("""
    activation_dropout audio_token_id chunk_size dropout_rate encoder_layerdrop feature_layer layerdrop left_chunk
    nemo_activation nemo_final_size num_hidden_layers scale_embedding
    """)

WHISPER_DEFAULTS: Table = {
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "d_model": 384,
    "activation_function": "gelu",
    "max_source_positions": 1500,
}
WHISPER_DECODER = field_names("""
    apply_spec_augment classifier_proj_size decoder_attention_heads decoder_ffn_dim decoder_layerdrop decoder_layers
    mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob
    max_target_positions median_filter_width use_weighted_layer_sum
    """)
"""Fields of Whisper's config that describe its decoder and its training."""

ULTRAVOX_DEFAULTS: Table = {
    "stack_factor": 8,
    "hidden_size": 4096,
    "projector_act": "swiglu",
    "projector_ln_mid": False,
}

WHISPER_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
}

FLAMINGO_SECTION = TowerSection(
    _read_audio_flamingo,
    dict.fromkeys(("audioflamingo3_encoder", "musicflamingo_encoder"), class_defaults("audioflamingo3_encoder")),
    ignored_fields=AUDIO_FIELDS,
    aliases=WHISPER_NAMES,
)

WRAPPERS = {
    "qwen2_audio": {
        "audio_config": TowerSection(
            _read_qwen2_audio, {"qwen2_audio_encoder": QWEN2_AUDIO_DEFAULTS}, ignored_fields=AUDIO_FIELDS
        )
    },
    "voxtral": {
        "audio_config": TowerSection(
            _read_voxtral,
            {"voxtral_encoder": VOXTRAL_DEFAULTS},
            ignored_fields=AUDIO_FIELDS | {"head_dim"},
        )
    },
    "audioflamingo3": {"audio_config": FLAMINGO_SECTION},
    "musicflamingo": {"audio_config": replace(FLAMINGO_SECTION, read_tower=_read_music_flamingo)},
    "moss_transcribe_diarize": {
        "audio_config": TowerSection(
            _read_moss,
            {"moss_transcribe_diarize_audio": class_defaults("moss_transcribe_diarize_audio")},
            ignored_fields=AUDIO_FIELDS,
            aliases=WHISPER_NAMES,
        )
    },
    "glmasr": {
        "audio_config": TowerSection(
            _read_glmasr,
            {"glmasr_encoder": GLMASR_DEFAULTS},
            ignored_fields=AUDIO_FIELDS | {"partial_rotary_factor", "rope_parameters"},
        )
    },
    "voxtral_realtime": {
        "audio_config": TowerSection(
            _read_voxtral_realtime,
            {"voxtral_realtime_encoder": VOXTRAL_REALTIME_DEFAULTS},
            ignored_fields=AUDIO_FIELDS | {"rope_parameters", "sliding_window"},
        )
    },
    "ultravox": {
        "audio_config": TowerSection(
            _read_ultravox,
            {"whisper": WHISPER_DEFAULTS},
            ULTRAVOX_DEFAULTS,
            None,
            AUDIO_FIELDS | WHISPER_DECODER,
            WHISPER_NAMES,
        )
    },
    "phi4_multimodal": {
        "vision_config": TowerSection(
            _read_phi4_vision,
            {"phi4_multimodal_vision": PHI4_VISION_DEFAULTS},
            ignored_fields=frozenset({"crop_size", "feature_layer", "image_token_id"}),
        ),
        "audio_config": TowerSection(
            _read_phi4_audio, {"phi4_multimodal_audio": PHI4_AUDIO_DEFAULTS}, ignored_fields=AUDIO_FIELDS
        ),
    },
}

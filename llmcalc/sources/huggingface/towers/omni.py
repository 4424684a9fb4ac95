"""Vision and audio encoders of Qwen2.5-Omni, Qwen3-Omni and Qwen3-ASR, whose audio encoders read chunks of frames.

transformers: models/qwen2_5_omni, qwen3_omni_moe, qwen3_asr.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, QKVO_BIASES, Table, biases, layer_table, layernorm, mlp
from .audio import AUDIO_FIELDS, WHISPER_NAMES
from .qwen import IGNORED_FIELDS, QWEN2_5_DEFAULTS, QWEN3_DEFAULTS, read_qwen2_5, read_qwen3
from .section import TowerSection, projector, self_attention, two_linear_layers


def _chunked_encoder(
    config: Config, stem_table: Table, chunk_frames: int, audio_framing: Table, **attention_fields: Any
) -> Table:
    """Returns an audio encoder whose layers attend within windows of `chunk_frames` positions."""
    attention_table = self_attention(
        config, "encoder_attention_heads", "d_model", grid_window=chunk_frames, **attention_fields
    )
    ffn = mlp(config.integer("encoder_ffn_dim"), config.choice(ACTIVATIONS, "activation_function"))
    stack_fields = {
        "num_hidden_layers": config.integer("encoder_layers"),
        "block": layer_table(attention_table, ffn, layernorm()),
        "stem": stem_table,
        "position": {"type": "sinusoidal"},
    }
    return {"type": "audio", "hidden_size": config.integer("d_model"), "stack": stack_fields, "audio": audio_framing}


def _read_qwen2_5_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen2.5-Omni's audio encoder: Whisper's convolutions in chunks, and the mean of pairs of positions.

    Its table of two vectors marks the ends of a recording.
    """
    config.require("output_dim", text_hidden_size)
    chunk_frames = 2 * config.integer("n_window")
    stem_table = config.integer_fields("num_mel_bins", "max_source_positions")
    audio_framing = {"type": "chunks", "chunk": chunk_frames, "halvings": 1, "merge": 2, "max_seconds": QWEN2_5_SECONDS}
    tower = _chunked_encoder(
        config,
        {**stem_table, "chunk": chunk_frames},
        -(-chunk_frames // 2),
        audio_framing,
        **biases(True, "q_bias", "v_bias", "o_bias"),
    )
    pooling_table: Table = {"frames": 2, "merged": "mean", "norm": layernorm(), "output_marks": 2}
    audio_projector = projector(config.integer("d_model"), (text_hidden_size, True, "identity"), **pooling_table)
    return {"audio_tower": tower, "audio_projector": audio_projector}


def _read_qwen3_audio(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    config.require("output_dim", text_hidden_size)
    return _qwen3_audio_towers(config, text_hidden_size)


def _qwen3_audio_towers(config: Config, text_hidden_size: int, has_whole_chunks: bool = False) -> Table:
    """Returns Qwen3-Omni's audio encoder: three convolutions over chunks of a spectrogram, and two linear layers.

    text_hidden_size: that of the output. has_whole_chunks: whether a recording shorter than a chunk is padded to one.
    """
    chunk_frames, channel_count = 2 * config.integer("n_window"), config.integer("downsample_hidden_size")
    window_chunks = config.integer("n_window_infer") // chunk_frames
    if not window_chunks:
        raise config.field_error("n_window_infer", f"{chunk_frames} or more, the frames of a chunk")
    subsampling_table = {
        "num_mel_bins": config.integer("num_mel_bins"),
        "convolutions": [{"channels": channel_count, "bias": True}] * 3,
        "hidden_act": "gelu",
        "chunk": chunk_frames,
        "whole_chunks": has_whole_chunks,
    }
    audio_framing = {"type": "chunks", "chunk": chunk_frames, "halvings": 3, "drops_rest": True}
    stem_table = {"type": "spectrum", "subsampling": subsampling_table}
    tower = _chunked_encoder(
        config, stem_table, -(-chunk_frames // 8) * window_chunks, audio_framing, **biases(True, *QKVO_BIASES)
    )
    tower["stack"]["final_norm"] = layernorm()
    hidden_size, activation = config.integer("d_model"), config.choice(ACTIVATIONS, "activation_function")
    audio_projector = projector(hidden_size, *two_linear_layers(text_hidden_size, activation, inner_width=hidden_size))
    return {"audio_tower": tower, "audio_projector": audio_projector}


def _read_qwen3_asr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Qwen3-ASR's encoder, which is Qwen3-Omni's; recordings shorter than 0.5 s are padded to that length."""
    towers = _qwen3_audio_towers(config, config.integer("output_dim"), has_whole_chunks=True)
    towers["audio_tower"]["audio"]["least_samples"] = QWEN3_ASR_SAMPLES
    return towers


QWEN2_5_SECONDS, QWEN3_ASR_SAMPLES = 300, 8000
"""The longest recording of Qwen2.5-Omni's processors in seconds, and the fewest samples of Qwen3-ASR's processor."""

QWEN2_5_AUDIO_DEFAULTS: Table = class_defaults("qwen2_5_omni_audio_encoder")
QWEN3_AUDIO_DEFAULTS: Table = class_defaults("qwen3_omni_moe_audio_encoder")
QWEN3_ASR_DEFAULTS: Table = class_defaults("qwen3_asr_encoder")
QWEN3_AUDIO_SECTION = TowerSection(
    _read_qwen3_audio,
    {"qwen3_omni_moe_audio_encoder": QWEN3_AUDIO_DEFAULTS},
    ignored_fields=AUDIO_FIELDS | {"conv_chunksize", "max_source_positions", "max_position_embeddings"},
    aliases={name: other for other, name in WHISPER_NAMES.items()},
)

WRAPPERS = {
    "qwen2_5_omni_thinker": {
        "vision_config": TowerSection(
            read_qwen2_5,
            {"qwen2_5_omni_vision_encoder": QWEN2_5_DEFAULTS},
            ignored_fields=IGNORED_FIELDS | {"embed_dim"},
        ),
        "audio_config": TowerSection(
            _read_qwen2_5_audio, {"qwen2_5_omni_audio_encoder": QWEN2_5_AUDIO_DEFAULTS}, ignored_fields=AUDIO_FIELDS
        ),
    },
    "qwen3_omni_moe_thinker": {
        "vision_config": TowerSection(
            read_qwen3, {"qwen3_omni_moe_vision_encoder": QWEN3_DEFAULTS}, ignored_fields=IGNORED_FIELDS
        ),
        "audio_config": QWEN3_AUDIO_SECTION,
    },
    "qwen3_asr": {
        "audio_config": replace(
            QWEN3_AUDIO_SECTION, read_tower=_read_qwen3_asr, defaults_by_type={"qwen3_asr_encoder": QWEN3_ASR_DEFAULTS}
        )
    },
}

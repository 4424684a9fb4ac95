"""Nemotron 3.5 Transcribe: a speech encoder, a diarization encoder, and the layers of word timestamps.

transformers: models/nemotron3_5_transcribe, nemotron3_diarization.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, Table, layer_table, layernorm, mlp, qk_norm_fields, rope
from .section import TowerSection, projector, self_attention


def _read_transcribe(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads the speech encoder, the diarization encoder and the layers of word timestamps."""
    speech_config = config.section("asr_config", SPEECH_DEFAULTS)
    diarization_config = config.section("diarization_config", DIARIZATION_DEFAULTS)
    speaker_config = diarization_config.section("audio_config", SPEAKER_DEFAULTS)
    head_config = diarization_config.section("head_config", HEAD_DEFAULTS)
    timestamp_config = root_config.section("word_timestamp_config", TIMESTAMP_DEFAULTS)
    speech_config.require("model_type", "nemotron3_5_transcribe_asr_audio")
    diarization_config.require("model_type", "nemotron3_diarization")
    hidden_size, frames_per_token, mel_bins = speech_config.integer_fields(
        "hidden_size", "subsampling_factor", "num_mel_bins"
    ).values()
    timestamp_config.require("hidden_size", hidden_size)
    for section_config, field_name, field_value in (
        (speaker_config, "subsampling_factor", frames_per_token),
        (speaker_config, "num_mel_bins", mel_bins),
        (head_config, "subsampling_factor", frames_per_token),
        (head_config, "audio_hidden_size", speaker_config.integer("hidden_size")),
    ):
        section_config.require(field_name, field_value)
    tower = {
        "type": "diarized",
        "num_mel_bins": mel_bins,
        "frames": frames_per_token,
        "hidden_size": hidden_size,
        "stack": _stack(speech_config, has_qk_norm=True),
        "norm": layernorm(),
        "speakers": {
            "hidden_size": speaker_config.integer("hidden_size"),
            "stack": _stack(speaker_config, has_qk_norm=False),
            "head_size": head_config.integer("hidden_size"),
            "num_speakers": head_config.integer("num_speakers"),
        },
        "timestamps": {
            "stack": _stack(timestamp_config, has_qk_norm=True),
            "upsampling_factor": timestamp_config.integer("upsampling_factor"),
            "classes": timestamp_config.integer("vocab_size"),
        },
    }
    for section_config, parent_config in (
        (speaker_config, diarization_config),
        (head_config, diarization_config),
        (diarization_config, config),
        (speech_config, config),
    ):
        section_config.finish(IGNORED_FIELDS, parent_config)
    timestamp_config.finish(IGNORED_FIELDS, config)
    return {"audio_tower": tower, "multi_modal_projector": projector(hidden_size, (text_hidden_size, True, "identity"))}


def _stack(config: Config, has_qk_norm: bool) -> Table:
    """Returns layers between two norms. has_qk_norm: whether queries and keys are normalized."""
    head_count, norm = config.integer("num_attention_heads"), layernorm()
    config.require_if_present("num_key_value_heads", head_count)
    position_encoding = rope(config, default_rotary_fraction=0.5 if has_qk_norm else 1.0)
    attention = self_attention(config, o_bias=True, position=position_encoding)
    attention |= qk_norm_fields(norm) if has_qk_norm else {}
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    block = layer_table(attention, ffn, norm)
    depth = config.integer("num_hidden_layers")
    return {"num_hidden_layers": depth, "block": block, "embedding_norm": norm, "final_norm": norm}


LAYER_DEFAULTS: Table = {"num_key_value_heads": None, "hidden_act": "gelu"}
SPEECH_DEFAULTS: Table = {
    **LAYER_DEFAULTS,
    "model_type": "nemotron3_5_transcribe_asr_audio",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 10,
    "num_mel_bins": 128,
    "subsampling_factor": 8,
}
SPEAKER_DEFAULTS: Table = {
    **LAYER_DEFAULTS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 31,
    "num_attention_heads": 8,
    "num_mel_bins": 128,
    "subsampling_factor": 8,
}
HEAD_DEFAULTS: Table = {"hidden_size": 192, "num_speakers": 8, "audio_hidden_size": 512, "subsampling_factor": 8}
DIARIZATION_DEFAULTS: Table = {"model_type": "nemotron3_diarization"}
TIMESTAMP_DEFAULTS: Table = {
    **LAYER_DEFAULTS,
    "hidden_size": 1280,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "vocab_size": 23863,
    "upsampling_factor": 2,
}
IGNORED_FIELDS = frozenset(
    {"attention_dropout", "blank_token_id", "chunk_left_context", "chunk_length", "chunk_right_context"}
    | {"fifo_length", "initializer_range", "max_position_embeddings", "model_type", "residual_scale"}
    | {"rope_parameters", "speaker_cache_update_period", "streaming_config", "partial_rotary_factor"}
)
"""Fields of the sections that change no count."""

WRAPPERS = {
    "nemo_speechlm": {
        "audio_config": TowerSection(
            _read_transcribe,
            {"nemotron3_5_transcribe_audio": {}},
            ignored_fields=frozenset({"speaker_activity_threshold"}),
        )
    }
}

"""Whisper: an audio encoder, whose convolutions reduce 3000 frames to 1500 positions, and a decoder like BART's.

transformers: models/whisper. The encoder's sinusoidal positions are a frozen table in the checkpoint.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...dropout import BART_DROPOUT
from ...family import Family, field_names
from ...field_writers import NO_PADDING_WRITER
from ...parts import Table
from .bart import ALIASES, IGNORED_FIELDS, STACK_WRITERS, bart_model


def _read_whisper(config: Config) -> Table:
    encoder_position = {"type": "learned", "max_position_embeddings": config.integer("max_source_positions")}
    stem_table = config.integer_fields("num_mel_bins", "max_source_positions")
    decoder_position = {"type": "learned", "max_position_embeddings": config.integer("max_target_positions")}
    encoder = {"stem": stem_table, "position": encoder_position}
    model_fields = bart_model(config, "pre", decoder_position, encoder=encoder)
    for stack_name, attention_name in (
        ("encoder", "attention"),
        ("decoder", "attention"),
        ("decoder", "cross_attention"),
    ):
        if stack_name in model_fields:
            attention = model_fields[stack_name]["block"][attention_name]
            attention_fields = {name: value for name, value in attention.items() if name != "k_bias"}
            model_fields[stack_name]["block"][attention_name] = {**attention_fields, "copies_heads": True}
    return model_fields


FAMILIES = {
    "whisper": Family(
        _read_whisper,
        ignored_fields=IGNORED_FIELDS
        | field_names("""
            alignment_heads is_multilingual lang_ids task forced_decoder_ids no_timestamps_token_id prev_sot_token_id
            suppress_ids return_timestamps
            """),
        aliases=ALIASES,
        field_writers={
            **STACK_WRITERS,
            "num_mel_bins": lambda s: require_present(s.first_stack.stem).num_mel_bins,
            "max_source_positions": lambda s: require_present(s.first_stack.stem).max_source_positions,
            "max_target_positions": lambda s: getattr(s.main_stack.position, "max_position_embeddings", None),
            **NO_PADDING_WRITER,
        },
        dropout_fields=BART_DROPOUT,
    )
}

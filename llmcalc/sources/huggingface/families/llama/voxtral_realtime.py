"""Voxtral Realtime: Mistral's decoder, whose norm before each FFN depends on the delay of the text.

transformers: models/voxtral_realtime. Its encoder, whose positions are added to the tokens, is not counted.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, Quirks
from ...parts import Table, attention, decoder, glu, rmsnorm


def _read_voxtral_realtime_text(config: Config) -> Table:
    norm, window_size = rmsnorm(config.number("rms_norm_eps")), config.optional_integer("sliding_window")
    block = {
        "type": "conditioned",
        "attention": attention(config, sliding_window=window_size),
        "feed_forward": glu(config),
        "condition_rank": CONDITION_RANK,
        "norm": norm,
    }
    return decoder(config, block, norm)


CONDITION_RANK = 32
"""Width between the two linear layers that read the delay, which is no field of the config (`AdaRmsNorm`)."""

FAMILIES = {
    "voxtral_realtime": Family(
        None,
        text_type="voxtral_realtime_text",
        text_defaults={
            "vocab_size": 131072,
            "hidden_size": 3072,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "head_dim": 128,
            "tie_word_embeddings": True,
            "sliding_window": 8192,
        },
        tower_file="audio",
        modules={
            "towers.conv_1": "embedder.conv1",
            "towers.conv_2": "embedder.conv2",
            "towers.map_1": "linear_1",
            "towers.map_2": "linear_2",
        },
    ),
    "voxtral_realtime_text": Family(
        _read_voxtral_realtime_text,
        {"tie_word_embeddings": False},
        quirks=Quirks(further_inputs=lambda config: {"t_cond": (1, config.hidden_size)}),
        modules={"condition": "ada_rms_norm", "condition.in_proj": "linear1", "condition.out_proj": "linear2"},
    ),
}

"""Granite Speech: a conformer, and a Q-Former that reads windows of its output (Saon 2025, arXiv:2505.08699).

transformers: models/granite_speech, granite_speech_plus, blip_2 (`Blip2QFormerModel`).
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, layernorm, mlp
from .section import TowerSection, projector

FIRST_FRAME_SAMPLES, FRAME_SAMPLES = 160, 320
"""Samples of the processor: from a recording's start to the end of its first frame, and per frame."""


def _read_granite_speech(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Granite Speech, whose Q-Former may read outputs of other layers in addition to the last layer's output."""
    concatenated_layers = 1 + _count_of_concatenated_layers(config)
    hidden_size = config.integer("hidden_dim")
    head_count = config.integer("num_heads")
    window_size = root_config.integer("window_size")
    query_count = root_config.quotient("downsample_rate", window_size, root_config.integer("downsample_rate"))
    head_dim = config.optional_integer("dim_head") or config.quotient("num_heads", hidden_size, head_count)
    audio_framing = {
        "type": "recording",
        "window": FIRST_FRAME_SAMPLES,
        "hop": FRAME_SAMPLES,
        "frames_per_token": window_size,
    }
    tower = {
        "type": "ctc_conformer",
        "input_size": config.integer("input_dim"),
        "hidden_size": hidden_size,
        "num_hidden_layers": config.integer("num_layers"),
        "num_attention_heads": head_count,
        "head_dim": head_dim,
        "block": config.integer("context_size"),
        "max_distance": config.integer("max_pos_emb"),
        "kernel_size": config.integer("conv_kernel_size"),
        "expansion": config.integer("conv_expansion_factor"),
        "feed_forward": mlp(hidden_size * config.integer("feedforward_mult"), "silu"),
        "norm": layernorm(),
        "labels": config.integer("output_dim"),
        "audio": {**audio_framing, "tokens_at_once": query_count},
    }
    feature_width = concatenated_layers * hidden_size
    qformer_config = root_config.section("projector_config", QFORMER_DEFAULTS)
    resampler = qformer(qformer_config, feature_width, query_count, window_size, config)
    projector_table = projector(
        feature_width, (text_hidden_size, True, "identity"), resampler=resampler, encoder_layers=concatenated_layers
    )
    return {"audio_encoder": tower, "projector": projector_table}


def _count_of_concatenated_layers(config: Config) -> int:
    """Returns the number of encoder layers whose outputs the Q-Former reads besides the last layer's."""
    if not config.has("cat_hidden_layers"):
        return 0
    layer_indices = config.integers("cat_hidden_layers")
    if len({*layer_indices}) < len(layer_indices) or max(layer_indices, default=0) >= config.integer("num_layers"):
        raise config.error("cat_hidden_layers", layer_indices, "different indices below num_layers")
    return len(layer_indices)


def qformer(
    qformer_config: Config,
    encoder_width: int,
    query_count: int,
    window_size: int | None,
    parent_config: Config,
    text_model_type: str = "",
) -> Table:
    """Returns the Q-Former that a config section describes.

    text_model_type: the section's model type if its queries read text, too; BLIP-2's, without text, by default.
    window_size: the positions of audio that a copy of the queries reads; None for all patches of an image.
    parent_config: the config that collects the section's unknown fields.
    """
    qformer_config.require("model_type", text_model_type or "blip_2_qformer")
    qformer_config.require("encoder_hidden_size", encoder_width)
    text_fields: Table = {}
    if text_model_type:
        text_fields["vocab_size"] = qformer_config.integer("vocab_size")
        text_fields["text_positions"] = qformer_config.integer("max_position_embeddings")
    else:
        qformer_config.require("use_qformer_text_input", False)
    hidden_size, head_count = qformer_config.integer("hidden_size"), qformer_config.integer("num_attention_heads")
    qformer_config.quotient("num_attention_heads", hidden_size, head_count)
    depth = qformer_config.integer("num_hidden_layers")
    cross_attention_period = qformer_config.integer("cross_attention_frequency")
    feed_forward = mlp(qformer_config.integer("intermediate_size"), qformer_config.choice(ACTIVATIONS, "hidden_act"))
    qformer_fields: Table = {
        "type": "qformer",
        "queries": query_count,
        "hidden_size": hidden_size,
        "num_hidden_layers": depth,
        "num_attention_heads": head_count,
        "input_size": encoder_width,
        "reading_layers": list(range(0, depth, cross_attention_period)),
        "feed_forward": feed_forward,
        "norm": layernorm(qformer_config.number("layer_norm_eps")),
        **text_fields,
    }
    qformer_config.finish(QFORMER_FIELDS, parent_config)
    return qformer_fields if window_size is None else {**qformer_fields, "window": window_size}


GRANITE_DEFAULTS: Table = class_defaults("granite_speech_encoder")
QFORMER_DEFAULTS: Table = {
    "model_type": "blip_2_qformer",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
    "use_qformer_text_input": False,
}
QFORMER_FIELDS = field_names("""
    _attn_implementation_autoset attention_probs_dropout_prob chunk_size_feed_forward hidden_dropout_prob
    initializer_range max_position_embeddings pad_token_id position_embedding_type vocab_size
    """)
"""Fields of the Q-Former's config that change no count."""
ALIASES = {
    "hidden_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "input_dim": "num_mel_bins",
}

WRAPPERS = {
    "granite_speech": {
        "encoder_config": TowerSection(
            _read_granite_speech, {"granite_speech_encoder": GRANITE_DEFAULTS}, aliases=ALIASES
        )
    },
    "granite_speech_plus": {
        "encoder_config": TowerSection(
            _read_granite_speech,
            {"granite_speech_plus_encoder": {**GRANITE_DEFAULTS, "cat_hidden_layers": None}},
            aliases=ALIASES,
        )
    },
}

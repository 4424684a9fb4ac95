"""Fun-ASR: an encoder with a memory of neighbouring frames, linear layers, and layers of attention over its frames.

Gao 2020 (arXiv:2006.01713). transformers: models/fun_asr_nano.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, QKVO_BIASES, Table, biases, layer_table, layernorm, mlp
from .section import TowerSection, projector, self_attention

FRAME_SAMPLES, FRAME_GROUP_STEP = 400, 960
"""The samples of a frame in Fun-ASR's processor, and those from one group of six frames to the next."""


def _read_fun_asr(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Fun-ASR, where the last transcription layer and the last timestamp layer are followed by a norm."""
    hidden_size, head_count, depth = config.integer_fields(
        "hidden_size", "num_attention_heads", "num_hidden_layers"
    ).values()
    config.quotient("num_attention_heads", hidden_size, head_count)
    transcription_layer_count = depth - config.count("num_timestamp_prediction_layers")
    if transcription_layer_count < 1:
        timestamp_layer_count = config.get("num_timestamp_prediction_layers")
        raise config.error(
            "num_timestamp_prediction_layers", timestamp_layer_count, f"less than num_hidden_layers ({depth})"
        )
    input_size = config.integer("num_mel_bins") * config.integer("num_stacked_frames")
    if input_size % 2:
        raise config.field_error("num_mel_bins", "an even number of values per stacked frame")
    tower = {
        "type": "san_m",
        "input_size": input_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": depth,
        "num_attention_heads": head_count,
        "kernel_size": config.integer("fsmn_kernel_size"),
        "feed_forward": mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act")),
        "norm": layernorm(config.number("layer_norm_eps")),
        "normed_layers": [transcription_layer_count - 1, depth - 1],
        "audio": {"type": "recording", "window": FRAME_SAMPLES, "hop": FRAME_GROUP_STEP},
    }
    adaptor_config = root_config.section(
        "adaptor_config",
        {**ADAPTOR_DEFAULTS, "hidden_size": text_hidden_size, "intermediate_size": text_hidden_size // 4},
    )
    adaptor_config.require("hidden_size", text_hidden_size)
    block = layer_table(
        self_attention(adaptor_config, **biases(True, *QKVO_BIASES)),
        mlp(adaptor_config.integer("intermediate_size"), adaptor_config.choice(ACTIVATIONS, "hidden_act")),
        layernorm(adaptor_config.number("layer_norm_eps")),
    )
    projector_hidden_size = adaptor_config.integer("projector_hidden_size")
    inner_layer = (projector_hidden_size, True, adaptor_config.choice(ACTIVATIONS, "projector_hidden_act"))
    stack_fields = {"num_hidden_layers": adaptor_config.integer("num_hidden_layers"), "block": block}
    adaptor_config.finish(frozenset({"attention_dropout", "hidden_dropout", "model_type"}), config)
    multi_modal_projector = projector(
        hidden_size, inner_layer, (text_hidden_size, True, "identity"), stack=stack_fields
    )
    return {"audio_tower": tower, "multi_modal_projector": multi_modal_projector}


FUN_ASR_DEFAULTS: Table = class_defaults("fun_asr_nano_encoder")
ADAPTOR_DEFAULTS: Table = {
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "layer_norm_eps": 1e-5,
    "hidden_act": "relu",
    "projector_hidden_act": "relu",
    "projector_hidden_size": 2048,
}

WRAPPERS = {
    "fun_asr_nano": {
        "audio_config": TowerSection(
            _read_fun_asr,
            {"fun_asr_nano_encoder": FUN_ASR_DEFAULTS},
            ignored_fields=frozenset({"attention_dropout", "hidden_dropout"}),
        )
    }
}

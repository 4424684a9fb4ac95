"""SpeechT5's speech to text: wav2vec 2.0's stem, an encoder with a learned key per distance, and BART's decoder.

Ao et al. 2022 (arXiv:2110.07205). transformers: models/speecht5 (`SpeechT5ForSpeechToText`).
"""

from __future__ import annotations

from ...config import Config
from ...dropout import WAV2VEC_DROPOUT
from ...family import Family
from ...parts import ACTIVATIONS, QKVO_BIASES, Table, biases, class_name_of_config, head_table, layernorm, mlp
from ..bert.wav2vec2 import wave_stem


def _read_speecht5(config: Config) -> Table:
    class_name = class_name_of_config(config)
    if class_name and not class_name.endswith("ForSpeechToText"):
        raise config.error("architectures", class_name, "SpeechT5ForSpeechToText, the class that generates text")
    config.require("is_encoder_decoder", True)
    norm, hidden_size = layernorm(config.number("layer_norm_eps")), config.integer("hidden_size")
    activation = config.choice(ACTIVATIONS, "hidden_act")
    depth_by_stack = {stack_name: config.integer(f"{stack_name}_layers") for stack_name in ("encoder", "decoder")}
    ffns_by_stack = {name: mlp(config.integer(f"{name}_ffn_dim"), activation) for name in depth_by_stack}
    head_counts = {stack_name: config.integer(f"{stack_name}_attention_heads") for stack_name in depth_by_stack}
    head_dims = {
        name: config.quotient(f"{name}_attention_heads", hidden_size, head_counts[name]) for name in depth_by_stack
    }
    largest_distance = config.integer("encoder_max_relative_position")
    encoder_attention = {
        "type": "relative_keys",
        "num_attention_heads": head_counts["encoder"],
        "head_dim": head_dims["encoder"],
        "max_distance": largest_distance,
        "bias": True,
    }
    attention = {"num_attention_heads": head_counts["decoder"], **biases(True, *QKVO_BIASES)}
    layer = {"norm": norm, "norm_placement": "post"}
    encoder = {
        "num_hidden_layers": depth_by_stack["encoder"],
        "stem": wave_stem(config, hidden_size),
        "position": {"type": "sinusoidal"},
        "embedding_norm": norm,
        "relative_keys": {"max_distance": largest_distance, "head_dim": head_dims["encoder"]},
        "block": {**layer, "attention": encoder_attention, "feed_forward": ffns_by_stack["encoder"]},
    }
    block = {**layer, "attention": attention, "cross_attention": attention, "feed_forward": ffns_by_stack["decoder"]}
    decoder = {"num_hidden_layers": depth_by_stack["decoder"], "position": {"type": "sinusoidal"}, "block": block}
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "max_position_embeddings": config.integer("max_text_positions"),
        "encoder": encoder,
        "decoder": decoder,
        "head": head_table(config),
    }


IGNORED_FIELDS = frozenset({"num_feat_extract_layers"})

FAMILIES = {"speecht5": Family(_read_speecht5, ignored_fields=IGNORED_FIELDS, dropout_fields=WAV2VEC_DROPOUT)}

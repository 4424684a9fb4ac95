"""SpeechT5's speech to text: wav2vec 2.0's stem, an encoder with a learned key per distance, and BART's decoder.

Ao et al. 2022 (arXiv:2110.07205). transformers: models/speecht5 (`SpeechT5ForSpeechToText`).
"""

from __future__ import annotations

from ...config import Config
from ...dropout import WAV2VEC_DROPOUT
from ...family import Family
from ...parts import ACTIVATIONS, QKVO_BIASES, Table, biases, class_name_of_config, head_table, layernorm, mlp


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
        "stem": _stem_convolutions(config, hidden_size),
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


def _stem_convolutions(config: Config, hidden_size: int) -> Table:
    """Returns the stem's convolutions, which turn audio samples into encoder positions."""
    sizes_by_property = {name: config.integers(f"conv_{name}") for name in ("dim", "kernel", "stride")}
    convolution_count = len(sizes_by_property["dim"])
    for property_name, list_values in sizes_by_property.items():
        if len(list_values) != convolution_count or not list_values or 0 in list_values:
            raise config.error(
                f"conv_{property_name}",
                list_values,
                f"{max(convolution_count, 1)} positive whole numbers, as many as conv_dim has",
            )
    group_count = config.integer("num_conv_pos_embedding_groups")
    config.quotient("num_conv_pos_embedding_groups", hidden_size, group_count)
    is_masked = max(config.number("mask_time_prob"), config.number("mask_feature_prob")) > 0
    return {
        "type": "wave",
        "convolutions": [
            {"channels": channels, "kernel": kernel_size, "stride": stride}
            for channels, kernel_size, stride in zip(*sizes_by_property.values(), strict=True)
        ],
        "bias": config.flag("conv_bias"),
        "norms": config.choice({"group": "first", "layer": "all"}, "feat_extract_norm"),
        "hidden_act": config.choice(ACTIVATIONS, "feat_extract_activation"),
        "position_kernel": config.integer("num_conv_pos_embeddings"),
        "position_groups": group_count,
        "mask": is_masked,
    }


IGNORED_FIELDS = frozenset({"num_feat_extract_layers"})

FAMILIES = {"speecht5": Family(_read_speecht5, ignored_fields=IGNORED_FIELDS, dropout_fields=WAV2VEC_DROPOUT)}

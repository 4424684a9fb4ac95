"""wav2vec 2.0, HuBERT, UniSpeech, UniSpeech-SAT and data2vec: encoders of sound, whose stem reads samples, not tokens.

Baevski et al. 2020 (arXiv:2006.11477); Hsu et al. 2021 (arXiv:2106.07447); Wang et al. 2021 (arXiv:2101.07597);
Chen et al. 2021 (arXiv:2110.05752); Baevski et al. 2022 (arXiv:2202.03555). Pratap et al. 2023 (arXiv:2305.13516) add
an adapter per language to each layer.
transformers: models/wav2vec2, hubert, unispeech, unispeech_sat, data2vec.
"""

from __future__ import annotations

from math import prod

from ...config import Config
from ...dropout import WAV2VEC_DROPOUT
from ...family import Family
from ...parts import (
    ACTIVATIONS,
    QKVO_BIASES,
    Table,
    biases,
    class_name_of_config,
    encoder,
    layer_table,
    layernorm,
    mlp,
    scores_sequences,
)

MAX_CONVOLUTIONS = 16
"""The largest number of convolutions in a stem (`WaveStem.convolutions`)."""


def _read_wav2vec2(config: Config) -> Table:
    """Reads an encoder of sound, whose layers have their norms before (`do_stable_layer_norm`) or after sublayers."""
    hidden_size, head_count = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.quotient("num_attention_heads", hidden_size, head_count)
    for unsupported_field in ("add_adapter", "conv_pos_batch_norm"):
        if is_set(config, unsupported_field):
            raise config.error(unsupported_field, True, "false")
    norm = layernorm(config.number("layer_norm_eps"))
    has_one_layer_kind = "conv_pos_kernel_size" in config.defaults  # data2vec's class
    is_pre_norm = not has_one_layer_kind and config.flag("do_stable_layer_norm")
    attention_table = {"num_attention_heads": head_count, **biases(True, *QKVO_BIASES)}
    feed_forward = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    block = layer_table(attention_table, feed_forward, norm, "pre" if is_pre_norm else "post")
    adapter_width = config.optional_integer("adapter_attn_dim") if config.has("adapter_attn_dim") else None
    if adapter_width is not None and is_pre_norm:  # the other layers have none
        block |= {
            "type": "adapter",
            "adapter_size": adapter_width,
            "adapter_act": "relu",
            "languages": ["language"],
            "adapter_norm": "separate",
            "normed_residual": False,
        }
    stem = wave_stem(config, hidden_size)
    if not has_one_layer_kind and config.has("feat_proj_layer_norm"):
        stem["projection_norm"] = config.flag("feat_proj_layer_norm")
    sample_count = prod(convolution["stride"] for convolution in stem["convolutions"])
    config.notes.append(f"conv_stride: a token is a position of the encoder, {sample_count} samples of sound")
    stack_fields = {"stem": stem, "final_norm" if is_pre_norm else "embedding_norm": norm}
    model_fields = encoder(config, block, stack_fields, {"bias": True}, _score_head(config), tie_word_embeddings=False)
    class_name = class_name_of_config(config)
    if class_name.endswith(("ForPreTraining", "ForXVector")):
        config.notes.append(f"architectures: the layers of {class_name} after the encoder are not counted")
        model_fields["head"] = {"type": "none"}
    return model_fields


def is_set(config: Config, field_name: str) -> bool:
    """Whether a flag of the config is true; false for a model type without this flag."""
    return config.has(field_name) and config.flag(field_name)


def _score_head(config: Config) -> Table | None:
    """Returns the classifier of recordings, which reads the mean of projected states; None for another class."""
    if class_name_of_config(config).endswith("Classification"):  # of sequences or of frames
        config.require("use_weighted_layer_sum", False)
    if not scores_sequences(config):
        return None
    return {"over": "sequence", "projection_size": config.integer("classifier_proj_size")}


def wave_stem(config: Config, hidden_size: int) -> Table:
    """Returns the convolutions that turn audio samples into the encoder's positions."""
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
    position_convolutions = {"position_kernel": config.integer("num_conv_pos_embeddings")}
    norms = "all"
    if "conv_pos_kernel_size" in config.defaults:  # data2vec's convolutions for positions, one after another
        position_convolutions = {
            "position_kernel": config.integer("conv_pos_kernel_size"),
            "position_layers": config.integer("num_conv_pos_embeddings"),
        }
    else:
        norms = config.choice({"group": "first", "layer": "all"}, "feat_extract_norm")
    is_masked = max(config.number("mask_time_prob"), config.number("mask_feature_prob")) > 0
    return {
        "type": "wave",
        "convolutions": [
            {"channels": channel_count, "kernel": kernel_size, "stride": stride}
            for channel_count, kernel_size, stride in zip(*sizes_by_property.values(), strict=True)
        ],
        "bias": config.flag("conv_bias"),
        "norms": norms,
        "hidden_act": config.choice(ACTIVATIONS, "feat_extract_activation"),
        **position_convolutions,
        "position_groups": group_count,
        "mask": is_masked,
    }


MODULES = {
    **{
        f"stem.{node_name}_{i}": f".feature_extractor.conv_layers.{i}.{module_name}"
        for i in range(MAX_CONVOLUTIONS)
        for node_name, module_name in (("conv", "conv"), ("norm", "layer_norm"))
    },
    "stem": "feature_extractor + feature_projection + encoder.pos_conv_embed + masked_spec_embed | "
    "feature_extractor + feature_projection + encoder.pos_conv_embed",
    "stem.proj_norm": ".feature_projection.layer_norm",
    "stem.proj": ".feature_projection.projection",
    "stem.mask": ".masked_spec_embed",
    "stem.position": ".encoder.pos_conv_embed",
    "stem.position.length": "conv.parametrizations.weight.original0",
    "stem.position.conv": "conv - conv.parametrizations.weight.original0",
    **{f"stem.position.conv_{i}": f"layers.{i}.conv" for i in range(MAX_CONVOLUTIONS)},
    "embed_norm": "encoder.layer_norm",
    "norm": "encoder.layer_norm",
    "layers": "encoder.layers",
    "self_attn": "attention",
    "o_proj": "out_proj",
    "self_attn_pre_norm": "layer_norm",
    "self_attn_post_norm": "layer_norm",
    "mlp_pre_norm": "final_layer_norm",
    "mlp_post_norm": "final_layer_norm",
    "mlp": "feed_forward",
    "up_proj": "intermediate_dense",
    "down_proj": "output_dense",
    "adapter_norm": "adapter_layer.norm",
    "adapters": "adapter_layer - adapter_layer.norm",
    "adapter_up_proj": ".adapter_layer.linear_1",
    "adapter_down_proj": ".adapter_layer.linear_2",
    "classifier": "projector + classifier | classifier",
    "classifier.projector": ".projector",
    "classifier.out_proj": ".classifier",
}
IGNORED_FIELDS = frozenset({"num_feat_extract_layers"})
DATA2VEC_IGNORED_FIELDS = IGNORED_FIELDS | {"do_stable_layer_norm", "feat_extract_norm", "feat_proj_layer_norm"}

FAMILIES = {
    model_type: Family(
        _read_wav2vec2,
        {"tie_word_embeddings": False},
        ignored_fields=DATA2VEC_IGNORED_FIELDS if model_type == "data2vec-audio" else IGNORED_FIELDS,
        dropout_fields=WAV2VEC_DROPOUT,
        modules=MODULES,
    )
    for model_type in ("wav2vec2", "hubert", "unispeech", "unispeech-sat", "data2vec-audio")
}

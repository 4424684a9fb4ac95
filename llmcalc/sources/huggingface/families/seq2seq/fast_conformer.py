"""Speech to text with a FastConformer as the encoder and a pre-norm decoder: Canary and Cohere Transcribe.

Rekesh et al. 2023 (arXiv:2305.05084); Puvvada et al. 2024 (arXiv:2406.19674).
transformers: models/canary, models/cohere_asr, models/parakeet (`ParakeetEncoder`).
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, ModuleNames
from ...parts import ACTIVATIONS, Table, head_table, layer_table, layernorm, learned_positions, mlp, plain_attention


def _read_canary(config: Config) -> Table:
    """Reads Canary, whose decoder is a section of the config and attends to the encoder's output unprojected."""
    section_config = _config_section(config, "decoder_config", "canary_decoder", CANARY_DECODER_DEFAULTS)
    if section_config.integer("vocab_size") != config.integer("vocab_size"):
        raise section_config.field_error("vocab_size", f"{config.get('vocab_size')}, as in the config")
    encoder_defaults = CANARY_ENCODER_DEFAULTS if config.get("encoder_config") is None else PARAKEET_DEFAULTS
    encoder, decoder = _conformer_encoder(config, encoder_defaults), _decoder(section_config, {"type": "sinusoidal"})
    hidden_size, head_count = section_config.integer("hidden_size"), section_config.integer("num_attention_heads")
    section_config.quotient("num_attention_heads", hidden_size, head_count)
    if encoder["hidden_size"] != hidden_size:
        raise config.error(
            "encoder_config", encoder["hidden_size"], f"a hidden_size of {hidden_size}, which the decoder's layers read"
        )
    model_fields = _speech_model(config, section_config, encoder, decoder)
    section_config.finish(IGNORED_FIELDS, config)
    return {**model_fields, "max_position_embeddings": section_config.integer("max_position_embeddings")}


def _read_cohere_asr(config: Config) -> Table:
    """Reads Cohere Transcribe, whose decoder projects the encoder's output and has learned positions."""
    _require_sizes_of_nemo(config)
    encoder = {**_conformer_encoder(config, COHERE_ENCODER_DEFAULTS), "output_size": config.integer("hidden_size")}
    return _speech_model(config, config, encoder, _decoder(config, learned_positions(config)))


def _require_sizes_of_nemo(config: Config) -> None:
    """Raises `InputError` if sizes in NeMo's config sections differ from the sizes that the class uses."""
    encoder_config = _config_section(config, "encoder_config", "parakeet_encoder", COHERE_ENCODER_DEFAULTS)
    decoder_section = config.section("transf_decoder").section("config_dict")
    for section_config, class_config, class_fields in (
        (config.section("encoder"), encoder_config, NEMO_ENCODER_FIELDS),
        (decoder_section, config, NEMO_DECODER_FIELDS),
        (config.section("head"), config, {"num_classes": "vocab_size"}),
    ):
        for section_field, class_field in class_fields.items():
            if not section_config.has(section_field):
                continue
            class_value = class_config.integer(class_field)
            if section_config.get(section_field) != class_value:
                expected_value = f"{class_value}, as {class_config.location}{class_field}, which the class reads"
                raise section_config.field_error(section_field, expected_value)


def _config_section(config: Config, section_name: str, model_type: str, section_defaults: Table) -> Config:
    """Returns a section of the config as a `Config`; a missing section has the class's defaults."""
    section_fields = {} if config.get(section_name) is None else config.table(section_name)
    section_config = Config(section_fields, section_defaults, model_type, location=f"{section_name}.")
    if section_fields.get("model_type", model_type) != model_type:
        raise section_config.error("model_type", section_fields["model_type"], model_type)
    return section_config


def _speech_model(config: Config, decoder_config: Config, encoder: Table, decoder: Table) -> Table:
    """Returns a speech-to-text model of an encoder and a decoder. decoder_config: the decoder's fields."""
    config.require("is_encoder_decoder", True)
    return {
        **decoder_config.integer_fields("vocab_size", "hidden_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "encoder": encoder,
        "decoder": decoder,
        "head": head_table(config, {"bias": True}),
    }


def _decoder(decoder_config: Config, position_encoding: Table) -> Table:
    attention_table, norm = plain_attention(decoder_config), layernorm()
    feed_forward = mlp(decoder_config.integer("intermediate_size"), decoder_config.choice(ACTIVATIONS, "hidden_act"))
    block = layer_table(attention_table, feed_forward, norm, cross_attention=attention_table)
    depth = decoder_config.integer("num_hidden_layers")
    return {
        "num_hidden_layers": depth,
        "block": block,
        "position": position_encoding,
        "embedding_norm": norm,
        "final_norm": norm,
    }


def _conformer_encoder(config: Config, section_defaults: Table) -> Table:
    """Returns the FastConformer encoder. section_defaults: defaults of the section's fields."""
    section_config = _config_section(config, "encoder_config", "parakeet_encoder", section_defaults)
    encoder = parakeet_encoder(section_config)
    section_config.finish(IGNORED_FIELDS | PARAKEET_FIELDS, config)
    return encoder


def parakeet_encoder(section_config: Config) -> Table:
    """Returns the FastConformer encoder that a config section describes."""
    hidden_size = section_config.integer("hidden_size")
    head_count = section_config.integer("num_attention_heads")
    norm = layernorm()
    has_bias, head_dim = section_config.flag("attention_bias"), section_config.optional_integer("head_dim")
    kernel_size = section_config.integer("conv_kernel_size")
    activation = section_config.choice(ACTIVATIONS, "hidden_act")
    if kernel_size % 2 == 0:
        raise section_config.error("conv_kernel_size", kernel_size, "an odd number")
    section_config.require_if_present("num_key_value_heads", head_count)
    attention = {
        "type": "relative",
        "num_attention_heads": head_count,
        "head_dim": section_config.quotient("num_attention_heads", hidden_size, head_count)
        if head_dim is None
        else head_dim,
        "bias": has_bias,
        "segments": False,
    }
    convolution = {
        "kernel_size": kernel_size,
        "hidden_act": activation,
        "bias": section_config.flag("convolution_bias"),
        "convolved": True,
        "batch_norm": True,
        "centred": True,
    }
    block = {
        "type": "conformer",
        "attention": attention,
        "feed_forward": mlp(section_config.integer("intermediate_size"), activation, has_bias),
        "convolution": convolution,
        "norm": norm,
    }
    num_hidden_layers = section_config.integer("num_hidden_layers")
    stem = {"type": "spectrum", "subsampling": _subsampling(section_config)}
    return {"num_hidden_layers": num_hidden_layers, "hidden_size": hidden_size, "stem": stem, "block": block}


def _subsampling(encoder_config: Config) -> Table:
    """Returns the convolutions before the layers: each halves the frames; all but the first are separable."""
    subsampling_factor, mel_bins = encoder_config.integer("subsampling_factor"), encoder_config.integer("num_mel_bins")
    encoder_config.require_fields(subsampling_conv_kernel_size=3, subsampling_conv_stride=2)
    convolution_count = subsampling_factor.bit_length() - 1
    if subsampling_factor < 2 or subsampling_factor != 2**convolution_count:
        raise encoder_config.error("subsampling_factor", subsampling_factor, "a power of 2, at least 2")
    if mel_bins % subsampling_factor:
        raise encoder_config.error("num_mel_bins", mel_bins, f"a multiple of subsampling_factor ({subsampling_factor})")
    first_convolution = {"channels": encoder_config.integer("subsampling_conv_channels"), "bias": True}
    separable_convolution = {**first_convolution, "separable": True}
    convolutions = [first_convolution, *[separable_convolution] * (convolution_count - 1)]
    return {"num_mel_bins": mel_bins, "convolutions": convolutions, "bias": True}


IGNORED_FIELDS = frozenset({"activation_dropout", "max_position_embeddings"})
PARAKEET_FIELDS = frozenset({"dropout_positions", "layerdrop", "scale_input"})

PARAKEET_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "silu",
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "num_mel_bins": 80,
    "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
}
CANARY_ENCODER_DEFAULTS = {**PARAKEET_DEFAULTS, "num_hidden_layers": 32, "num_mel_bins": 128}
COHERE_ENCODER_DEFAULTS = {
    **PARAKEET_DEFAULTS,
    "hidden_size": 1280,
    "num_hidden_layers": 48,
    "intermediate_size": 5120,
    "num_mel_bins": 128,
}
DECODER_DEFAULTS: dict[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": None,
    "hidden_act": "relu",
    "max_position_embeddings": 1024,
    "attention_bias": True,
    "head_dim": None,
}
CANARY_DECODER_DEFAULTS = {**DECODER_DEFAULTS, "num_key_value_heads": 8, "head_dim": 128}

ENCODER_MODULES: ModuleNames = {
    "stem": "subsampling",
    "stem.subsampling": "",
    "stem.subsampling.conv_1": ".subsampling.layers.0",
    "stem.subsampling.depthwise_2": ".subsampling.layers.2",
    "stem.subsampling.pointwise_2": ".subsampling.layers.3",
    "stem.subsampling.depthwise_3": ".subsampling.layers.5",
    "stem.subsampling.pointwise_3": ".subsampling.layers.6",
    "stem.subsampling.proj": ".subsampling.linear",
    "encoder.mlp_1_pre_norm": "norm_feed_forward1",
    "encoder.self_attn_pre_norm": "norm_self_att",
    "encoder.convolution_pre_norm": "norm_conv",
    "encoder.mlp_2_pre_norm": "norm_feed_forward2",
    "encoder.norm": "norm_out",
    "mlp_1": "feed_forward1",
    "mlp_2": "feed_forward2",
    "encoder.mlp_1.up_proj": "linear1",
    "encoder.mlp_1.down_proj": "linear2",
    "encoder.mlp_2.up_proj": "linear1",
    "encoder.mlp_2.down_proj": "linear2",
    "convolution": "conv",
    "convolution.in_proj": "pointwise_conv1",
    "convolution.conv": "depthwise_conv",
    "convolution.norm": "norm",
    "convolution.out_proj": "pointwise_conv2",
    "r_proj": "relative_k_proj",
    "content_bias": "bias_u",
    "position_bias": "bias_v",
}
"""Name in a spec → name in the class of the FastConformer."""

MODULES: ModuleNames = {
    **ENCODER_MODULES,
    "output_proj": "decoder.proj",
    "embed_tokens": "decoder.embed_tokens",
    "embed_positions": "pos_emb",
    "embed_norm": "embedding_layernorm",
    "cross_attn": "encoder_attn",
    "cross_attn_pre_norm": "post_attention_layernorm",
    "decoder.mlp_pre_norm": "final_layernorm",
    "decoder.mlp.up_proj": "fc1",
    "decoder.mlp.down_proj": "fc2",
    "lm_head": "proj_out",
}

NEMO_ENCODER_FIELDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "conv_kernel_size": "conv_kernel_size",
    "subsampling_factor": "subsampling_factor",
    "subsampling_conv_channels": "subsampling_conv_channels",
    "feat_in": "num_mel_bins",
}
NEMO_DECODER_FIELDS = {
    "hidden_size": "hidden_size",
    "inner_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "max_sequence_length": "max_position_embeddings",
}
"""Fields of NeMo's sections in published configs of Cohere Transcribe → the class's fields."""

EARLIER_NAMES: dict[str, str] = {
    "encoder.subsampling.linear": "encoder.pre_encode.out",
    "decoder.proj": "encoder_decoder_proj",
    "proj_out": "log_softmax.mlp.layer0",
    **{f"encoder.layers.*.self_attn.{leaf}_proj": f"encoder.layers.*.self_attn.linear_{leaf}" for leaf in "qkv"},
    "encoder.layers.*.self_attn.o_proj": "encoder.layers.*.self_attn.linear_out",
    "encoder.layers.*.self_attn.relative_k_proj": "encoder.layers.*.self_attn.linear_pos",
    **{
        f"decoder.layers.*.{name}.{leaf}_proj": f"transf_decoder._decoder.layers.*.{sublayer}.{projection}"
        for name, sublayer in (("self_attn", "first_sub_layer"), ("encoder_attn", "second_sub_layer"))
        for leaf, projection in zip("qkvo", ("query_net", "key_net", "value_net", "out_projection"), strict=True)
    },
    "decoder.layers.*.mlp.fc1": "transf_decoder._decoder.layers.*.third_sub_layer.dense_in",
    "decoder.layers.*.mlp.fc2": "transf_decoder._decoder.layers.*.third_sub_layer.dense_out",
}
"""Module name in Cohere Transcribe's class → the module name in NeMo, which the checkpoint uses."""


FAMILIES = {
    "canary": Family(_read_canary, modules=MODULES),
    "cohere_asr": Family(_read_cohere_asr, modules=MODULES, earlier_names=EARLIER_NAMES),
}

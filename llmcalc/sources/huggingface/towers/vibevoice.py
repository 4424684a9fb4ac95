"""VibeVoice: an acoustic and a semantic encoder of audio samples, and a diffusion head for speech output.

Peng 2025 (arXiv:2508.19205). transformers: models/vibevoice, vibevoice_asr, vibevoice_acoustic_tokenizer.
"""

from __future__ import annotations

from ..class_defaults import class_defaults
from ..config import Config
from ..parts import ACTIVATIONS, Table, biases, mlp, rmsnorm
from .section import TowerReader, TowerSection, projector


def _encoder(config: Config) -> Table:
    """Returns a ConvNeXt encoder of audio samples."""
    downsampling_ratios, stage_depths = config.integers("downsampling_ratios"), config.integers("depths")
    if len(stage_depths) != len(downsampling_ratios) + 1 or 0 in downsampling_ratios:
        raise config.error(
            "depths", stage_depths, f"{len(downsampling_ratios) + 1} numbers, one more than downsampling_ratios has"
        )
    return {
        "type": "convnext",
        **config.integer_fields("channels", "num_filters", "kernel_size"),
        "downsampling_ratios": downsampling_ratios,
        "depths": stage_depths,
        "ffn_expansion": config.integer("ffn_expansion"),
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
        "norm": rmsnorm(config.number("rms_norm_eps")),
        "output_size": config.integer("hidden_size"),
    }


def _tokenizer_reader(encoder_name: str) -> TowerReader:
    """Returns the reader of the acoustic or the semantic encoder, with the linear layers after the encoder."""

    def read(root_config: Config, config: Config, text_hidden_size: int) -> Table:
        return {
            f"{encoder_name}_audio_encoder": _encoder(config),
            **_audio_connector(encoder_name, config, text_hidden_size),
        }

    return read


def _audio_connector(tokenizer_name: str, config: Config, text_hidden_size: int) -> Table:
    """Returns two linear layers after an encoder, with a norm between them. tokenizer_name: which encoder."""
    linear_layer = (text_hidden_size, True, "identity")
    input_width = config.integer("hidden_size")
    return {
        f"{tokenizer_name}_audio_projector": projector(input_width, linear_layer, out_norm=rmsnorm(1e-6)),
        f"{tokenizer_name}_audio_projection": projector(text_hidden_size, linear_layer),
    }


def _read_acoustic(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads the acoustic encoder, its decoder, and the diffusion head that generates its outputs."""
    head_config = root_config.section("diffusion_head_config", DIFFUSION_HEAD_DEFAULTS)
    head_config.require("model_type", "vibevoice_diffusion")
    activation, has_biases = head_config.choice(ACTIVATIONS, "hidden_act"), head_config.flag("mlp_bias")
    ffn = {**mlp(head_config.integer("intermediate_size"), activation, has_biases), "gated": True}
    ffn |= biases(has_biases, "gate_bias")
    diffusion_head = {
        "hidden_size": text_hidden_size,
        "num_hidden_layers": head_config.integer("num_hidden_layers"),
        "frequency_size": head_config.integer("frequency_embedding_size"),
        "hidden_act": activation,
        "feed_forward": ffn,
        "norm": rmsnorm(head_config.number("rms_norm_eps")),
    }
    head_config.finish(HEAD_FIELDS, config)
    encoder = _encoder(config) | {"rescaled": True, "decoder": True, "diffusion_head": diffusion_head}
    return {"acoustic_audio_encoder": encoder, **_audio_connector("acoustic", config, text_hidden_size)}


ENCODER_DEFAULTS: Table = class_defaults("vibevoice_acoustic_tokenizer")
IGNORED_FIELDS = frozenset({"layer_scale_init_value", "vae_std"})
DIFFUSION_HEAD_DEFAULTS: Table = {
    "model_type": "vibevoice_diffusion",
    "num_hidden_layers": 4,
    "intermediate_size": 4608,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "frequency_embedding_size": 256,
    "mlp_bias": False,
}
HEAD_FIELDS = frozenset({"diffusion_max_period", "hidden_size", "latent_size"})
"""Fields of the head's config that change no count; the class takes both sizes from text model and encoder instead."""

WRAPPERS = {
    "vibevoice": {
        "audio_config": TowerSection(
            _read_acoustic, {"vibevoice_acoustic_tokenizer": ENCODER_DEFAULTS}, ignored_fields=IGNORED_FIELDS
        ),
        "semantic_model_config": TowerSection(
            _tokenizer_reader("semantic"),
            {"vibevoice_acoustic_tokenizer_encoder": ENCODER_DEFAULTS},
            default_section={"hidden_size": 128},
            ignored_fields=IGNORED_FIELDS,
        ),
    },
    "vibevoice_asr": {
        f"{name}_tokenizer_encoder_config": TowerSection(
            _tokenizer_reader(name),
            {"vibevoice_acoustic_tokenizer_encoder": ENCODER_DEFAULTS},
            default_section=default_section,
            ignored_fields=IGNORED_FIELDS,
        )
        for name, default_section in (("acoustic", {}), ("semantic", {"hidden_size": 128}))
    },
}

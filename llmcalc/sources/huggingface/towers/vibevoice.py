"""VibeVoice ASR: two encoders of samples, of how speech sounds and of what it says, whose projections are added.

Peng 2025 (arXiv:2508.19205). transformers: models/vibevoice_asr, vibevoice_acoustic_tokenizer.
"""

from __future__ import annotations

from ..config import Config
from ..parts import ACTIVATIONS, Table, rmsnorm
from .section import Reader, Section, projector


def _encoder(config: Config) -> Table:
    """Returns an encoder of samples."""
    ratios, depths = config.sizes("downsampling_ratios"), config.sizes("depths")
    if len(depths) != len(ratios) + 1 or 0 in ratios:
        raise config.error("depths", depths, f"{len(ratios) + 1} numbers, one more than downsampling_ratios has")
    return {
        "type": "convnext",
        "channels": config.size("channels"),
        "num_filters": config.size("num_filters"),
        "kernel_size": config.size("kernel_size"),
        "downsampling_ratios": ratios,
        "depths": depths,
        "ffn_expansion": config.size("ffn_expansion"),
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
        "norm": rmsnorm(config.number("rms_norm_eps")),
        "output_size": config.size("hidden_size"),
    }


def _reader_of(name: str) -> Reader:
    """Returns the reader of one of the encoders, with the linear layers and the norm between them."""

    def read(wrapper: Config, config: Config, width: int) -> Table:
        linear_layer = (width, True, "identity")
        return {
            f"{name}_audio_encoder": _encoder(config),
            f"{name}_audio_projector": projector(config.size("hidden_size"), linear_layer, out_norm=rmsnorm(1e-6)),
            f"{name}_audio_projection": projector(width, linear_layer),
        }

    return read


ENCODER: Table = {
    "channels": 1,
    "hidden_size": 64,
    "kernel_size": 7,
    "rms_norm_eps": 1e-5,
    "num_filters": 32,
    "downsampling_ratios": (2, 2, 4, 5, 5, 8),
    "depths": (3, 3, 3, 3, 3, 3, 8),
    "hidden_act": "gelu",
    "ffn_expansion": 4,
}
FIELDS = frozenset({"layer_scale_init_value", "vae_std"})

WRAPPERS = {
    "vibevoice_asr": {
        f"{name}_tokenizer_encoder_config": Section(
            _reader_of(name),
            {"vibevoice_acoustic_tokenizer_encoder": ENCODER},
            default_section=default_section,
            ignored_fields=FIELDS,
        )
        for name, default_section in (("acoustic", {}), ("semantic", {"hidden_size": 128}))
    }
}
